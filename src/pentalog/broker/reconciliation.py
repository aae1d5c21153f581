"""How one member moves from the partitions it has to those it shall have.

Pure functions.  A member first gives up what it shall not have, and says so; then it comes to the
new epoch and gets what is free; what others still hold it gets when they have let go.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from pentalog.broker.assignors import Share

Held: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic, each with the epoch at which the member got it; no empty topics."""
Owned: TypeAlias = Mapping[UUID, frozenset[int]]
"""What a member says it reads at the moment."""

NONE_HELD: Final[Held] = {}


class Step(Enum):
    """Where a member is on its way."""

    STABLE = "stable"
    REVOKING = "revoking"
    """It was told to give up partitions and has not said yet that it did."""
    WAITING = "waiting"
    """It is at the newest epoch, but others still hold partitions meant for it."""


class Standing(NamedTuple):
    """What the broker knows of a member's progress."""

    epoch: int = 0
    epoch_before: int = -1
    """The one it had before; an answer may have been lost."""
    step: Step = Step.STABLE
    held: Held = NONE_HELD
    """What it may read."""
    revoking: Held = NONE_HELD
    """What it may not read any more but has not let go of."""


class Aim(NamedTuple):
    """Where a member shall get to."""

    epoch: int
    share: Share
    topics: Container[UUID]
    """The topics it is subscribed to now; a plan may be older than that."""


def advance(
    standing: Standing,
    aim: Aim,
    owned: Owned | None,
    free: Callable[[UUID, int], bool],
    *,
    resubscribed: bool = False,
) -> Standing:
    """The member's next standing; the very same object if nothing changes.

    `owned` is what the member said it reads, None if it said nothing.  `free` tells of a
    partition whether no other member holds it.
    """
    if standing.step is Step.STABLE and standing.epoch == aim.epoch:
        return _narrowed(standing, aim, owned) if resubscribed else standing
    if standing.step is Step.REVOKING and still_owns(owned, standing.revoking):
        return _narrowed(standing, aim, owned) if resubscribed else standing
    held, revoking, wanted, waiting = _compared(standing, aim, free)
    if revoking and still_owns(owned, revoking):
        after = standing._replace(step=Step.REVOKING, held=held, revoking=revoking)
    else:
        for topic, indexes in wanted.items():
            held[topic] = {**held.get(topic, {}), **dict.fromkeys(indexes, aim.epoch)}
        step = Step.WAITING if waiting else Step.STABLE
        before = standing.epoch if aim.epoch != standing.epoch else standing.epoch_before
        after = Standing(aim.epoch, before, step, held)
    return standing if after == standing else after


def still_owns(owned: Owned | None, revoking: Held) -> bool:
    """Does the member still read any of these?  One that says nothing may."""
    if owned is None:
        return True
    return any(not indexes.isdisjoint(revoking.get(topic, ())) for topic, indexes in owned.items())


def within(owned: Owned | None, held: Held) -> bool:
    """Does the member say that it reads only what it holds?"""
    if owned is None:
        return False
    return all(indexes <= held.get(topic, {}).keys() for topic, indexes in owned.items())


def _compared(
    standing: Standing, aim: Aim, free: Callable[[UUID, int], bool]
) -> tuple[
    dict[UUID, Mapping[int, int]], dict[UUID, Mapping[int, int]], dict[UUID, set[int]], bool
]:
    held: dict[UUID, Mapping[int, int]] = {}
    revoking: dict[UUID, Mapping[int, int]] = {}
    wanted: dict[UUID, set[int]] = {}
    waiting = False
    for topic in aim.share.keys() | standing.held.keys():
        shall: frozenset[int] = aim.share.get(topic, frozenset())
        if topic not in aim.topics:
            shall = frozenset()
        has = standing.held.get(topic, {})
        keeps = {index: epoch for index, epoch in has.items() if index in shall}
        if keeps:
            held[topic] = keeps
        if len(keeps) < len(has):
            revoking[topic] = {i: epoch for i, epoch in has.items() if i not in shall}
        missing = shall - keeps.keys()
        ready = {index for index in missing if free(topic, index)}
        if ready:
            wanted[topic] = ready
        waiting = waiting or len(ready) < len(missing)
    return held, revoking, wanted, waiting


def _narrowed(standing: Standing, aim: Aim, owned: Owned | None) -> Standing:
    """Take away at once what the member has unsubscribed from, without waiting for a plan."""
    dropped = {topic: has for topic, has in standing.held.items() if topic not in aim.topics}
    if not dropped:
        return standing
    held = {topic: has for topic, has in standing.held.items() if topic not in dropped}
    revoking = dict(standing.revoking)
    for topic, has in dropped.items():
        revoking[topic] = {**revoking.get(topic, {}), **has}
    if still_owns(owned, revoking):
        return standing._replace(step=Step.REVOKING, held=held, revoking=revoking)
    return standing._replace(held=held)
