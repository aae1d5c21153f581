"""Plans for consumers that leave planning to the broker: who reads which partition.

Pure functions.  An assignor is given the members, the partitions of the topics they subscribed to
and the plan before this one; it gives each partition of a subscribed topic to exactly one member.
It works in steps, and yields how much it has done since the last one, so that the plan of a large
group can be made over several turns; `whole` does them all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

Share: TypeAlias = Mapping[UUID, frozenset[int]]
"""The partitions one member reads, by topic; no empty sets."""
Plan: TypeAlias = Mapping[str, Share]
"""The shares of all members, by member id."""

NOTHING: Final[Share] = {}
_MOVES_PER_PARTITION: Final = 2
"""Bounds the search for a better balance where members subscribed to different topics."""
_TOPIC_WORK: Final = 20
"""What a topic costs, whoever reads it, beside one for each member or partition looked at."""


class Planned(NamedTuple):
    """A member as an assignor sees it."""

    topics: frozenset[UUID]
    """Only topics that exist."""
    instance_id: str | None = None


Steps: TypeAlias = Generator[int, None, Plan]
Assignor: TypeAlias = Callable[[Mapping[str, Planned], Mapping[UUID, int], Plan], Steps]


def whole(steps: Steps) -> Plan:
    """Do all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            plan: Plan = end.value
            return plan


def ranges(members: Mapping[str, Planned], partitions: Mapping[UUID, int], before: Plan) -> Steps:
    """Neighbouring partitions together, topics of the same size split in the same way.

    `before` is not asked: the order of members alone decides, static members by their instance.
    """
    order = sorted(members, key=lambda member_id: _seat(member_id, members[member_id]))
    shares: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in order}
    readers_of = yield from _readers(members, order)
    for topic in sorted(partitions.keys() & set().union(*_subscriptions(members))):
        readers = readers_of[topic.int]
        count, more = divmod(partitions[topic], len(readers))
        start = 0
        for number, member_id in enumerate(readers):
            end = start + count + (number < more)
            if end == start:
                break
            shares[member_id][topic] = frozenset(range(start, end))
            start = end
        yield _TOPIC_WORK + min(partitions[topic], len(readers))
    return shares


def uniform(members: Mapping[str, Planned], partitions: Mapping[UUID, int], before: Plan) -> Steps:
    """As many partitions for one as for the other, and as few as possible change hands."""
    if not members:
        return {}
    order = sorted(members, key=lambda member_id: _seat(member_id, members[member_id]))
    held, free = yield from _kept(members, partitions, before, order)
    if len(_subscriptions(members)) == 1:
        _level(held, free, order)
    else:
        yield from _balance(held, free, members, order)
    return {member_id: _share(held[member_id]) for member_id in members}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": ranges}
"""By the names clients ask for; the first one is used where nobody asks."""

_Place: TypeAlias = tuple[UUID, int]


def _seat(member_id: str, planned: Planned) -> tuple[bool, str]:
    """Static members first, by the name that survives their restarts."""
    if planned.instance_id is None:
        return True, member_id
    return False, planned.instance_id


def _subscriptions(members: Mapping[str, Planned]) -> set[frozenset[UUID]]:
    return {each.topics for each in members.values()}


def _readers(
    members: Mapping[str, Planned], order: Iterable[str]
) -> Generator[int, None, dict[int, list[str]]]:
    """Who subscribed to each topic, in order.  The lists may be shared.

    By the number of the id, whose hash is much cheaper than that of the id itself.
    """
    alike = _subscriptions(members)
    if len(alike) == 1:
        everybody = list(order)
        return {topic.int: everybody for topic in alike.pop()}
    readers: dict[int, list[str]] = {}
    for member_id in order:
        topics = members[member_id].topics
        for topic in topics:
            known = readers.get(topic.int)
            if known is None:
                readers[topic.int] = [member_id]
            else:
                known.append(member_id)
        yield len(topics)
    return readers


def _share(places: Collection[_Place]) -> Share:
    share: dict[UUID, list[int]] = {}
    for topic, index in places:
        share.setdefault(topic, []).append(index)
    return {topic: frozenset(indexes) for topic, indexes in share.items()}


def _kept(
    members: Mapping[str, Planned],
    partitions: Mapping[UUID, int],
    before: Plan,
    order: Iterable[str],
) -> Generator[int, None, tuple[dict[str, list[_Place]], list[_Place]]]:
    """What each member may keep of the plan before, and what is nobody's."""
    wanted: set[UUID] = set()
    wanted.update(*{planned.topics for planned in members.values()})
    left: dict[UUID, set[int]] = {}
    for topic in sorted(wanted):
        left[topic] = set(range(partitions[topic]))
        yield _TOPIC_WORK + partitions[topic]
    held: dict[str, list[_Place]] = {}
    for member_id in order:
        mine = held[member_id] = []
        topics = members[member_id].topics
        for topic, indexes in before.get(member_id, NOTHING).items():
            if topic in topics:
                kept = indexes & left[topic]
                left[topic] -= kept
                mine += [(topic, index) for index in sorted(kept)]
                yield _TOPIC_WORK + len(kept)
    free = [(topic, index) for topic, indexes in left.items() for index in sorted(indexes)]
    return held, free


