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
from typing import Final

from pentalog.broker.port import Fence, Topic
from pentalog.broker.shared_rosters import MEMBERS_TOTAL_MAX, NAME_CHARACTERS_MAX
from pentalog.broker.sourcing import MemberShare, RosterView, Share
from pentalog.cluster.changes import Changes
from pentalog.cluster.coordination import Coordination
from pentalog.cluster.fleet import Fleet
from pentalog.cluster.heartbeats import Heartbeats, Member, given_out, sealed
from pentalog.cluster.registrations import REGISTERED_MAX, Registrations
from pentalog.cluster.roster_views import RosterViews
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
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.runtime import Runtime

_FRESH_MS: Final = 1_000
"""A member that was told of in this time need not be told of again because it is heard of."""
_SETTLE_TRIES: Final = 8
_SETTLE_PAUSE_MS: Final = 250
"""A coordinator may plan for several that join at once, a little later."""
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class ClusterRosters:
    """Implements `sourcing.SharedRosters`."""

    def __init__(
        self,
        fleet: Fleet,
        topics: ClusterTopics,
        coordination: Coordination,
        registrations: Registrations,
        runtime: Runtime,
        config: Config,
    ) -> None:
        self._fleet = fleet
        self._topics = topics
        self._runtime = runtime
        self._session_ms = config.cursus_session_timeout_ms
        self._changes = Changes(fleet)
        self._members: dict[tuple[str, str], dict[str, Member]] = {}
        """By group and topic, then by member id."""
        self._count = 0
        self._joined: dict[tuple[str, str, str], list[Member]] = {}
        """Who has been let in under a name, and not been told yet."""
        self._registrations = registrations
        self._counted_from: dict[tuple[str, str], int] = {}
        """Epochs of groups, one for all their topics, before anybody read a topic."""
        self._heartbeats = Heartbeats(topics, coordination, runtime)
        self._views = RosterViews(topics, coordination, runtime)
        self._partitions: dict[str, int] = {}
        """Of the topics that are read, when they were last looked at."""
        self._closed = False
        topics.watch(self._topics_changed)
        topics.gone.append(self._topic_gone)
        topics.deleted.append(self._topic_deleted)

    # What members ask

    def register(self, group: str, topic: str, owner: str = "") -> None:
        _check_group(group)
        self._topics.get(topic)
        self._changes.wait_for(self._registrations.add(group, topic))

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

    def leave_elsewhere(self, group: str, topic: str, member_id: str) -> Later[bool]:
        """Its gateway may be dead, and the cluster waits for it."""
        if not given_out(member_id):
            return Later.now(False)
        return begin(self._leave(self._new_member(group, topic, member_id, member_id)))

    def topics(self, group: str) -> Collection[str]:
        found = {topic for name, topic in self._members if name == group}
        found.update(known.topic for known in self._registrations.of(group))
        return {*found, *self._views.of(group)}

    def view(self, group: str, topic: str) -> RosterView:
        members = self._members.get((group, topic), {})
        described = self._views.of(group).get(topic)
        if described is not None:
            counted = described.generation - self._counted_from.get((group, topic), 0)
            here = [member.generation for member in members.values()]
            return described._replace(generation=max(counted, *here, 1))
        registered = self._registrations.find(group, topic)
        if not members and registered is None:
            raise _no_roster(group, topic)
        shares = [
            MemberShare(member.member_id, member.seen_ms, member.partitions)
            for _, member in sorted(members.items())
        ]
        generation = max((member.generation for member in members.values()), default=0)
        partitions = self._topics.get(topic).partitions
        changed_ms = self._runtime.now_ms() if registered is None else registered.since_ms
        return RosterView(group, topic, generation, partitions, shares, changed_ms)

    def all(self) -> Sequence[tuple[str, str]]:
        return [*{*self._members, *(known[:2] for known in self._registrations.all())}]

    def settle(self) -> Later[None]:
        return self._changes.settle()

    # What the engine asks

    def fence(self, group: str, at: Collection[Partition]) -> Fence:
        """In whose name offsets of these partitions are committed; nobody's if nobody is here."""
        here: Member | None = None
        for where in at:
            for member in self._members.get((group, where.topic), {}).values():
                here = here or member
                if where.index in member.partitions:
                    return Fence(member.member_id, member.epoch)
        return Fence() if here is None else Fence(here.member_id, here.epoch)

    def fence_elsewhere(self, group: str, at: Collection[Partition]) -> Steps[Fence]:
        """In the name of which member at another gateway; nobody's if the cluster plans no such
        group.
        """
        return (yield from self._views.fence(group, at))

    def owns(self, group: str, member_id: str, at: Collection[Partition]) -> bool:
        """Does a member here read all of these?"""
        for where in at:
            member = self._members.get((group, where.topic), {}).get(member_id)
            if member is None or where.index not in member.partitions:
                return False
        return True

    def refresh(self, group: str) -> Steps[None]:
        """Let every member of a group here hear of the coordinator."""
        beats = [self._heartbeats.beat(member) for member in self._of(group)]
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

        def seen_ms(topic: str, member_id: str) -> int | None:
            member = self._members.get((group, topic), {}).get(member_id)
            return None if member is None else member.seen_ms

        asked = begin(self._fleet.persist(lambda: self._views.describe(group, seen_ms)))
        return all_of([asked, begin(self._registrations.catch_up())])

    def learn_all(self) -> Later[None]:
        """Learn of all groups that are registered, for `all`."""
        return begin(self._registrations.catch_up())

    def close(self) -> None:
        """Leave all groups, so that others need not wait for those who were here."""
        self._closed = True
        members = [member for roster in self._members.values() for member in roster.values()]
        for member in members:
            self._drop(member)
            begin(self._heartbeats.leave(member))

    # Members

    def _of(self, group: str) -> list[Member]:
        return [
            member
            for (name, _), roster in self._members.items()
            if name == group
            for member in roster.values()
        ]

    def _roster(self, group: str, topic: str) -> dict[str, Member]:
        members = self._members.get((group, topic))
        if members is None and self._registrations.find(group, topic) is None:
            raise _no_roster(group, topic)
        return members or {}

    def _member(self, group: str, topic: str, member_id: str, generation: int) -> Member:
        member = self._roster(group, topic).get(member_id)
        if member is None:
            raise _unknown(group, member_id)
        if generation != member.generation:
            member.stale = True
            raise _stale(member, generation)
        self._seen(member)
        return member

    def _seen(self, member: Member) -> None:
        member.seen_ms, member.seen_s = self._runtime.now_ms(), self._runtime.monotonic()
        member.stale = False
        if (member.seen_s - member.beaten_s) * 1000 >= _FRESH_MS:
            self._heartbeats.beat(member)

    def _new_member(self, group: str, topic: str, member_id: str, name: str) -> Member:
        now_ms, now_s = self._runtime.now_ms(), self._runtime.monotonic()
        return Member(group, topic, member_id, name, now_ms, now_s)

    def _returning(self, group: str, topic: str, name: str) -> Member | None:
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
        if self._registrations.possible:
            yield self._registrations.add(group, topic)
        # Who comes from another gateway with the id it got there is the same member.
        known_as = name if given_out(name) else sealed(name, uuid.uuid4().hex[:12])
        member = self._new_member(group, topic, known_as, name)
        yield from self._fleet.persist(lambda: self._heartbeats.exchange(member))
        self._members.setdefault((group, topic), {})[known_as] = member
        self._count += 1
        for _ in range(_SETTLE_TRIES):
            others = [other for other in self._of(group) if other is not member]
            # Those here give up at once what the new one shall have.
            yield all_of([self._heartbeats.beat(other) for other in others])
            yield self._heartbeats.beat(member)
            if member.partitions or member.gone:
                break
            yield self._fleet.sleep(_SETTLE_PAUSE_MS)
        yield from self._number(member)
        self._joined.setdefault((group, topic, name), []).append(member)
        self._arm(member)

    def _number(self, member: Member) -> Steps[None]:
        """Count the generations of a topic that nobody has read in this group from here on."""
        where = (member.group, member.topic)
        if where not in self._counted_from:
            alone = yield from self._reads_alone(member)
            if len(self._counted_from) >= REGISTERED_MAX:
                del self._counted_from[next(iter(self._counted_from))]
            self._counted_from[where] = member.epoch - 1 if alone else 0
        member.counted_from = self._counted_from[where]
        member.generation = max(member.epoch - member.counted_from, 1)

    def _reads_alone(self, member: Member) -> Steps[bool]:
        try:
            yield self.describe(member.group)
        except BrokerError:
            return False  # nobody says so
        view = self._views.of(member.group).get(member.topic)
        return view is None or all(each.member_id == member.member_id for each in view.members)

    def _drop(self, member: Member) -> None:
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
        """Who reads a topic that has grown shall hear of it."""
        for topic in {topic for _, topic in self._members}:
            try:
                partitions = self._topics.get(topic).partitions
            except TopicNotFound:
                self._topic_gone(topic)  # before somebody was let in
                continue
            if self._partitions.get(topic) != partitions:
                self._partitions[topic] = partitions
                for member in self._reading(topic):
                    self._heartbeats.beat(member)

    def _reading(self, topic: str) -> list[Member]:
        return [
            member
            for (_, name), roster in self._members.items()
            if name == topic
            for member in roster.values()
        ]

    def _topic_deleted(self, topic: Topic) -> Later[None]:
        return self._registrations.drop(self._registrations.of_topic(topic.name))

    def _topic_gone(self, topic: str) -> None:
        for member in self._reading(topic):
            self._drop(member)
            begin(self._leave(member))
        for where in [where for where in self._counted_from if where[1] == topic]:
            del self._counted_from[where]
        self._partitions.pop(topic, None)

    # Heartbeats

    def _arm(self, member: Member) -> None:
        if member.timer is not None:
            member.timer.cancel()
        if not member.gone and not self._closed:
            member.timer = self._runtime.after(member.interval_ms, lambda: self._due(member))

    def _due(self, member: Member) -> None:
        if (self._runtime.monotonic() - member.seen_s) * 1000 >= self._session_ms:
            self._drop(member)
            begin(self._leave(member))
        else:
            self._arm(member)
            self._heartbeats.beat(member)

    def _leave(self, member: Member) -> Steps[bool]:
        try:
            return (yield from self._fleet.persist(lambda: self._heartbeats.leave(member)))
        finally:
            for other in self._of(member.group):
                self._heartbeats.beat(other)


def _share(member: Member) -> Share:
    member.told = True
    return Share(member.member_id, member.generation, member.partitions)


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


def _stale(member: Member, generation: int) -> StaleGeneration:
    return StaleGeneration(
        f"generation {generation} of group {member.group!r} is over, "
        f"it is at {member.generation}: join it again"
    )
