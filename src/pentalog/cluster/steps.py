"""Conversations of several requests, written one line after the other without an event loop.

A generator yields every `Later` it has to wait for and is sent its value, or thrown its refusal.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from pentalog.model.errors import BrokerError
from pentalog.model.later import Later

T = TypeVar("T")
Steps: TypeAlias = Generator[Later[Any], Any, T]


def begin(steps: Steps[T]) -> Later[T]:
    """Run a conversation as far as it goes; the rest when what it waits for is there."""
    result: Later[T] = Later()
    _go_on(steps, result, None)
    return result


def _go_on(steps: Steps[T], result: Later[T], filled: Later[Any] | None) -> None:
    while True:
        try:
            if filled is None:
                awaited = next(steps)
            else:
                try:
                    value = filled.value
                except BrokerError as refusal:
                    awaited = steps.throw(refusal)
                else:
                    awaited = steps.send(value)
        except StopIteration as end:
            result.fill(end.value)
            return
        except BrokerError as refusal:
            result.refuse(refusal)
            return
        if not awaited.ready:
            awaited.then(lambda arrived: _go_on(steps, result, arrived))
            return
        filled = awaited


def first_of(laters: Sequence[Later[Any]]) -> Later[None]:
    """Ready when the first of them is, whatever came of it."""
    result: Later[None] = Later()

    def arrived(_: Later[Any]) -> None:
        if not result.ready:
            result.fill(None)

    for later in laters:
        later.then(arrived)
    return result


def all_of(laters: Sequence[Later[Any]]) -> Later[None]:
    """Ready when the last of them is; refused with what the first of them was refused with."""
    return begin(_each(laters))


def _each(laters: Sequence[Later[Any]]) -> Steps[None]:
    refusal: BrokerError | None = None
    for later in laters:
        try:
            yield later
        except BrokerError as refused:
            refusal = refusal or refused
    if refusal is not None:
        raise refusal
