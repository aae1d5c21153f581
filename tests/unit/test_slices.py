"""Long work cut into slices: a turn ends when its budget of time is used up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pentalog.config import Config
from pentalog.metrics import Traffic
from pentalog.runtime import Slices
from pentalog.session import Address, Context


class Loop:
    """Runs one turn at a time; time passes only where work says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        return self.now_s

    def soon(self, run: Callable[[], None]) -> None:
        self._due.append(run)

    def turn(self) -> float:
        """Return how long the turn took."""
        start_s = self.now_s
        due, self._due = self._due, []
        for run in due:
            run()
        return self.now_s - start_s

    def turns_until(self, met: Callable[[], bool]) -> int:
        for count in range(10_000):
            if met():
                return count
            self.turn()
        raise AssertionError("it never ends")

    def work(self, step_s: float, count: int, log: list[str], name: str = "") -> Iterator[None]:
        try:
            for _ in range(count):
                self.now_s += step_s
                log.append(name)
                yield
        finally:
            log.append(f"{name} closed")


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def slices(loop: Loop) -> Slices:
    return Slices(cast("Any", loop), 0.004)


def test_short_work_is_done_at_once(loop: Loop, slices: Slices) -> None:
    done: list[Exception | None] = []
    slices.run(loop.work(0.0001, 10, []), done.append)
    assert done == [None]
    assert loop.turn() == 0


def test_long_work_takes_its_budget_of_every_turn(loop: Loop, slices: Slices) -> None:
    done: list[Exception | None] = []
    log: list[str] = []
    slices.run(loop.work(0.0005, 100, log), done.append)
    assert 8 <= len(log) <= 10
    spent = []
    while not done:
        spent.append(loop.turn())
    assert max(spent) < 0.006
    assert len(spent) > 8
    assert log.count("") == 100
    assert slices.waiting == 0


def test_all_clients_share_one_budget(loop: Loop, slices: Slices) -> None:
    done: list[Exception | None] = []
    start_s = loop.now_s
    for _ in range(50):
        slices.run(loop.work(0.0005, 40, []), done.append)
    assert loop.now_s - start_s < 0.006, "the first turn served more than its budget"
    assert slices.waiting == 50
    spent = []
    while len(done) < 50:
        spent.append(loop.turn())
    assert max(spent) < 0.006


def test_a_short_job_does_not_wait_for_every_long_one(loop: Loop, slices: Slices) -> None:
    done: list[str] = []
    for _ in range(100):
        slices.run(loop.work(0.0005, 400, []), lambda _: done.append("long"))
    for _ in range(100):
        loop.turn()
    slices.run(loop.work(0.0001, 1, []), lambda _: done.append("short"))
    assert loop.turns_until(lambda: bool(done)) < 3
    assert done == ["short"]


def test_owners_of_jobs_alternate(loop: Loop, slices: Slices) -> None:
    done: list[str] = []
    for _ in range(50):
        slices.run(loop.work(0.0005, 400, []), lambda _: done.append("many"), "many")
    for _ in range(60):
        loop.turn()
    slices.run(loop.work(0.0005, 40, []), lambda _: done.append("few"), "few")
    assert slices.waiting == 51
    # 20 ms of work, at half of every turn.
    assert loop.turns_until(lambda: bool(done)) < 20
    assert done == ["few"]


def test_long_jobs_continue_while_short_ones_keep_coming(loop: Loop, slices: Slices) -> None:
    done: list[str] = []
    slices.run(loop.work(0.0005, 100, []), lambda _: done.append("long"))

    def flood() -> bool:
        for _ in range(20):
            slices.run(loop.work(0.0005, 1, []), lambda _: None)
        return "long" in done

    assert loop.turns_until(flood) < 100


def test_an_error_is_reported_and_the_others_continue(loop: Loop, slices: Slices) -> None:
    done: list[Exception | None] = []
    slices.run(loop.work(0.0005, 20, []), done.append)

    def fails() -> Iterator[None]:
        yield
        raise KeyError("gone")

    slices.run(fails(), done.append)
    loop.turns_until(lambda: len(done) == 2)
    assert {type(outcome) for outcome in done} == {KeyError, type(None)}


def test_abandoned_work_ends_without_an_outcome(loop: Loop, slices: Slices) -> None:
    done: list[Exception | None] = []
    log: list[str] = []
    abandon = slices.run(loop.work(0.001, 100, log, "a"), done.append)
    loop.turn()
    abandon()
    abandon()
    assert log[-1] == "a closed"
    steps = len(log)
    for _ in range(5):
        loop.turn()
    assert len(log) == steps
    assert done == []
    assert slices.waiting == 0


def test_work_may_abandon_itself(loop: Loop, slices: Slices) -> None:
    done: list[Exception | None] = []
    log: list[str] = []
    abandon: list[Callable[[], None]] = []

    def steps() -> Iterator[None]:
        try:
            yield from loop.work(0.005, 1, log)
            abandon[0]()
            yield
            log.append("continued")
        finally:
            log.append("ended")

    abandon.append(slices.run(steps(), done.append))
    for _ in range(5):
        loop.turn()
    assert log[-1] == "ended"
    assert "continued" not in log
    assert done == []


def test_a_mistake_in_done_does_not_keep_the_others(loop: Loop, slices: Slices) -> None:
    done: list[Exception | None] = []
    slices.run(loop.work(0.005, 1, []), lambda _: [][0])  # type: ignore[arg-type,return-value]
    slices.run(loop.work(0.001, 1, []), done.append)
    with pytest.raises(IndexError):
        loop.turns_until(lambda: bool(done))
    loop.turns_until(lambda: bool(done))


def test_a_simulator_cuts_where_it_wants(loop: Loop) -> None:
    cuts = iter([False, True, False, True] + [False] * 10)
    slices = Slices(cast("Any", loop), cut=lambda: next(cuts))
    log: list[str] = []
    done: list[Exception | None] = []
    slices.run(loop.work(0.0, 5, log), done.append)
    assert len(log) == 2
    loop.turn()
    assert len(log) == 4
    loop.turn()
    assert done == [None]


def test_a_context_made_by_hand_has_slices(loop: Loop) -> None:
    context = Context(
        broker=cast("Any", SimpleNamespace()),
        runtime=cast("Any", loop),
        config=Config(),
        metrics=Traffic(),
        peer="",
        listener="",
        advertised=lambda _: Address("", 0),
    )
    done: list[Exception | None] = []
    context.slices.run(loop.work(0.0, 3, []), done.append)
    assert done == [None]
    assert replace(context, peer="x").slices is context.slices


def test_jobs_end_with_the_slices(loop: Loop, slices: Slices) -> None:
    log: list[str] = []
    ended: list[Exception | None] = []
    for name in ("a", "b"):
        slices.run(loop.work(0.003, 5, log, name), ended.append)
    slices.close()
    slices.run(loop.work(0.003, 5, log, "c"), ended.append)
    before = [name for name in log if "closed" not in name]
    loop.turn()
    loop.turn()
    assert [name for name in log if "closed" not in name] == before
    assert "a closed" in log
    assert slices.waiting == 0
    assert not ended
