"""A broker-planned group that members of the older protocol share.

Such a member joins, syncs and sends heartbeats as ever; it is never told that it leads, gets its
part of the broker's plan, and is asked to join again whenever there is something new for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from uuid import UUID

from pentalog.broker import embedded
from pentalog.broker.consumer_group import ConsumerCore, pass_on
from pentalog.broker.group import Group
from pentalog.broker.group_memory import proposals_bytes, texts_bytes
from pentalog.broker.planning import Classic, Consumer
from pentalog.broker.port import Fence, Joined, Joining, Leaving, Synced
from pentalog.broker.reconciliation import Owned, Step
from pentalog.model.errors import (
    BrokerError,
    GroupInconsistent,
    MemberIdRequired,
    Rebalancing,
    TopicNotFound,
    UnknownMember,
)
from pentalog.model.later import Later


class ConsumerGroup(ConsumerCore, Group):
    """One broker-planned group, for members of either protocol."""

    def join(self, joining: Joining) -> Later[Joined]:
        self._state.check()
        self._check_protocols(joining)
        known = self.planning.members.get(joining.member_id)
        if known is None and self.planning.instances.get(joining.instance_id or "") is None:
            self._check_room()
        if not joining.member_id and joining.instance_id is None and joining.id_required:
            member_id = f"{joining.client_id}-{uuid.uuid4()}"
            raise MemberIdRequired(
                f"a new member of group {self.name!r}: join again as {member_id!r}",
                member_id=member_id,
            )
        told = embedded.subscription(joining.proposals[0].metadata)
        more = texts_bytes(joining.client_id) + proposals_bytes(joining.proposals)
        self._memory.check(joining.owner, more - (0 if known is None else known.bytes))
        member = self._joining(joining)
        resubscribed = self._adopt(member, joining, told)
        if resubscribed or self.planning.epoch == 0:
            self.planning.bump()
        self._watch(member)
        self._expect(member, member.rebalance_timeout_ms)

        def answer() -> Later[Joined]:
            owned = self._by_id(told.owned)
            self.planning.reconcile(member, owned, resubscribed=resubscribed)
            return self._joined(member, joining)

        return self._when_planned(member, answer)

    def _joined(self, member: Consumer, joining: Joining) -> Later[Joined]:
        joined = Joined(
            member.member_id,
            member.standing.epoch,
            embedded.PROTOCOL_TYPE,
            joining.proposals[0].name,
            leader="",
        )
        self.save()
        later: Later[Joined] = Later()
        self._state.settle().then(lambda settled: pass_on(settled, later, joined))
        # Had it been the last member of the new protocol that came back in the old one, the group
        # goes back too.
        self._lost(self)
        return later

    def sync(
        self,
        fence: Fence,
        plan: Mapping[str, bytes],
        *,
        protocol_type: str | None,
        protocol: str | None,
    ) -> Later[Synced]:
        member, classic = self._classic(fence)
        chosen = classic.proposals[0].name
        if protocol_type not in (None, embedded.PROTOCOL_TYPE) or protocol not in (None, chosen):
            raise GroupInconsistent(
                f"protocol {protocol!r} of type {protocol_type!r}; member {member.member_id!r} was "
                f"told {chosen!r} of type {embedded.PROTOCOL_TYPE!r}"
            )
        behind = self.planning.epoch > member.standing.epoch
        if behind and member.standing.step is not Step.REVOKING:
            raise self._rejoin(member)
        self._cancel_rebalance_timer(member)
        self._watch(member)
        return Later.now(Synced(embedded.PROTOCOL_TYPE, chosen, self.part(member, classic)))

    def heartbeat(self, fence: Fence) -> None:
        member, _ = self._classic(fence)
        self._watch(member)
        self._drafting.catch_up()
        self.save()
        standing = member.standing
        if (
            self.planning.epoch > standing.epoch
            or standing.step is Step.REVOKING
            or (standing.step is Step.WAITING and not self.planning.waits_for_others(member))
        ):
            raise self._rejoin(member)

    def part(self, member: Consumer, classic: Classic) -> bytes:
        """A member's part of the plan, as a leader would have written it."""
        version = embedded.subscription(classic.proposals[0].metadata).version
        return embedded.assignment(version, self._by_name(member))

    def leave(self, leaving: Sequence[Leaving]) -> Sequence[BrokerError | None]:
        gone: dict[str, Consumer] = {}
        outcomes: list[BrokerError | None] = []
        for who in leaving:
            try:
                member = self._leaving(who)
            except BrokerError as refusal:
                outcomes.append(refusal)
            else:
                gone[member.member_id] = member
                outcomes.append(None)
        if gone:
            self._state.check()
            self.remove(list(gone.values()))
        return outcomes

    def _leaving(self, who: Leaving) -> Consumer:
        if who.instance_id is None:
            member = self._known(Fence(who.member_id))
            if member.classic is None:
                raise UnknownMember(
                    f"member {who.member_id!r} of group {self.name!r} does not speak the older "
                    "protocol: it leaves by its heartbeat"
                )
            return member
        known = self.planning.instances.get(who.instance_id)
        if known is None:
            raise UnknownMember(f"group {self.name!r} has no static member {who.instance_id!r}")
        if who.member_id and who.member_id != known:
            raise self._fenced(who.instance_id)
        return self.planning.members[known]

    def _joining(self, joining: Joining) -> Consumer:
        """The member that joins: known, back under another id, or new."""
        if joining.instance_id is not None:
            known = self.planning.instances.get(joining.instance_id)
            if known is not None:
                if not joining.member_id:
                    new_id = f"{joining.instance_id}-{uuid.uuid4()}"
                    return self._replaced(self.planning.members[known], new_id)
                if known != joining.member_id:
                    raise self._fenced(joining.instance_id)
            elif joining.member_id:
                raise UnknownMember(
                    f"group {self.name!r} has no static member {joining.instance_id!r}: join it "
                    "without an id"
                )
        member = self.planning.members.get(joining.member_id)
        if member is None:
            new_id = joining.member_id or f"{joining.client_id}-{uuid.uuid4()}"
            member = Consumer(member_id=new_id, instance_id=joining.instance_id)
            self.planning.add(member)
        return member

    def _adopt(self, member: Consumer, joining: Joining, told: embedded.Subscription) -> bool:
        """Take over what a member says of itself; True if it reads other topics now."""
        subscription = member.subscription
        member.rack_id = told.rack_id
        member.client_id = joining.client_id
        member.client_host = joining.client_host
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms
        member.topics = told.topics
        member.pattern = ""
        member.sight = None
        member.assignor = None
        member.classic = Classic(joining.session_timeout_ms, joining.proposals)
        self._charge(member, joining.owner)
        self.planning.changed_members.add(member.member_id)
        return member.subscription != subscription

    def _check_protocols(self, joining: Joining) -> None:
        shared = {proposal.name for proposal in joining.proposals}
        for member in self.planning.members.values():
            if member.classic is not None and member.member_id != joining.member_id:
                shared &= {proposal.name for proposal in member.classic.proposals}
        if joining.protocol_type != embedded.PROTOCOL_TYPE or not shared:
            raise GroupInconsistent(
                f"group {self.name!r} of type {embedded.PROTOCOL_TYPE!r} and a member of type "
                f"{joining.protocol_type!r} that knows "
                f"{', '.join(p.name for p in joining.proposals) or 'no protocol'}: "
                "one protocol must be known to all members"
            )

    def _classic(self, fence: Fence) -> tuple[Consumer, Classic]:
        member = self._known(fence)
        if member.classic is None:
            raise UnknownMember(
                f"member {fence.member_id!r} of group {self.name!r} does not speak the older "
                "protocol: it sends the newer heartbeats"
            )
        self._check_generation(member, fence)
        return member, member.classic

    def _rejoin(self, member: Consumer) -> Rebalancing:
        if member.rebalance_timer is None:
            self._expect(member, member.rebalance_timeout_ms)
        return Rebalancing(f"group {self.name!r} has a new plan: join it again")

    def _by_id(self, owned: Mapping[str, frozenset[int]]) -> Owned:
        found: dict[UUID, frozenset[int]] = {}
        for name, indexes in owned.items():
            try:
                found[self._topics.get(name).topic_id] = indexes
            except TopicNotFound:
                continue
        return found

    def _by_name(self, member: Consumer) -> Mapping[str, frozenset[int]]:
        found: dict[str, frozenset[int]] = {}
        for topic_id, indexes in member.standing.held.items():
            try:
                found[self._topics.by_id(topic_id).name] = frozenset(indexes)
            except TopicNotFound:
                continue
        return found
