"""Making the plan of a group: at once if that is little work, else some of it per turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from pentalog.broker.planning import Planning
from pentalog.runtime import Runtime, Turns

WORK_PER_TURN: Final = 5_000
"""Topics looked at, of each member, before others get their turn: a few milliseconds."""
_LIGHT_WORK: Final = 2_000


class Drafting:
    """Works on the plan of one group; members whose answers depend on it wait here.

    Who comes while a plan is being made waits for the next one, together with all others who do:
    when hundreds of members join at once, a few plans are made, not hundreds.
    """

    def __init__(self, planning: Planning, runtime: Runtime, turns: Turns) -> None:
        self._planning = planning
        self._runtime = runtime
        self._turns = turns
        self._steps: Iterator[int] | None = None
        self._waiting: list[Callable[[], None]] = []
        """For the plan that is being made."""
        self._next: list[Callable[[], None]] = []
        """For the one after it."""

    def catch_up(self) -> bool:
        """Bring the plan up to date; False if that takes more turns, and is begun."""
        if self._steps is None:
            if not self._planning.behind:
                return True
            if self._planning.work <= _LIGHT_WORK:
                self._planning.catch_up()
                return True
            self._begin()
        return False

    def wait(self, run: Callable[[], None]) -> None:
        """Have `run` called when there is a plan that knows of all that is known now."""
        self._next.append(run)

    def close(self) -> None:
        """The group is no more: whoever waits is called, and finds that."""
        self._steps = None
        waiting, self._waiting, self._next = self._waiting + self._next, [], []
        for run in waiting:
            run()

    def _begin(self) -> None:
        # In the next turn: those who come in this one share the plan.
        self._steps = self._planning.steps()
        self._runtime.soon(self._start)

    def _start(self) -> None:
        self._waiting, self._next = self._next, []
        self._go_on()

    def _go_on(self) -> None:
        steps = self._steps
        if steps is None:
            return
        done = 0
        for work in steps:
            done += work
            if done >= WORK_PER_TURN:
                self._runtime.soon(self._go_on)
                return
        self._steps = None
        waiting, self._waiting = self._waiting, []
        if self._next and self._planning.behind:
            self._begin()
        else:
            waiting += self._next
            self._next = []
        for run in waiting:
            self._turns.do(run)
