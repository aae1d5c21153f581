"""Groups of members that share partitions: the cluster's own groups, planned by its coordinators.

Every member here is a member there.  The gateway tells the coordinator that it is alive for as long
as it is heard of, takes over what the coordinator plans for it, and gives up what it shall not read
any more at once: a change of its share is a new generation, and what comes under an older one is
refused.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final

from pentalog.broker.port import Fence
from pentalog.broker.shared_rosters import MEMBERS_TOTAL_MAX, NAME_CHARACTERS_MAX
from pentalog.broker.sourcing import MemberShare, RosterView, Share
from pentalog.clients.kafka import messages
from pentalog.cluster.changes import Changes
from pentalog.cluster.coordination import GROUP, Coordination
from pentalog.cluster.fleet import Fleet
from pentalog.cluster.refusals import check
from pentalog.cluster.steps import Steps, all_of, begin
from pentalog.cluster.topics import ClusterTopics
from pentalog.config import Config
from pentalog.model.errors import (
    BrokerError,
    GroupNotFound,
    InvalidGroup,
    Overloaded,
    StaleGeneration,
    TopicNotFound,
    UnknownMember,
)
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.runtime import Runtime, Timer

REGISTERED_MAX: Final = 10_000

_HEARTBEAT: Final = 68
_DESCRIBE: Final = 69
_JOINING: Final = 0
_LEAVING: Final = -1
_REBALANCE_MS: Final = 60_000
_INTERVAL_MS: Final = 3_000
_FRESH_MS: Final = 1_000
"""A member that was told of in this time need not be told of again because it is heard of."""
_SETTLE_TRIES: Final = 8
_SETTLE_PAUSE_MS: Final = 250
"""A coordinator may plan for several that join at once, a little later."""
_ASSIGNOR: Final = "range"
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MEMBER_ID: Final = re.compile(r".+-[0-9a-f]{12}")
_EXPELLED: Final = (
    ErrorCode.unknown_member_id,
    ErrorCode.fenced_member_epoch,
    ErrorCode.group_id_not_found,
)


class _Member:
    """A member of this gateway's."""

    __slots__ = (
        "beaten_ms",
        "beating",
        "epoch",
        "generation",
        "gone",
        "group",
        "interval_ms",
        "member_id",
        "name",
        "partitions",
        "seen_ms",
        "stale",
        "timer",
        "told",
        "topic",
        "waiting",
    )  # fmt: skip

    def __init__(self, group: str, topic: str, member_id: str, name: str, now_ms: int) -> None:
        self.group = group
        self.topic = topic
        self.member_id = member_id
        self.name = name
        self.seen_ms = now_ms
        self.beaten_ms = 0
        self.epoch = _JOINING
        self.generation = 0
        self.told = False
        """It knows its generation, so that another share needs another one."""
        self.partitions: tuple[int, ...] = ()
        self.stale = False
        """It was told that it missed a change, and has not come back since."""
        self.gone = False
        self.beating = False
        self.waiting: list[Later[None]] = []
        """Who wants to know what the next heartbeat says."""
        self.interval_ms = _INTERVAL_MS
        self.timer: Timer | None = None