def _level(held: dict[str, list[_Place]], free: list[_Place], order: list[str]) -> None:
    """Everybody may read everything: cut to the quota, then fill up to it."""
    total = len(free) + sum(map(len, held.values()))
    quota, more = divmod(total, len(order))
    # Those who hold most keep the odd ones, so nothing moves that need not.
    for member_id in sorted(order, key=lambda member_id: -len(held[member_id])):
        mine = held[member_id]
        allowed = quota
        if more and len(mine) > quota:
            allowed += 1
            more -= 1
        free += mine[allowed:]
        del mine[allowed:]
    free.reverse()
    for member_id in order:
        mine = held[member_id]
        while len(mine) < quota:
            mine.append(free.pop())
    for member_id in order:
        if not free:
            break
        if len(held[member_id]) == quota:
            held[member_id].append(free.pop())


def _balance(
    held: dict[str, list[_Place]],
    free: list[_Place],
    members: Mapping[str, Planned],
    order: list[str],
) -> Generator[int, None, None]:
    """Members read different topics: free partitions to the least busy, then move some."""
    readers = yield from _readers(members, order)
    by_topic: dict[UUID, list[_Place]] = {}
    for place in free:
        by_topic.setdefault(place[0], []).append(place)
    # Topics with few readers first: those with many can still even things out.
    for topic in sorted(by_topic, key=lambda topic: (len(readers[topic.int]), topic)):
        heap = [(len(held[member_id]), member_id) for member_id in readers[topic.int]]
        heapq.heapify(heap)
        for place in by_topic[topic]:
            load, member_id = heap[0]
            held[member_id].append(place)
            heapq.heapreplace(heap, (load + 1, member_id))
        yield _TOPIC_WORK + len(heap) + len(by_topic[topic])
    owned = {member_id: _by_topic(places) for member_id, places in held.items()}
    loads = {member_id: len(places) for member_id, places in held.items()}
    holders: dict[UUID, set[str]] = {}
    for member_id, topics in owned.items():
        for topic in topics:
            holders.setdefault(topic, set()).add(member_id)
    moves = _MOVES_PER_PARTITION * sum(loads.values())
    yield len(loads) + sum(loads.values())
    moved = True
    while moved and moves > 0:
        moved = False
        # Moving never makes anybody less busy than the least busy one is.
        idlest = min(loads.values())
        for topic, givers in holders.items():
            if max(loads[member_id] for member_id in givers) - idlest < 2:
                yield _TOPIC_WORK
                continue
            interested = readers[topic.int]
            done = _even_out(topic, interested, owned, loads)
            holders[topic] = {one for one in interested if owned[one].get(topic)}
            moves -= done
            moved = moved or done > 0
            yield _TOPIC_WORK + len(interested)
    for member_id, topics in owned.items():
        held[member_id] = [(topic, index) for topic, indexes in topics.items() for index in indexes]


def _by_topic(places: Iterable[_Place]) -> dict[UUID, list[int]]:
    topics: dict[UUID, list[int]] = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(index)
    return topics


def _even_out(
    topic: UUID,
    interested: list[str],
    owned: dict[str, dict[UUID, list[int]]],
    loads: dict[str, int],
) -> int:
    """Move partitions of one topic from busy readers to idle ones; returns how many."""
    givers = [member_id for member_id in interested if owned[member_id].get(topic)]
    if not givers:
        return 0
    idlest = min(loads[member_id] for member_id in interested)
    if max(loads[member_id] for member_id in givers) - idlest < 2:
        return 0
    takers = [(loads[member_id], member_id) for member_id in interested]
    heapq.heapify(takers)
    busiest = [(-loads[member_id], member_id) for member_id in givers]
    heapq.heapify(busiest)
    moved = 0
    while busiest:
        load, giver = busiest[0]
        if -load != loads[giver] or not owned[giver][topic]:
            heapq.heappop(busiest)
            if owned[giver][topic]:
                heapq.heappush(busiest, (-loads[giver], giver))
            continue
        taker_load, taker = takers[0]
        if taker_load != loads[taker]:
            heapq.heapreplace(takers, (loads[taker], taker))
            continue
        if loads[giver] - taker_load < 2:
            break
        owned[taker].setdefault(topic, []).append(owned[giver][topic].pop())
        loads[giver] -= 1
        loads[taker] += 1
        moved += 1
    return moved
