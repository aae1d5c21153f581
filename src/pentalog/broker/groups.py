"""All groups of one broker, by name: who is asked, who may commit, what expires."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from pentalog.broker import group_memory, roster_rows
from pentalog.broker.group import Group, Surroundings
from pentalog.broker.group_settings import LocalGroupSettings
from pentalog.broker.offsets import LocalOffsets
from pentalog.broker.port import (
    Committed,
    Fence,
    GroupView,
    Joined,
    Joining,
    Leaving,
    Synced,
    Topic,
)
from pentalog.broker.rosters import Roster
from pentalog.broker.state import State
from pentalog.config import Config
from pentalog.model.errors import (
    BrokerError,
    GroupFull,
    GroupNotEmpty,
    GroupNotFound,
    GroupSubscribed,
    InvalidGroup,
    InvalidSessionTimeout,
    StaleGeneration,
    Stopping,
    UnknownMember,
)
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.runtime import Runtime, Slices, Timer, Turns

SWEEP_INTERVAL_MS: Final = 600_000
NAME_CHARACTERS_MAX: Final = 1_000
"""Of a group that members join; other doors may commit for longer names."""
MEMBERS_PER_TURN: Final = 32
"""Members that are answered, or found to be gone, in one turn, of all groups together."""
_SWEPT_AT_ONCE: Final = 20
"""Groups looked at in one turn, so that a sweep over many does not hold up the others."""
_MINUTE_MS: Final = 60_000


class LocalGroups:
    """Implements `port.Groups`.

    A group exists if it has a roster or offsets.  One that has offsets only (a consumer that
    shares with nobody, an admin tool) needs no object here.
    """

    def __init__(
        self, state: State, runtime: Runtime, config: Config, slices: Slices | None = None
    ) -> None:
        self.offsets = LocalOffsets(state, runtime, config, slices)
        self.settings = LocalGroupSettings(state, config)
        turns = Turns(runtime, MEMBERS_PER_TURN)
        self.surroundings = Surroundings(
            state, runtime, config, self.settings, turns, group_memory.limits(config)
        )
        self._state = state
        self._runtime = runtime
        self._config = config
        self._groups: dict[str, Group] = {}
        self._sweep_timer: Timer | None = None
        self._stopping = False
        self.reads_elsewhere: Callable[[str, str], bool] = lambda group, topic: False
        """Has the group members of another kind that read this topic?"""

    def open(self) -> None:
        """Read what the last life left; members get one session timeout to show up again."""
        self.offsets.open()
        self.settings.open()
        for row, members in roster_rows.load(self._state):
            roster = Roster(row.name, self.surroundings, self._abandoned)
            roster.restore(row, members)
            self._groups[row.name] = roster
        self._sweep_timer = self._runtime.after(SWEEP_INTERVAL_MS, self._sweep)

    def stop_waiting(self) -> None:
        """Begin to stop: whoever waits for a generation is sent away, and so are new ones."""
        self._stopping = True
        for group in list(self._groups.values()):
            group.stop_waiting(_stopping())

    def close(self) -> None:
        """Stop all timers, so that nothing is written any more."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for group in self._groups.values():
            group.close()
        self.offsets.close()

    def topic_deleted(self, topic: Topic) -> None:
        """To be called in the turn of the deletion: the offsets go with the topic."""
        self.offsets.forget_topic(topic.name)

    def found(self, name: str) -> Group | None:
        """The group, if somebody is or was in it."""
        return self._groups.get(name)

    def put(self, group: Group) -> None:
        """Add a group, or put it in the place of the one of its name, which is erased."""
        before = self._groups.get(group.name)
        if before is not None and before is not group:
            before.close()
            before.erase()
        self._groups[group.name] = group

    def new_roster(self, name: str) -> Roster:
        """An empty leader-planned group, to be filled and `put`."""
        return Roster(name, self.surroundings, self._abandoned)

    def drop(self, name: str) -> None:
        """Remove a group, but not its offsets."""
        group = self._groups.pop(name, None)
        if group is not None:
            group.close()
            group.erase()

    def join(self, group: str, joining: Joining) -> Later[Joined]:
        check_name(group)
        if self._stopping:
            raise _stopping()
        least = self._config.group_session_timeout_ms_min
        most = self._config.group_session_timeout_ms_max
        if not least <= joining.session_timeout_ms <= most:
            raise InvalidSessionTimeout(
                f"a session timeout of {joining.session_timeout_ms} ms; {least} to {most} ms "
                "are accepted"
            )
        group_memory.check_joining(joining, self._config)
        known = self._groups.get(group)
        if known is None or (known.kind != Roster.kind and known.empty):
            if joining.member_id:
                raise _unknown_member(group, joining.member_id)
            known = Roster(group, self.surroundings, self._abandoned)
            self.put(known)
        try:
            return known.join(joining)
        except GroupFull:
            if isinstance(known, Roster):
                known.abandon_if_unused()
            raise

    def sync(
        self,
        group: str,
        fence: Fence,
        plan: Mapping[str, bytes],
        *,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> Later[Synced]:
        if self._stopping:
            raise _stopping()
        return self._of_member(group, fence.member_id).sync(
            fence, plan, protocol_type=protocol_type, protocol=protocol
        )

    def heartbeat(self, group: str, fence: Fence) -> None:
        self._of_member(group, fence.member_id).heartbeat(fence)

    def leave(self, group: str, leaving: Sequence[Leaving]) -> Sequence[BrokerError | None]:
        first = leaving[0].member_id if leaving else ""
        return self._of_member(group, first).leave(leaving)

    def commit(
        self,
        group: str,
        fence: Fence,
        offsets: Mapping[Partition, Committed],
        *,
        epoch_aware: bool = True,
        owner: str = "",
    ) -> Later[None]:
        self.check_commit(
            group, fence, transactional=False, epoch_aware=epoch_aware, at=offsets.keys()
        )
        return self.offsets.commit(group, offsets, owner=owner)

    def check_commit(
        self,
        group: str,
        fence: Fence,
        *,
        transactional: bool,
        epoch_aware: bool = True,
        at: Collection[Partition] = (),
    ) -> None:
        known = self._groups.get(group)
        if known is not None:
            known.check_commit(fence, transactional=transactional, epoch_aware=epoch_aware, at=at)
        elif fence.generation >= 0:
            text = f"group {group!r} has no members: join it before committing for a generation"
            if epoch_aware and not transactional and not self.offsets.holds(group):
                raise GroupNotFound(text)
            raise StaleGeneration(text)

    def check_fetch(self, group: str, fence: Fence) -> None:
        known = self._groups.get(group)
        if known is not None:
            known.check_fetch(fence)

    def view(self, group: str) -> GroupView:
        known = self._groups.get(group)
        if known is not None:
            return known.view(members=True)
        if self.offsets.holds(group):
            return _offsets_only(group)
        raise _not_found(group)

    def all(self) -> Iterator[GroupView]:
        for name in tuple(self._groups):
            group = self._groups.get(name)
            if group is not None:
                yield group.view(members=False)
        for name in self.offsets.names():
            if name not in self._groups:
                yield _offsets_only(name)

    def delete(self, group: str) -> Later[None]:
        known = self._groups.get(group)
        if known is None and not self.offsets.holds(group):
            raise _not_found(group)
        if known is not None and not known.empty:
            raise GroupNotEmpty(f"group {group!r} has members: stop them first")
        self._state.check()
        self.drop(group)
        return self.offsets.forget(group)

    def forget(self, group: str, at: Collection[Partition]) -> Mapping[Partition, BrokerError]:
        check_name(group)
        known = self._groups.get(group)
        if known is None and not self.offsets.holds(group):
            raise _not_found(group)
        refused: dict[Partition, BrokerError] = {}
        if known is not None:
            known.check_forget()
            for where in at:
                if known.reads(where.topic):
                    refused[where] = GroupSubscribed(
                        f"members of group {group!r} read topic {where.topic!r}: stop them first"
                    )
        self.offsets.forget(group, [where for where in at if where not in refused])
        return refused

    def settle(self) -> Later[None]:
        return self._state.settle()

    def _of_member(self, group: str, member_id: str) -> Group:
        known = self._groups.get(group)
        if known is None:
            check_name(group)
            raise _unknown_member(group, member_id)
        return known

    def _abandoned(self, roster: Roster) -> None:
        """Nobody ever came in: as if it had not been asked for."""
        if self._groups.get(roster.name) is roster:
            del self._groups[roster.name]

    def _sweep(self) -> None:
        self._sweep_timer = self._runtime.after(SWEEP_INTERVAL_MS, self._sweep)
        without = (name for name in self.offsets.names() if name not in self._groups)
        names = chain(tuple(self._groups), without)

        def look_at_some() -> None:
            if self._sweep_timer is None:
                return
            some = list(islice(names, _SWEPT_AT_ONCE))
            for name in some:
                self._expire(name)
            if some:
                self._runtime.soon(look_at_some)

        look_at_some()

    def _expire(self, name: str) -> None:
        try:
            self._state.check()
        except BrokerError:
            return
        group = self._groups.get(name)
        expired = self._expiry(group)
        if expired is not None:
            gone = [
                at
                for at, committed in self.offsets.committed(name).items()
                if expired(at, committed)
                and not self.offsets.unstable(name, at)
                and not self.reads_elsewhere(name, at.topic)
            ]
            if gone:
                self.offsets.forget(name, gone)
        if group is not None and group.empty and not self.offsets.holds(name):
            self.drop(name)

    def _expiry(self, group: Group | None) -> Callable[[Partition, Committed], bool] | None:
        """Which offsets of a group have expired; None if none can have."""
        retention_ms = self._config.offsets_retention_minutes * _MINUTE_MS
        now_ms = self._runtime.now_ms()

        def expired(at: Partition, committed: Committed) -> bool:
            if group is not None and not group.empty and group.reads(at.topic):
                return False
            if committed.expire_ms >= 0:
                return committed.expire_ms <= now_ms
            since = committed.timestamp_ms
            if group is not None and group.empty:
                since = max(since, group.changed_ms)
            return since + retention_ms <= now_ms

        if group is None or group.empty or group.settled:
            return expired
        return None


def check_name(group: str) -> None:
    """Raise `InvalidGroup` for a name that no group can have."""
    if not group:
        raise InvalidGroup("a group's name cannot be empty: give it one")
    if len(group) > NAME_CHARACTERS_MAX:
        raise InvalidGroup(
            f"a group's name of {len(group)} characters; 1 to {NAME_CHARACTERS_MAX} are accepted"
        )


def _stopping() -> Stopping:
    return Stopping("the broker stops: join the group again when it is back")


def _unknown_member(group: str, member_id: str) -> UnknownMember:
    return UnknownMember(f"group {group!r} has no member {member_id!r}: join it without an id")


def _not_found(group: str) -> GroupNotFound:
    return GroupNotFound(f"there is no group {group!r}: it has neither members nor offsets")


def _offsets_only(name: str) -> GroupView:
    return GroupView(name, Roster.kind, "Empty", "")
