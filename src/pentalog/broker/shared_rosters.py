"""Groups whose partitions are shared out at once, without a barrier: one roster per (group, topic).

A change of members makes a new generation in the turn it happens; the others learn of it when they
next ask for something.  Members live in memory: after a restart they are strangers, and join again.
"""

from __future__ import annotations

import re
import uuid
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pentalog.broker.port import Topic, Topics
from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.broker.sourcing import MemberShare, RosterView, Share
from pentalog.broker.state import State
from pentalog.config import Config
from pentalog.model.errors import (
    GroupFull,
    GroupNotFound,
    InvalidGroup,
    StaleGeneration,
    UnknownMember,
)
from pentalog.model.later import Later
from pentalog.runtime import Runtime, Timer

ROSTERS_MAX: Final = 100_000
MEMBERS_MAX: Final = 10_000
"""Of one roster; more than that cannot all get a partition of a topic anyway."""
MEMBERS_TOTAL_MAX: Final = 100_000
NAME_CHARACTERS_MAX: Final = 1_000

_SWEEPS_PER_TIMEOUT: Final = 4
_SWEPT_PER_TURN: Final = 500
_NAMESAKES_MAX: Final = 100
"""Members of one name that are looked at for one that missed a change."""
_IDLE_CHECK_S: Final = 60.0
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(slots=True, eq=False)
class _Member:
    member_id: str
    name: str
    owner: str
    seen_ms: int
    seen_s: float
    """The same moment by the monotonic clock: timeouts do not follow a clock that is set."""
    stale: bool = False
    """It was told that it missed a change, and has not come back since."""


@dataclass(slots=True, eq=False)
class _Roster:
    """Members and, by the place of each among their sorted ids, its neighbouring partitions."""

    group: str
    topic: str
    owner: str
    generation: int
    changed_ms: int
    partitions: int = 0
    members: dict[str, _Member] = field(default_factory=dict)
    by_name: dict[str, dict[str, None]] = field(default_factory=dict)
    """Ids of members by the name that their client gave."""
    order: list[str] = field(default_factory=list)
    """Their ids, sorted."""

    def add(self, member: _Member) -> None:
        self.members[member.member_id] = member
        self.by_name.setdefault(member.name, {})[member.member_id] = None
        insort(self.order, member.member_id)

    def remove(self, member: _Member) -> None:
        del self.members[member.member_id]
        ids = self.by_name[member.name]
        del ids[member.member_id]
        if not ids:
            del self.by_name[member.name]
        del self.order[bisect_left(self.order, member.member_id)]

    def share(self, member_id: str) -> range:
        """Return the partitions of a member; the first members may have one more than others."""
        return self.share_at(bisect_left(self.order, member_id))

    def share_at(self, place: int) -> range:
        """Return the partitions of the member at a place of the order."""
        least, more = divmod(self.partitions, len(self.order))
        start = place * least + min(place, more)
        return range(start, start + least + (place < more))


