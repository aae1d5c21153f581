"""A value that may already be there.

The local log fills most of them before it returns, so the hot path neither awaits nor makes a
task: a session asks `ready` first and otherwise leaves its place in the reply queue to be filled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from pentalog.model.errors import BrokerError

T = TypeVar("T")


class Later(Generic[T]):
    """Filled once, by a value or by a refusal.  Knows no event loop."""

    __slots__ = ("_refusal", "_runs", "_value", "ready")

    def __init__(self) -> None:
        self.ready = False
        self._value: T | None = None
        self._refusal: BrokerError | None = None
        self._runs: list[Callable[[Later[T]], None]] | None = None

    @classmethod
    def now(cls, value: T) -> Later[T]:
        later = cls()
        later.ready = True
        later._value = value
        return later

    @property
    def value(self) -> T:
        """The value; raises the refusal, if that is what came."""
        assert self.ready, "asked before it was there"
        if self._refusal is not None:
            raise self._refusal
        return self._value  # type: ignore[return-value]  # filled by now, and None may be a T

    def check(self) -> None:
        """Raise the refusal, if that is what came."""
        assert self.ready, "asked before it was there"
        if self._refusal is not None:
            raise self._refusal

    def fill(self, value: T) -> None:
        self._value = value
        self._done()

    def refuse(self, refusal: BrokerError) -> None:
        self._refusal = refusal
        self._done()

    def then(self, run: Callable[[Later[T]], None]) -> None:
        """Call `run` with this when it is there: at once if it already is."""
        if self.ready:
            run(self)
        elif self._runs is None:
            self._runs = [run]
        else:
            self._runs.append(run)

    def _done(self) -> None:
        assert not self.ready, "filled twice"
        self.ready = True
        runs, self._runs = self._runs, None
        mistakes: list[Exception] = []
        for run in runs or ():
            try:
                run(self)
            except Exception as mistake:  # the others must hear of it all the same
                mistakes.append(mistake)
        if mistakes:
            raise mistakes[0]


def all_of(asked: Sequence[Later[Any]]) -> Later[None]:
    """Ready when all of them are; refused with what one of them was refused with."""
    if not asked:
        return Later.now(None)
    left = len(asked)
    result: Later[None] = Later()

    def arrived(_: Later[Any]) -> None:
        nonlocal left
        left -= 1
        if left:
            return
        try:
            for later in asked:
                later.check()
        except BrokerError as refusal:
            result.refuse(refusal)
        else:
            result.fill(None)

    for later in asked:
        later.then(arrived)
    return result
