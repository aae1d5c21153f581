"""Leader-planned groups: a barrier where all members meet, a plan by one of them, heartbeats.

A generation is made in two steps.  Everybody joins (`PREPARING`) until all known members are there
or the rebalance timeout has passed; then the leader is told who is there, plans, and everybody
fetches its part (`COMPLETING`) until the plan is on the disk (`STABLE`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final

from pentalog.broker import roster_rows
from pentalog.broker.consumer_group import pass_on
from pentalog.broker.group import Group, Surroundings
from pentalog.broker.members import Attendance, Member, Members, Reservations, fenced
from pentalog.broker.port import (
    Candidate,
    Fence,
    GroupView,
    Joined,
    Joining,
    Leaving,
    MemberView,
    Synced,
)
from pentalog.model.errors import (
    BrokerError,
    GroupFull,
    GroupInconsistent,
    GroupNotEmpty,
    MemberIdRequired,
    Rebalancing,
    StaleGeneration,
    UnknownMember,
)
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.runtime import Timer

NEW_MEMBER_TIMEOUT_MS: Final = 300_000
"""How long a member that cannot send heartbeats yet may wait for its first generation."""


class Phase(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Roster(Group):
    """One leader-planned group."""

    kind = "classic"

    def __init__(
        self, name: str, surroundings: Surroundings, abandoned: Callable[[Roster], None]
    ) -> None:
        """`abandoned` is called when the last one leaves who had never been in a generation."""
        self.name = name
        self.phase = Phase.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members = Members(name, surroundings.memory)
        self.changed_ms = surroundings.runtime.now_ms()
        self._state = surroundings.state
        self._runtime = surroundings.runtime
        self._config = surroundings.config
        self._abandoned = abandoned
        self._turns = surroundings.turns
        self._attendance = Attendance(self._runtime, self._turns, self._overdue)
        self._reserved = Reservations(self._runtime, surroundings.memory, self._never_came)
        self._pending_sync: set[str] = set()
        self._initial = False
        """The first generation after an empty time: waits for others to come, not for all."""
        self._newcomer = False
        self._join_timer: Timer | None = None
        self._sync_timer: Timer | None = None
        self._closed = False

    def restore(self, row: roster_rows.RosterRow, members: Sequence[Member]) -> None:
        """Take over what is known of a finished generation; everybody is heard of afresh."""
        self.generation = row.generation
        self.protocol_type = row.protocol_type
        self.protocol = row.protocol
        self.leader = row.leader
        self.changed_ms = row.changed_ms
        for member in members:
            self.members.add(member)
            self._attendance.expect(member, member.session_timeout_ms)
        if members:
            self.phase = Phase.STABLE
            if self.members.get(self.leader or "") is None:
                self.leader = members[0].member_id

    def take_over(self, row: roster_rows.RosterRow, members: Sequence[Member]) -> None:
        """Go on with the members of a group the broker has planned so far, and plan anew."""
        self.restore(row, members)
        roster_rows.save(self._state, row, members, {m.member_id: m.assignment for m in members})
        self._prepare()

    # What members ask

    def join(self, joining: Joining) -> Later[Joined]:
        if not self._has_room_for(joining.member_id):
            self._reserved.take(joining.member_id)
            raise GroupFull(
                f"group {self.name!r} has {self._config.group_size_max} members, as many as "
                "group_size_max allows: stop one first"
            )
        if not self._shares_with(joining):
            self.abandon_if_unused()
            raise GroupInconsistent(
                f"group {self.name!r} of type {self.protocol_type!r} and a member of type "
                f"{joining.protocol_type!r} that knows "
                f"{', '.join(p.name for p in joining.proposals) or 'no protocol'}: "
                "one protocol must be known to all members"
            )
        self.members.check_room(joining)
        if not joining.member_id:
            return self._join_new(joining)
        return self._join_again(joining)

    def sync(
        self,
        fence: Fence,
        plan: Mapping[str, bytes],
        *,
        protocol_type: str | None,
        protocol: str | None,
    ) -> Later[Synced]:
        member = self._checked(fence)
        if protocol_type is not None and protocol_type != self.protocol_type:
            raise GroupInconsistent(
                f"protocol type {protocol_type!r}; group {self.name!r} has {self.protocol_type!r}"
            )
        if protocol is not None and protocol != self.protocol:
            raise GroupInconsistent(
                f"protocol {protocol!r}; group {self.name!r} has chosen {self.protocol!r}"
            )
        if self.phase is Phase.PREPARING:
            raise self._rebalancing()
        if member.member_id == self.leader and self.phase is Phase.COMPLETING:
            self.members.check_plan(member, plan, self._config)
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync and self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
        self._attendance.expect(member, member.session_timeout_ms)
        if self.phase is Phase.STABLE:
            return Later.now(self._part(member))
        if member.syncing is not None:
            member.syncing.refuse(self._rebalancing())
        later: Later[Synced] = Later()
        member.syncing = later
        if member.member_id == self.leader:
            self._keep_plan(plan)
        return later

    def heartbeat(self, fence: Fence) -> None:
        member = self._checked(fence)
        self._attendance.expect(member, member.session_timeout_ms)
        if self.phase is Phase.PREPARING:
            raise self._rebalancing()

    def leave(self, leaving: Sequence[Leaving]) -> Sequence[BrokerError | None]:
        outcomes: list[BrokerError | None] = []
        left = False
        for who in leaving:
            try:
                left = self._leave(who) or left
            except BrokerError as refusal:
                outcomes.append(refusal)
            else:
                outcomes.append(None)
        if left:
            self._lost_members()
        self.abandon_if_unused()
        return outcomes

    def check_commit(
        self,
        fence: Fence,
        *,
        transactional: bool,
        epoch_aware: bool,
        at: Collection[Partition] = (),
    ) -> None:
        if fence.generation < 0 and self.phase is Phase.EMPTY:
            return
        if fence.generation >= 0 or fence.member_id or fence.instance_id is not None:
            member = self._checked(fence)
            self._attendance.expect(member, member.session_timeout_ms)
        elif not transactional:
            raise UnknownMember(
                f"group {self.name!r} has members: only they may commit; stop them first"
            )
        if not transactional and self.phase is Phase.COMPLETING:
            raise self._rebalancing()

    def check_fetch(self, fence: Fence) -> None:
        """Anybody may: this kind of group does not ask readers who they are."""

    # What others ask

    @property
    def empty(self) -> bool:
        return self.phase is Phase.EMPTY

    @property
    def settled(self) -> bool:
        return self.phase is Phase.STABLE and self.members.topics() is not None

    def reads(self, topic: str) -> bool:
        topics = self.members.topics()
        return topics is None or topic in topics

    def check_forget(self) -> None:
        if self.members.topics() is None:
            raise GroupNotEmpty(
                f"group {self.name!r} has members of type {self.protocol_type!r}, of which it is "
                "not known what they read: stop them first"
            )

    def view(self, *, members: bool) -> GroupView:
        stable = self.phase is Phase.STABLE
        shown = [
            MemberView(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(self.protocol) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in (self.members if members else ())
        ]
        protocol = (self.protocol or "") if stable else ""
        return GroupView(
            self.name, self.kind, self.phase.value, self.protocol_type, protocol, shown
        )

    def erase(self) -> None:
        roster_rows.erase(self._state, self.name)

    def stop_waiting(self, refusal: BrokerError) -> None:
        for member in list(self.members):
            self.members.refuse(member, refusal)

    def close(self) -> None:
        self._closed = True
        self._cancel_timers()
        self._reserved.close()
        self.members.release()
        for member in self.members:
            if member.timer is not None:
                member.timer.cancel()
            self.members.refuse(member, self._rebalancing())

    # Joining

    def _join_new(self, joining: Joining) -> Later[Joined]:
        member_id = f"{joining.instance_id or joining.client_id}-{uuid.uuid4()}"
        if joining.instance_id is not None:
            before = self.members.static(joining.instance_id)
            if before is not None:
                return self._take_over(before, member_id, joining)
        elif joining.id_required:
            self._reserved.give(member_id, joining.session_timeout_ms, joining.owner)
            raise MemberIdRequired(
                f"a new member of group {self.name!r}: join again as {member_id!r}",
                member_id=member_id,
            )
        return self._add(member_id, joining)

    def _join_again(self, joining: Joining) -> Later[Joined]:
        if self._reserved.take(joining.member_id):
            return self._add(joining.member_id, joining)
        member = self.members.find(joining.member_id, joining.instance_id)
        if member.proposes(joining.proposals) and (
            self.phase is Phase.COMPLETING
            or (self.phase is Phase.STABLE and member.member_id != self.leader)
        ):
            # The answer got lost, or the member only wants to be sure.
            self._attendance.expect(member, member.session_timeout_ms)
            return Later.now(self._joined(member))
        return self._wait_again(member, joining)

    def _add(self, member_id: str, joining: Joining) -> Later[Joined]:
        member = Member(
            member_id,
            joining.instance_id,
            joining.client_id,
            joining.client_host,
            joining.session_timeout_ms,
            joining.rebalance_timeout_ms,
            joining.proposals,
            joining.owner,
        )
        member.new = True
        if not len(self.members):
            self.protocol_type = joining.protocol_type
        self.members.add(member)
        later = self.members.await_join(member, self._rebalancing())
        self._attendance.expect(member, NEW_MEMBER_TIMEOUT_MS)
        if self.phase is Phase.PREPARING and self._initial:
            self._newcomer = True
        self._meet()
        return later

    def _wait_again(self, member: Member, joining: Joining) -> Later[Joined]:
        self.members.update(member, joining)
        later = self.members.await_join(member, self._rebalancing())
        self._attendance.expect(member, member.session_timeout_ms)
        self._meet()
        return later

    def _take_over(self, member: Member, member_id: str, joining: Joining) -> Later[Joined]:
        """A new process of a static member: same part of the plan, other id."""
        before, leader_before = member.member_id, self.leader
        self.members.refuse(member, fenced(self.name, joining.instance_id or ""))
        self.members.rename(member, member_id)
        member.client_id = joining.client_id
        member.client_host = joining.client_host
        if before in self._pending_sync:
            self._pending_sync.remove(before)
            self._pending_sync.add(member_id)
        if self.leader == before:
            self.leader = member_id
        self.members.update(member, joining)
        if self.phase is not Phase.STABLE or self.members.choose() != self.protocol:
            return self._wait_again(member, joining)
        self._attendance.expect(member, member.session_timeout_ms)
        roster_rows.save_replacement(self._state, self._row(), before, member)
        joined = self._joined(member)
        if joining.plan_skippable:
            joined = joined._replace(skip_plan=self.leader == member_id)
        else:
            # It must not believe that it leads: it would plan a generation that has a plan.
            joined = joined._replace(leader=leader_before or "", candidates=())
        later: Later[Joined] = Later()
        self._state.settle().then(lambda settled: pass_on(settled, later, joined))
        return later

    def _has_room_for(self, member_id: str) -> bool:
        most = self._config.group_size_max
        member = self.members.get(member_id)
        if self.phase is Phase.EMPTY:
            return True
        if self.phase is Phase.PREPARING:
            waits = member is not None and member.joining is not None
            return waits or self.members.awaiting < most
        return member is not None or len(self.members) < most

    def _shares_with(self, joining: Joining) -> bool:
        if not joining.protocol_type or not joining.proposals:
            return False
        if not len(self.members):
            return True
        same_type = joining.protocol_type == self.protocol_type
        return same_type and self.members.all_know_one_of(joining.proposals)

    def _never_came(self) -> None:
        if self.phase is Phase.PREPARING:
            self._complete_if_all_came()
        self.abandon_if_unused()

    def abandon_if_unused(self) -> None:
        if self.empty and not self._reserved.any and self.generation == 0:
            self._abandoned(self)

    # The next generation

    def _meet(self) -> None:
        """Somebody waits for the next generation: begin it, or end it if it was the last one."""
        if self.phase is Phase.PREPARING:
            self._complete_if_all_came()
        else:
            self._prepare()

    def _prepare(self) -> None:
        if self.phase is Phase.COMPLETING:
            for member in self.members:
                self.members.assign(member, b"")
                syncing, member.syncing = member.syncing, None
                if syncing is not None:
                    syncing.refuse(self._rebalancing())
        self._cancel_timers()
        self._pending_sync.clear()
        self._initial = self.phase is Phase.EMPTY
        self._newcomer = False
        self._set_phase(Phase.PREPARING)
        timeout_ms = self.members.rebalance_timeout_ms
        if self._initial:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            self._wait_for_others(delay_ms, max(timeout_ms - delay_ms, 0))
        elif not self._complete_if_all_came():
            self._join_timer = self._runtime.after(timeout_ms, self._complete)

    def _wait_for_others(self, delay_ms: int, left_ms: int) -> None:
        """Wait a while for the group's first members; once more as long as new ones come."""

        def waited() -> None:
            if self._newcomer and left_ms > 0:
                self._newcomer = False
                next_ms = min(self._config.group_initial_rebalance_delay_ms, left_ms)
                self._wait_for_others(next_ms, max(left_ms - next_ms, 0))
            else:
                self._complete()

        self._join_timer = self._runtime.after(delay_ms, waited)

    def _complete_if_all_came(self) -> bool:
        if self._initial or self._reserved.any or self.members.awaiting < len(self.members):
            return False
        self._complete()
        return True

    def _complete(self) -> None:
        """End the barrier with those who came; static members stay even if they did not."""
        self._cancel_timers()
        self._initial = False
        for member in [member for member in self.members if member.joining is None]:
            if member.instance_id is None:
                self._remove(member)
        if not len(self.members):
            self._become_empty()
            return
        if not self._elect():
            timeout_ms = self.members.rebalance_timeout_ms
            self._join_timer = self._runtime.after(timeout_ms, self._complete)
            return
        self.generation += 1
        self.protocol = self.members.choose()
        self._set_phase(Phase.COMPLETING)
        self._pending_sync = {member.member_id for member in self.members}
        timeout_ms = self.members.rebalance_timeout_ms
        self._sync_timer = self._runtime.after(timeout_ms, self._sync_overdue)
        self.members.awaiting = 0
        for member, later in [(member, member.joining) for member in self.members]:
            member.joining = None
            member.new = False
            self._attendance.expect(member, member.session_timeout_ms)
            if later is not None:
                self._turns.do(partial(later.fill, self._joined(member)))

    def _elect(self) -> bool:
        leader = self.members.get(self.leader or "")
        if leader is None or leader.joining is None:
            leader = next((m for m in self.members if m.joining is not None), None)
            if leader is None:
                return False
            self.leader = leader.member_id
        return True

    def _become_empty(self) -> None:
        self.generation += 1
        self.protocol = None
        self.leader = None
        self._set_phase(Phase.EMPTY)
        roster_rows.save(self._state, self._row(), self.members, {})

    def _sync_overdue(self) -> None:
        """Those who joined but never fetched their part are gone."""
        self._sync_timer = None
        if self.phase in (Phase.COMPLETING, Phase.STABLE) and self._pending_sync:
            for member_id in list(self._pending_sync):
                self._remove(self.members.find(member_id, None))
            self._prepare()

    def _keep_plan(self, plan: Mapping[str, bytes]) -> None:
        generation = self.generation
        try:
            self._state.check()
        except BrokerError as refusal:
            self._plan_failed(refusal)
            return
        roster_rows.save(self._state, self._row(), self.members, plan)
        self._state.settle().then(lambda settled: self._plan_kept(generation, plan, settled))

    def _plan_kept(self, generation: int, plan: Mapping[str, bytes], settled: Later[None]) -> None:
        if self._closed or self.phase is not Phase.COMPLETING or self.generation != generation:
            return
        try:
            _ = settled.value
        except BrokerError as refusal:
            self._plan_failed(refusal)
            return
        self._set_phase(Phase.STABLE)
        for member in self.members:
            self.members.assign(member, plan.get(member.member_id, b""))
        for member in list(self.members):
            syncing, member.syncing = member.syncing, None
            if syncing is not None:
                self._attendance.expect(member, member.session_timeout_ms)
                self._turns.do(partial(syncing.fill, self._part(member)))

    def _plan_failed(self, refusal: BrokerError) -> None:
        for member in self.members:
            syncing, member.syncing = member.syncing, None
            if syncing is not None:
                syncing.refuse(refusal)
        self._prepare()

    # Members going

    def _remove(self, member: Member) -> None:
        self.members.remove(member)
        self._pending_sync.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next((other.member_id for other in self.members), None)

    def _leave(self, who: Leaving) -> bool:
        """True if a member left, False if it was one whose id was never used."""
        if not who.member_id:
            member = self.members.static(who.instance_id or "")
            if member is None:
                raise UnknownMember(f"group {self.name!r} has no static member {who.instance_id!r}")
            self._remove(member)
            return True
        if self._reserved.take(who.member_id):
            if self.phase is Phase.PREPARING:
                self._complete_if_all_came()
            return False
        self._remove(self.members.find(who.member_id, who.instance_id))
        return True

    def _lost_members(self) -> None:
        if self.phase is Phase.PREPARING:
            self._complete_if_all_came()
        elif self.phase is not Phase.EMPTY:
            self._prepare()

    def _overdue(self, member: Member) -> None:
        if not self._closed and member in self.members:
            self._remove(member)
            self._lost_members()

    # Small things

    def _checked(self, fence: Fence) -> Member:
        member = self.members.find(fence.member_id, fence.instance_id)
        if fence.generation != self.generation:
            raise StaleGeneration(
                f"generation {fence.generation}; group {self.name!r} is at {self.generation}: "
                "join it again"
            )
        return member

    def _joined(self, member: Member) -> Joined:
        candidates: Sequence[Candidate] = ()
        if member.member_id == self.leader:
            candidates = [
                Candidate(m.member_id, m.instance_id, m.metadata(self.protocol))
                for m in self.members
            ]
        return Joined(
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            candidates,
        )

    def _part(self, member: Member) -> Synced:
        return Synced(self.protocol_type, self.protocol, member.assignment)

    def _row(self) -> roster_rows.RosterRow:
        return roster_rows.RosterRow(
            self.name,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            self.changed_ms,
        )

    def _rebalancing(self) -> Rebalancing:
        return Rebalancing(f"group {self.name!r} makes its next generation: join it again")

    def _set_phase(self, phase: Phase) -> None:
        self.phase = phase
        self.changed_ms = self._runtime.now_ms()

    def _cancel_timers(self) -> None:
        for timer in (self._join_timer, self._sync_timer):
            if timer is not None:
                timer.cancel()
        self._join_timer = None
        self._sync_timer = None