class LocalSharedRosters:
    """Implements `sourcing.SharedRosters`."""

    def __init__(self, state: State, runtime: Runtime, topics: Topics, config: Config) -> None:
        self._state = state
        self._runtime = runtime
        self._topics = topics
        self._timeout_ms = config.cursus_session_timeout_ms
        self._rosters: dict[tuple[str, str], _Roster] = {}
        self._by_group: dict[str, dict[str, None]] = {}
        self._by_topic: dict[str, dict[str, None]] = {}
        share_percent = config.principal_share_percent
        self._owned = PrincipalLimits(
            "groups that read topics", ROSTERS_MAX, share_percent=share_percent
        )
        """Rosters; those of an earlier life of the broker count for the total only."""
        self._joined = PrincipalLimits(
            "members of groups", MEMBERS_TOTAL_MAX, share_percent=share_percent
        )
        self._by_age: OrderedDict[_Member, _Roster] = OrderedDict()
        """All members, the one that was silent for longest first."""
        self._timer: Timer | None = None
        self._closed = False
        self._idle_checked_s = -_IDLE_CHECK_S
        self._idle_ms = config.offsets_retention_minutes * 60_000

    def open(self) -> None:
        for group, topic, generation, changed_ms in self._state.rows(
            "SELECT grp, topic, generation, changed_ms FROM shared_rosters"
        ):
            self._add(_Roster(group, topic, "", generation, changed_ms))

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def topic_deleted(self, topic: Topic) -> None:
        """To be called in the turn of the deletion: nobody reads it any more."""
        for group in list(self._by_topic.get(topic.name, ())):
            self._drop(group, topic.name)
        self._state.write("DELETE FROM shared_rosters WHERE topic = ?", topic.name)

    def reads(self, group: str, topic: str) -> bool:
        """Has the group members that read this topic?"""
        roster = self._rosters.get((group, topic))
        return roster is not None and bool(roster.members)

    def register(self, group: str, topic: str, owner: str = "") -> None:
        self._made(group, topic, owner)

    def join(
        self,
        group: str,
        topic: str,
        name: str,
        *,
        generation: int | None = None,
        owner: str = "",
    ) -> tuple[Share, bool]:
        if generation is not None:
            roster = self._found(group, topic)
            self._replan_if_grown(roster)
            return self._share(roster, self._member(roster, name, generation)), True
        if not 1 <= len(name) <= NAME_CHARACTERS_MAX:
            raise UnknownMember(
                f"a member's name of {len(name)} characters; 1 to 1000 are accepted"
            )
        roster = self._made(group, topic, owner)
        known = _returning(roster, name)
        if known is not None:
            self._seen(known)
            self._replan_if_grown(roster)
            return self._share(roster, known), True
        self._check_members(roster, owner)
        now_ms, now_s = self._runtime.now_ms(), self._runtime.monotonic()
        member = _Member(f"{name}-{uuid.uuid4().hex[:12]}", name, owner, now_ms, now_s)
        roster.add(member)
        self._by_age[member] = roster
        self._joined.add(owner)
        self._plan(roster)
        self._arm()
        return self._share(roster, member), False

    def _check_members(self, roster: _Roster, owner: str) -> None:
        self._joined.check(owner)
        if len(roster.members) >= MEMBERS_MAX:
            raise GroupFull(
                f"group {roster.group!r} has {MEMBERS_MAX} members of topic {roster.topic!r} "
                "already: use fewer"
            )

    def sync(self, group: str, topic: str, member_id: str, generation: int) -> Share:
        roster = self._found(group, topic)
        self._replan_if_grown(roster)
        return self._share(roster, self._member(roster, member_id, generation))

    def heartbeat(self, group: str, topic: str, member_id: str, generation: int) -> None:
        self.sync(group, topic, member_id, generation)

    def leave(self, group: str, topic: str, name: str, *, generation: int | None = None) -> str:
        roster = self._found(group, topic)
        member = roster.members.get(name)
        if member is None:
            named = list(roster.by_name.get(name, ()))
            if len(named) != 1:
                raise _unknown(roster, name)
            member = roster.members[named[0]]
        if generation is not None and generation != roster.generation:
            raise _stale(roster, generation)
        self._remove(roster, member)
        self._plan(roster)
        return member.member_id

    def leave_elsewhere(self, group: str, topic: str, member_id: str) -> Later[bool]:
        return Later.now(False)

    def check(self, group: str, topic: str, member_id: str, generation: int) -> Share:
        roster = self._found(group, topic)
        return self._share(roster, self._member(roster, member_id, generation))

    def topics(self, group: str) -> Collection[str]:
        return self._by_group.get(group, {}).keys()

    def view(self, group: str, topic: str) -> RosterView:
        roster = self._found(group, topic)
        members = [
            MemberShare(member_id, roster.members[member_id].seen_ms, roster.share_at(place))
            for place, member_id in enumerate(roster.order)
        ]
        partitions = self._topics.get(topic).partitions
        return RosterView(group, topic, roster.generation, partitions, members, roster.changed_ms)

    def all(self) -> Sequence[tuple[str, str]]:
        return list(self._rosters)

    def settle(self) -> Later[None]:
        return self._state.settle()

    def _found(self, group: str, topic: str) -> _Roster:
        roster = self._rosters.get((group, topic))
        if roster is None:
            raise GroupNotFound(f"group {group!r} does not read topic {topic!r}: join it first")
        return roster

    def _made(self, group: str, topic: str, owner: str) -> _Roster:
        roster = self._rosters.get((group, topic))
        if roster is not None:
            return roster
        if not 1 <= len(group) <= NAME_CHARACTERS_MAX:
            raise InvalidGroup(
                f"a group's name of {len(group)} characters; accepted are "
                f"1 to {NAME_CHARACTERS_MAX}"
            )
        self._topics.get(topic)
        if len(self._rosters) >= ROSTERS_MAX:
            self._drop_idle()
        self._owned.check(owner)
        self._state.check()
        roster = _Roster(group, topic, owner, 0, self._runtime.now_ms())
        self._add(roster)
        self._write(roster)
        return roster

    def _add(self, roster: _Roster) -> None:
        self._rosters[roster.group, roster.topic] = roster
        self._by_group.setdefault(roster.group, {})[roster.topic] = None
        self._by_topic.setdefault(roster.topic, {})[roster.group] = None
        self._owned.add(roster.owner)

    def _drop(self, group: str, topic: str) -> None:
        roster = self._rosters.pop((group, topic))
        for member in roster.members.values():
            self._leave(member)
        self._owned.release(roster.owner)
        for names, name, other in (
            (self._by_group, group, topic),
            (self._by_topic, topic, group),
        ):
            del names[name][other]
            if not names[name]:
                del names[name]

    def _remove(self, roster: _Roster, member: _Member) -> None:
        roster.remove(member)
        self._leave(member)

    def _leave(self, member: _Member) -> None:
        del self._by_age[member]
        self._joined.release(member.owner)

    def _drop_idle(self) -> None:
        """Forget groups that nobody has been in for as long as offsets are kept."""
        now_s = self._runtime.monotonic()
        if now_s - self._idle_checked_s < _IDLE_CHECK_S:
            return
        self._idle_checked_s = now_s
        before_ms = self._runtime.now_ms() - self._idle_ms
        for where, roster in list(self._rosters.items()):
            if not roster.members and roster.changed_ms < before_ms:
                self._drop(*where)
                self._state.write("DELETE FROM shared_rosters WHERE grp = ? AND topic = ?", *where)

    def _member(self, roster: _Roster, member_id: str, generation: int) -> _Member:
        member = roster.members.get(member_id)
        if member is None:
            raise _unknown(roster, member_id)
        if generation != roster.generation:
            member.stale = True
            raise _stale(roster, generation)
        self._seen(member)
        return member

    def _seen(self, member: _Member) -> None:
        member.seen_ms, member.seen_s = self._runtime.now_ms(), self._runtime.monotonic()
        member.stale = False
        self._by_age.move_to_end(member)

    def _share(self, roster: _Roster, member: _Member) -> Share:
        return Share(member.member_id, roster.generation, roster.share(member.member_id))

    def _replan_if_grown(self, roster: _Roster) -> None:
        if roster.members and self._topics.get(roster.topic).partitions != roster.partitions:
            self._plan(roster)

    def _plan(self, roster: _Roster) -> None:
        """Begin a generation: each member's share follows from who is there (`_Roster.share`)."""
        roster.generation += 1
        roster.changed_ms = self._runtime.now_ms()
        roster.partitions = self._topics.get(roster.topic).partitions
        self._write(roster)

    def _write(self, roster: _Roster) -> None:
        self._state.write(
            "INSERT OR REPLACE INTO shared_rosters VALUES (?, ?, ?, ?)",
            roster.group,
            roster.topic,
            roster.generation,
            roster.changed_ms,
        )

    def _arm(self) -> None:
        if self._timer is None and not self._closed:
            delay_ms = max(1, self._timeout_ms // _SWEEPS_PER_TIMEOUT)
            self._timer = self._runtime.after(delay_ms, self._sweep)

    def _sweep(self) -> None:
        """Remove members that have been silent for too long, a few hundred in one turn."""
        self._timer = None
        before_s = self._runtime.monotonic() - self._timeout_ms / 1000
        changed: dict[_Roster, None] = {}
        for _ in range(_SWEPT_PER_TURN):
            member, roster = next(iter(self._by_age.items()), (None, None))
            if member is None or roster is None or member.seen_s > before_s:
                break
            self._remove(roster, member)
            changed[roster] = None
        else:
            self._timer = self._runtime.after(1, self._sweep)
        for roster in changed:
            self._plan(roster)
        if self._by_age:
            self._arm()


def _returning(roster: _Roster, name: str) -> _Member | None:
    """The member that comes back under this name, if it is one.

    Released clients come back with their member id or with the name they first gave.  Such a name
    may also be that of a second process, unless it is unique by its make, or the member that had
    it is known to be looking for the group, or has nothing to lose.
    """
    known = roster.members.get(name)
    if known is not None:
        return known
    namesakes = roster.by_name.get(name, {})
    unique = _UUID.fullmatch(name) is not None
    for member_id in islice(namesakes, _NAMESAKES_MAX):
        member = roster.members[member_id]
        if unique or member.stale:
            return member
    # Ids begin with the name, and those at the end of the order are the ones without partitions.
    place = bisect_left(roster.order, f"{name}-g") - 1
    last = roster.order[place] if place >= 0 else ""
    return roster.members[last] if last in namesakes and not roster.share(last) else None


def _unknown(roster: _Roster, member_id: str) -> UnknownMember:
    return UnknownMember(f"group {roster.group!r} has no member {member_id!r}: join it again")


def _stale(roster: _Roster, generation: int) -> StaleGeneration:
    return StaleGeneration(
        f"generation {generation} of group {roster.group!r} is over, "
        f"it is at {roster.generation}: join it again",
        roster.generation,
    )
