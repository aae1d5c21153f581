"""Producer ids: never twice, not even after a crash."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from step_runtime import StepRuntime

from pentalog.broker import producers as producers_module
from pentalog.broker.producers import BLOCK, LocalProducers
from pentalog.broker.state import State
from pentalog.model.errors import Overloaded, StorageFailed

Open = Callable[[], State]


def opened(open_state: Open) -> LocalProducers:
    producers = LocalProducers(open_state())
    producers.open()
    return producers


def ids(producers: LocalProducers, runtime: StepRuntime, count: int) -> list[int]:
    laters = [producers.identify() for _ in range(count)]
    runtime.run()
    return [later.value.producer_id for later in laters]


def test_no_id_before_its_block_is_on_the_disk(open_state: Open, runtime: StepRuntime) -> None:
    producers = opened(open_state)
    later = producers.identify()
    assert not later.ready
    runtime.run()
    assert later.ready
    assert later.value.epoch == 0
    assert producers.identify().ready


def test_ids_are_never_given_twice_across_crashes(open_state: Open, runtime: StepRuntime) -> None:
    given: list[int] = []
    for _ in range(5):
        given += ids(opened(open_state), runtime, 700)
    assert len(set(given)) == len(given) == 3500


def test_the_next_block_is_reserved_before_the_last_one_is_used_up(
    open_state: Open, runtime: StepRuntime
) -> None:
    producers = opened(open_state)
    runtime.run()
    for _ in range(5 * BLOCK):
        assert producers.identify().ready
        runtime.run()


def test_more_waiters_than_a_block_holds_are_all_served(
    open_state: Open, runtime: StepRuntime
) -> None:
    producers = opened(open_state)
    given = ids(producers, runtime, 3 * BLOCK + 1)
    assert len(set(given)) == 3 * BLOCK + 1


def test_a_bounded_number_may_wait(
    open_state: Open, runtime: StepRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers_module, "WAITING_MAX", 3)
    producers = opened(open_state)
    waiting = [producers.identify() for _ in range(3)]
    with pytest.raises(Overloaded):
        producers.identify()
    runtime.run()
    assert all(later.ready for later in waiting)


def test_a_failing_disk_refuses_and_heals(open_state: Open, runtime: StepRuntime) -> None:
    state = open_state()
    assert state._database is not None
    producers = LocalProducers(state)
    producers.open()
    state._database.execute("PRAGMA query_only = ON")
    later = producers.identify()
    runtime.run()
    with pytest.raises(StorageFailed):
        _ = later.value
    refused = producers.identify()
    with pytest.raises(StorageFailed):
        _ = refused.value
    state._database.execute("PRAGMA query_only = OFF")
    runtime.advance(1_000)
    assert len(set(ids(producers, runtime, 10))) == 10


def test_ids_fit_a_floating_point_number(open_state: Open, runtime: StepRuntime) -> None:
    (producer_id,) = ids(opened(open_state), runtime, 1)
    assert BLOCK <= producer_id < 1 << 53
