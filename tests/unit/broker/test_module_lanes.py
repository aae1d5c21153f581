"""Owners take turns at the lanes that run SmartModules, and each has a share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pentalog.broker.module_lanes import (
    INSTANCES_MAX,
    MEMORY_SHARES,
    OWNER_WAITING_BYTES_MAX,
    Lanes,
    Shares,
)
from pentalog.model.errors import Overloaded

MEMORY = 1 << 20
SHARE_PERCENT = 50
OWN_INSTANCES = INSTANCES_MAX // 2
OWN_MEMORY_SHARES = MEMORY_SHARES // 2


class Threads:
    """Lanes that do one job when they are told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, Callable[[], None]]] = []

    def offload(self, lane: str, work: Any, done: Any) -> None:
        assert lane not in [busy for busy, _ in self.jobs], "two jobs on one lane"
        self.jobs.append((lane, lambda: done(work(), None)))

    def step(self) -> bool:
        if not self.jobs:
            return False
        self.jobs.pop(0)[1]()
        return True


def test_an_owner_with_one_job_does_not_wait_for_all_of_another() -> None:
    threads = Threads()
    lanes = Lanes(threads, ["one", "two"])  # type: ignore[arg-type]
    order: list[str] = []
    for _ in range(10):
        lanes.submit("greedy", lambda: "greedy", _note(order))
    lanes.submit("modest", lambda: "modest", _note(order))
    while threads.step():
        pass
    assert len(order) == 11
    assert order.index("modest") <= 3


def _note(order: list[str]) -> Callable[[Any, BaseException | None], None]:
    return lambda value, _: order.append(value)


def test_a_job_may_be_followed_by_another_of_its_owner() -> None:
    threads = Threads()
    lanes = Lanes(threads, ["one"])  # type: ignore[arg-type]
    order: list[str] = []

    def again(value: Any, error: BaseException | None) -> None:
        order.append(value)
        lanes.submit("first", lambda: "later", _note(order))

    lanes.submit("first", lambda: "first", again)
    lanes.submit("second", lambda: "second", _note(order))
    while threads.step():
        pass
    assert order == ["first", "second", "later"]


def test_one_owner_has_half_of_the_programs() -> None:
    shares = Shares(MEMORY, SHARE_PERCENT)
    shares.take("greedy", OWN_INSTANCES, 0)
    with pytest.raises(Overloaded, match="principal_share_percent"):
        shares.take("greedy", 1, 0)
    shares.take("other", INSTANCES_MAX - OWN_INSTANCES, 0)
    with pytest.raises(Overloaded):
        shares.take("third", 1, 0)
    shares.give_back("other", 1)
    shares.take("third", 1, 0)


def test_derived_topics_have_one_share_together() -> None:
    shares = Shares(MEMORY, SHARE_PERCENT)
    shares.take("", OWN_INSTANCES, 0)
    with pytest.raises(Overloaded):
        shares.take("", 1, 0)
    shares.take("client", 1, 0)
    shares.give_back("", 1)
    shares.take("", 1, 0)


def test_programs_that_wait_to_be_compiled_are_limited_but_one_always_may() -> None:
    shares = Shares(MEMORY, SHARE_PERCENT)
    shares.take("owner", 1, 2 * OWNER_WAITING_BYTES_MAX)
    with pytest.raises(Overloaded, match="compiled"):
        shares.take("owner", 1, 1)
    shares.compiled("owner", 2 * OWNER_WAITING_BYTES_MAX)
    shares.take("owner", 1, 1)


def test_memory_is_refused_to_those_who_have_most() -> None:
    shares = Shares(MEMORY, SHARE_PERCENT)
    shares.resize("greedy", 0, OWN_MEMORY_SHARES * MEMORY)
    shares.check_memory("greedy")
    shares.resize("greedy", 0, 1)
    with pytest.raises(Overloaded, match="memory"):
        shares.check_memory("greedy")
    shares.resize("greedy", 1, 0)
    shares.resize("large", 0, (MEMORY_SHARES - OWN_MEMORY_SHARES) * MEMORY)
    shares.resize("modest", 0, 1)
    shares.check_memory("modest")
    with pytest.raises(Overloaded):
        shares.check_memory("large")
    shares.resize("greedy", OWN_MEMORY_SHARES * MEMORY, 0)
    shares.check_memory("large")
