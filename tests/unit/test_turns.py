"""Work cut into turns of the loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pentalog.runtime import Turns


class Loop:
    """Runs one turn at a time: what is due when it begins, and nothing that comes up in it."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        raise AssertionError("turns are counted, not timed")

    monotonic = now_ms
    after = offload = now_ms  # type: ignore[assignment]

    def soon(self, run: Callable[[], None]) -> None:
        self._due.append(run)

    def turn(self) -> bool:
        """False if there was nothing to do."""
        due, self._due = self._due, []
        for run in due:
            run()
        return bool(due)


def test_a_burst_is_done_in_order_some_in_each_turn() -> None:
    loop = Loop()
    turns = Turns(loop, 3)  # type: ignore[arg-type]
    done: list[int] = []
    for number in range(8):
        turns.do(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [0, 1, 2]
    assert turns.waiting == 5
    loop.turn()
    assert done == [0, 1, 2, 3, 4, 5]
    loop.turn()
    assert done == list(range(8))
    assert turns.waiting == 0
    while loop.turn():
        pass


def test_nobody_overtakes_those_who_wait() -> None:
    loop = Loop()
    turns = Turns(loop, 2)  # type: ignore[arg-type]
    done: list[str] = []
    assert turns.take()
    assert turns.take()
    assert not turns.take()
    turns.wait(lambda: done.append("first"))
    turns.wait(lambda: turns.do(lambda: done.append("third")))
    turns.wait(lambda: done.append("second"))
    loop.turn()
    assert done == ["first"]
    assert not turns.take()
    loop.turn()
    assert done == ["first", "second", "third"]


def test_a_loop_with_little_to_do_is_not_woken() -> None:
    loop = Loop()
    turns = Turns(loop, 3)  # type: ignore[arg-type]
    assert turns.take()
    assert turns.take()
    assert not loop.turn()
    assert turns.take()
    assert loop.turn()
    assert turns.take()


def test_a_turn_ends_when_its_budget_is_used_up() -> None:
    loop = Loop()
    turns = Turns(loop, 100, budget_s=0.004)  # type: ignore[arg-type]
    done: list[int] = []

    def piece(number: int) -> Callable[[], None]:
        def run() -> None:
            done.append(number)
            turns.spend(0.003)

        return run

    for number in range(6):
        turns.do(piece(number))
    assert done == [0, 1]
    loop.turn()
    assert done == [0, 1, 2, 3]
    loop.turn()
    assert done == [0, 1, 2, 3, 4, 5]
    assert not turns.take()
    loop.turn()
    assert turns.take()
    assert turns.left_s == 0.004


def test_a_mistake_in_one_piece_does_not_keep_the_others() -> None:
    loop = Loop()
    turns = Turns(loop, 1)  # type: ignore[arg-type]
    done: list[int] = []
    assert turns.take()
    turns.wait(lambda: [][0])  # type: ignore[misc]
    turns.wait(lambda: done.append(1))
    with pytest.raises(IndexError):
        loop.turn()
    loop.turn()
    assert done == [1]