class ClusterRosters:
    """Implements `sourcing.SharedRosters`."""

    def __init__(
        self,
        fleet: Fleet,
        topics: ClusterTopics,
        coordination: Coordination,
        runtime: Runtime,
        config: Config,
    ) -> None:
        self._fleet = fleet
        self._topics = topics
        self._coordination = coordination
        self._runtime = runtime
        self._session_ms = config.cursus_session_timeout_ms
        self._changes = Changes(fleet)
        self._members: dict[tuple[str, str], dict[str, _Member]] = {}
        """By group and topic, then by member id."""
        self._count = 0
        self._joined: dict[tuple[str, str, str], list[_Member]] = {}
        """Who has been let in under a name, and not been told yet."""
        self._registered: dict[tuple[str, str], None] = {}
        self._described: dict[str, tuple[float, dict[str, RosterView]]] = {}
        self._partitions: dict[str, int] = {}
        """Of the topics that are read, when they were last looked at."""
        self._closed = False
        topics.watch(self._topics_changed)

    # What members ask

    def register(self, group: str, topic: str) -> None:
        """Remembered here only: a cluster knows groups by their members and offsets."""
        _check_group(group)
        self._topics.get(topic)
        self._register(group, topic)

    def join(
        self, group: str, topic: str, name: str, *, generation: int | None = None
    ) -> tuple[Share, bool]:
        if generation is not None:
            return _share(self._member(group, topic, name, generation)), True
        _check_group(group)
        self._topics.get(topic)
        joined = self._joined.get((group, topic, name))
        if joined:
            member = joined.pop()
            if not joined:
                del self._joined[group, topic, name]
            return _share(member), False
        returning = self._returning(group, topic, name)
        if returning is None:
            raise UnknownMember(f"{name!r} was not let into group {group!r}: join it again")
        self._seen(returning)
        return _share(returning), True

    def sync(self, group: str, topic: str, member_id: str, generation: int) -> Share:
        return _share(self._member(group, topic, member_id, generation))

    def heartbeat(self, group: str, topic: str, member_id: str, generation: int) -> None:
        self._member(group, topic, member_id, generation)

    def check(self, group: str, topic: str, member_id: str, generation: int) -> Share:
        return _share(self._member(group, topic, member_id, generation))

    def leave(self, group: str, topic: str, name: str, *, generation: int | None = None) -> str:
        members = self._roster(group, topic)
        member = members.get(name)
        if member is None:
            named = [known for known in members.values() if known.name == name]
            if len(named) != 1:
                raise _unknown(group, name)
            member = named[0]
        if generation is not None and generation != member.generation:
            raise _stale(member, generation)
        self._drop(member)
        self._changes.ask(self._leave(member))
        return member.member_id

    def topics(self, group: str) -> Collection[str]:
        found = [topic for name, topic in (*self._members, *self._registered) if name == group]
        return {*found, *self._views(group)}

    def view(self, group: str, topic: str) -> RosterView:
        described = self._views(group).get(topic)
        if described is not None:
            return described
        members = self._members.get((group, topic), {})
        if not members and (group, topic) not in self._registered:
            raise _no_roster(group, topic)
        shares = [
            MemberShare(member.member_id, member.seen_ms, member.partitions)
            for _, member in sorted(members.items())
        ]
        generation = max((member.generation for member in members.values()), default=0)
        partitions = self._topics.get(topic).partitions
        return RosterView(group, topic, generation, partitions, shares, self._runtime.now_ms())

    def all(self) -> Sequence[tuple[str, str]]:
        return list({**dict.fromkeys(self._members), **self._registered})

    def settle(self) -> Later[None]:
        return self._changes.settle()

    # What the engine asks

    def fence(self, group: str, at: Collection[Partition]) -> Fence:
        """In whose name offsets of these partitions are committed; nobody's if nobody is here."""
        here: _Member | None = None
        for where in at:
            for member in self._members.get((group, where.topic), {}).values():
                here = here or member
                if where.index in member.partitions:
                    return Fence(member.member_id, member.epoch)
        return Fence() if here is None else Fence(here.member_id, here.epoch)

    def refresh(self, group: str) -> Steps[None]:
        """Let every member of a group here hear of the coordinator."""
        beats = [self._beat(member) for member in self._of(group)]
        yield all_of(beats)

    def let_in(self, group: str, topic: str, name: str) -> Later[None]:
        """Make ready what `join` will tell: a new member, unless it is one that comes back."""
        if (
            not 1 <= len(name) <= NAME_CHARACTERS_MAX
            or not 1 <= len(group) <= NAME_CHARACTERS_MAX
            or self._returning(group, topic, name) is not None
        ):
            return Later.now(None)
        try:
            self._topics.get(topic)
        except TopicNotFound:
            return Later.now(None)
        return begin(self._let_in(group, topic, name))

    def describe(self, group: str) -> Later[None]:
        """Learn who is in a group, at whichever gateway, for `topics` and `view`."""
        return begin(self._fleet.persist(lambda: self._describe(group)))

    def close(self) -> None:
        """Leave all groups, so that others need not wait for those who were here."""
        self._closed = True
        members = [member for roster in self._members.values() for member in roster.values()]
        for member in members:
            self._drop(member)
            begin(self._leave_once(member))

    # Members

    def _of(self, group: str) -> list[_Member]:
        return [
            member
            for (name, _), roster in self._members.items()
            if name == group
            for member in roster.values()
        ]

    def _register(self, group: str, topic: str) -> None:
        self._registered.pop((group, topic), None)
        self._registered[group, topic] = None
        if len(self._registered) > REGISTERED_MAX:
            del self._registered[next(iter(self._registered))]

    def _roster(self, group: str, topic: str) -> dict[str, _Member]:
        members = self._members.get((group, topic))
        if members is None and (group, topic) not in self._registered:
            raise _no_roster(group, topic)
        return members or {}

    def _member(self, group: str, topic: str, member_id: str, generation: int) -> _Member:
        member = self._roster(group, topic).get(member_id)
        if member is None:
            raise _unknown(group, member_id)
        if generation != member.generation:
            member.stale = True
            raise _stale(member, generation)
        self._seen(member)
        return member

    def _seen(self, member: _Member) -> None:
        member.seen_ms = self._runtime.now_ms()
        member.stale = False
        if member.seen_ms - member.beaten_ms >= _FRESH_MS:
            self._beat(member)

    def _returning(self, group: str, topic: str, name: str) -> _Member | None:
        """The member that comes back under this name, if it is one: as on a broker of its own."""
        members = self._members.get((group, topic), {})
        known = members.get(name)
        if known is not None:
            return known
        unique = _UUID.fullmatch(name) is not None
        for member in members.values():
            if member.name == name and (unique or member.stale or not member.partitions):
                return member
        return None

    def _let_in(self, group: str, topic: str, name: str) -> Steps[None]:
        if self._count >= MEMBERS_TOTAL_MAX:
            raise Overloaded(f"{MEMBERS_TOTAL_MAX} members are in groups already: use fewer")
        # Who comes from another gateway with the id it got there is the same member.
        comes_back = _MEMBER_ID.fullmatch(name) is not None
        member_id = name if comes_back else f"{name}-{uuid.uuid4().hex[:12]}"
        member = _Member(group, topic, member_id, name, self._runtime.now_ms())
        yield from self._fleet.persist(lambda: self._exchange(member))
        self._members.setdefault((group, topic), {})[member_id] = member
        self._register(group, topic)
        self._count += 1
        for _ in range(_SETTLE_TRIES):
            others = [other for other in self._of(group) if other is not member]
            # Those here give up at once what the new one shall have.
            yield all_of([self._beat(other) for other in others])
            yield self._beat(member)
            if member.partitions or member.gone:
                break
            yield self._fleet.sleep(_SETTLE_PAUSE_MS)
        self._joined.setdefault((group, topic, name), []).append(member)
        self._arm(member)

    def _drop(self, member: _Member) -> None:
        member.gone = True
        if member.timer is not None:
            member.timer.cancel()
        members = self._members.get((member.group, member.topic), {})
        if members.pop(member.member_id, None) is not None:
            self._count -= 1
        if not members:
            self._members.pop((member.group, member.topic), None)
        self._joined.pop((member.group, member.topic, member.name), None)

    def _topics_changed(self) -> None:
        """Who reads a topic that has grown shall hear of it; who reads one that is gone leaves."""
        for topic in {topic for _, topic in (*self._members, *self._registered)}:
            try:
                partitions = self._topics.get(topic).partitions
            except TopicNotFound:
                self._topic_deleted(topic)
                continue
            if self._partitions.get(topic) != partitions:
                self._partitions[topic] = partitions
                for member in self._reading(topic):
                    self._beat(member)

    def _reading(self, topic: str) -> list[_Member]:
        return [
            member
            for (_, name), roster in self._members.items()
            if name == topic
            for member in roster.values()
        ]

    def _topic_deleted(self, topic: str) -> None:
        for member in self._reading(topic):
            self._drop(member)
            begin(self._leave(member))
        for where in [where for where in self._registered if where[1] == topic]:
            del self._registered[where]
        self._partitions.pop(topic, None)

    # Heartbeats

    def _arm(self, member: _Member) -> None:
        if member.timer is not None:
            member.timer.cancel()
        if not member.gone and not self._closed:
            member.timer = self._runtime.after(member.interval_ms, lambda: self._due(member))

    def _due(self, member: _Member) -> None:
        if self._runtime.now_ms() - member.seen_ms >= self._session_ms:
            self._drop(member)
            begin(self._leave(member))
        else:
            self._arm(member)
            self._beat(member)

    def _beat(self, member: _Member) -> Later[None]:
        """Tell the coordinator of a member; ready when its word has been taken over."""
        later: Later[None] = Later()
        member.waiting.append(later)
        if not member.beating:
            member.beating = True
            begin(self._beat_until_heard(member))
        return later

    def _beat_until_heard(self, member: _Member) -> Steps[None]:
        while member.waiting:
            waiting, member.waiting = member.waiting, []
            try:
                if not member.gone:
                    yield from self._exchange(member)
            except BrokerError:
                pass  # tried again when it is due; until then the member keeps what it has
            for later in waiting:
                later.fill(None)
        member.beating = False

    def _exchange(self, member: _Member) -> Steps[None]:
        """Heartbeats until the coordinator knows that what it planned has been taken over."""
        while not member.gone:
            member.beaten_ms = self._runtime.now_ms()
            answer = yield from self._ask(member, member.epoch)
            if member.gone:
                return
            if answer.error_code in _EXPELLED and member.epoch != _JOINING:
                # Begin anew under the same id; what it had may be another's by now.
                member.epoch = _JOINING
                self._take(member, ())
                continue
            check(_doing(member), answer.error_code, answer.error_message)
            self._move_on(member, answer.member_epoch)
            member.interval_ms = int(answer.heartbeat_interval.total_seconds() * 1000)
            if answer.assignment is None or not self._take(
                member, self._planned(member, answer.assignment)
            ):
                return

    def _planned(self, member: _Member, assignment: Any) -> tuple[int, ...]:
        topic_id = self._topics.get(member.topic).topic_id
        return tuple(
            sorted(
                index
                for part in assignment.topic_partitions
                if part.topic_id == topic_id
                for index in part.partitions
            )
        )

    def _take(self, member: _Member, partitions: tuple[int, ...]) -> bool:
        """Is it another share than before?"""
        if partitions == member.partitions:
            return False
        member.partitions = partitions
        self._renew(member)
        return True

    def _move_on(self, member: _Member, epoch: int) -> None:
        if epoch != member.epoch:
            member.epoch = epoch
            self._renew(member)

    def _renew(self, member: _Member) -> None:
        """A new generation, the group's epoch if possible; the same one if nobody knows it yet."""
        least = member.generation + 1 if member.told else member.generation
        member.generation = max(least, member.epoch, 1)
        member.told = False

    def _ask(self, member: _Member, epoch: int) -> Steps[Any]:
        joining = epoch == _JOINING
        owned = []
        if member.partitions and not joining:
            topic_id = self._topics.get(member.topic).topic_id
            owned = [{"topic_id": topic_id, "partitions": member.partitions}]
        fields = {
            "group_id": member.group,
            "member_id": member.member_id,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": messages.ms(_REBALANCE_MS if joining else -1),
            "subscribed_topic_names": (member.topic,) if joining else None,
            "subscribed_topic_regex": None,
            "server_assignor": _ASSIGNOR if joining else None,
            "topic_partitions": owned,
        }
        return (yield from self._coordination.ask(GROUP, member.group, _HEARTBEAT, fields, _code))

    def _leave(self, member: _Member) -> Steps[None]:
        try:
            yield from self._fleet.persist(lambda: self._leave_once(member))
        finally:
            for other in self._of(member.group):
                self._beat(other)

    def _leave_once(self, member: _Member) -> Steps[None]:
        answer = yield from self._ask(member, _LEAVING)
        if answer.error_code not in _EXPELLED:
            check(_doing(member), answer.error_code, answer.error_message)

    # Everybody, at whichever gateway

    def _views(self, group: str) -> dict[str, RosterView]:
        described = self._described.get(group)
        if described is None or described[0] < self._runtime.monotonic():
            return {}
        return described[1]

    def _describe(self, group: str) -> Steps[None]:
        fields = {"group_ids": (group,), "include_authorized_operations": False}

        def code(answer: Any) -> ErrorCode:
            found: ErrorCode = answer.groups[0].error_code
            return found

        self._described.pop(group, None)
        answer = yield from self._coordination.ask(GROUP, group, _DESCRIBE, fields, code)
        (found,) = answer.groups
        if found.error_code is ErrorCode.group_id_not_found:
            return
        check(f"asking for the members of group {group!r}", found.error_code)
        now_ms = self._runtime.now_ms()
        views: dict[str, RosterView] = {}
        for topic in {name for member in found.members for name in member.subscribed_topic_names}:
            shares = [
                MemberShare(member.member_id, self._seen_ms(group, topic, member, now_ms), share)
                for member in sorted(found.members, key=lambda one: str(one.member_id))
                for share in [_share_of(member, topic)]
                if topic in member.subscribed_topic_names
            ]
            try:
                partitions = self._topics.get(topic).partitions
            except TopicNotFound:
                continue
            views[topic] = RosterView(group, topic, found.group_epoch, partitions, shares, now_ms)
        if len(self._described) >= REGISTERED_MAX:
            self._described.clear()
        self._described[group] = (self._runtime.monotonic() + _FRESH_MS / 1000, views)

    def _seen_ms(self, group: str, topic: str, member: Any, now_ms: int) -> int:
        """Others' members were heard of when their gateways last said so: now, as far as told."""
        here = self._members.get((group, topic), {}).get(member.member_id)
        return now_ms if here is None else here.seen_ms


def _code(answer: Any) -> ErrorCode:
    code: ErrorCode = answer.error_code
    return code


def _share(member: _Member) -> Share:
    member.told = True
    return Share(member.member_id, member.generation, member.partitions)


def _share_of(member: Any, topic: str) -> tuple[int, ...]:
    return tuple(
        sorted(
            index
            for part in member.assignment.topic_partitions
            if part.topic_name == topic
            for index in part.partitions
        )
    )


def _doing(member: _Member) -> str:
    return f"telling the cluster of member {member.member_id!r} of group {member.group!r}"


def _check_group(group: str) -> None:
    if not 1 <= len(group) <= NAME_CHARACTERS_MAX:
        raise InvalidGroup(
            f"a group's name of {len(group)} characters; accepted are 1 to {NAME_CHARACTERS_MAX}"
        )


def _no_roster(group: str, topic: str) -> GroupNotFound:
    return GroupNotFound(
        f"group {group!r} does not read topic {topic!r} at this gateway: join it first"
    )


def _unknown(group: str, member_id: str) -> UnknownMember:
    return UnknownMember(f"group {group!r} has no member {member_id!r} here: join it again")


def _stale(member: _Member, generation: int) -> StaleGeneration:
    return StaleGeneration(
        f"generation {generation} of group {member.group!r} is over, "
        f"it is at {member.generation}: join it again"
    )
