"""One group that leaves planning to the broker: heartbeats in, epochs and partitions out."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import ClassVar, Final, TypeVar

from pentalog.broker import consumer_rows
from pentalog.broker.drafting import Drafting
from pentalog.broker.group import Surroundings
from pentalog.broker.group_memory import (
    check_bytes,
    names_bytes,
    proposals_bytes,
    texts_bytes,
)
from pentalog.broker.group_settings import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from pentalog.broker.patterns import pattern
from pentalog.broker.planning import AWAY, Consumer, Planning
from pentalog.broker.port import Beat, Beaten, ConsumersView, Fence, GroupView, MemberView, Topics
from pentalog.broker.reconciliation import Standing, Step, within
from pentalog.broker.security import UNGUARDED, Rules
from pentalog.broker.topic_patterns import TopicPatterns
from pentalog.model.errors import (
    BrokerError,
    GroupFull,
    InstanceFenced,
    InstanceUnreleased,
    MemberEpochFenced,
    MemberEpochStale,
    StaleGeneration,
    Stopping,
    TopicNotFound,
    UnknownMember,
    UnsupportedVersion,
)
from pentalog.model.kafka_names import NAME_CHARACTERS_MAX
from pentalog.model.later import Later
from pentalog.model.types import Partition

T = TypeVar("T")

JOIN: Final = 0


class ConsumerCore:
    """Members, timers and rows of a group; what members of the new protocol ask."""

    kind: ClassVar[str] = "consumer"

    def __init__(
        self,
        name: str,
        surroundings: Surroundings,
        topics: Topics,
        lost: Callable[[ConsumerCore], None],
        rules: Rules = UNGUARDED,
        patterns: TopicPatterns | None = None,
    ) -> None:
        """`lost` is called whenever members have gone, with the group that had them."""
        self.name = name
        self.planning = Planning(topics, rules, patterns)
        self.changed_ms = surroundings.runtime.now_ms()
        self._topics = topics
        self._state = surroundings.state
        self._runtime = surroundings.runtime
        self._config = surroundings.config
        self._settings = surroundings.settings
        self._turns = surroundings.turns
        self._memory = surroundings.memory
        self._drafting = Drafting(self.planning, self._runtime, self._turns)
        self._lost = lost
        self._closed = False

    def restore(self, members: Sequence[Consumer]) -> None:
        """Put members in that are known already; they have one session timeout to show up."""
        for member in members:
            self.planning.add(member)
            self._charge(member)
            self._watch(member)
            self._watch_revocation(member)

    # What members ask

    def beat(self, beat: Beat) -> Later[Beaten]:
        self._state.check()
        if beat.epoch < JOIN:
            return self._leave(beat)
        if beat.pattern:
            pattern(beat.pattern)
        self._check_memory(beat)
        member = self._dynamic(beat) if beat.instance_id is None else self._static(beat)
        resubscribed = self._update(member, beat)
        if resubscribed or self.planning.epoch == 0:
            self.planning.bump()
        self._watch(member)
        return self._when_planned(
            member, lambda: self._answer(member, beat, resubscribed=resubscribed)
        )

    def _answer(self, member: Consumer, beat: Beat, *, resubscribed: bool) -> Later[Beaten]:
        """Bring a member nearer to the plan and tell it."""
        held = member.standing.held
        self.planning.reconcile(member, beat.owned, resubscribed=resubscribed)
        self._watch_revocation(member)
        share = None
        if beat.epoch == JOIN or beat.whole or member.standing.held != held:
            share = member.standing.held
        return self._saved(
            Beaten(
                member.member_id,
                member.standing.epoch,
                self._settings.value(self.name, HEARTBEAT_INTERVAL_MS),
                share,
            )
        )

    def _when_planned(self, member: Consumer, answer: Callable[[], Later[T]]) -> Later[T]:
        """Answer a member when the plan is one for it: at once, unless that is a lot of work."""
        if self._drafting.catch_up():
            return answer()
        later: Later[T] = Later()

        def go_on() -> None:
            if self._closed:
                later.refuse(Stopping(f"group {self.name!r} is not planned here: join it again"))
                return
            if self.planning.members.get(member.member_id) is not member:
                later.refuse(self._unknown(member.member_id))
                return
            if not self.planning.resolved(member) and not self._drafting.catch_up():
                # It has subscribed to something else since: answering now would resolve that here.
                self._drafting.wait(go_on)
                return
            try:
                answer().then(lambda found: pass_over(found, later))
            except BrokerError as refusal:
                later.refuse(refusal)

        self._drafting.wait(go_on)
        return later

    def _dynamic(self, beat: Beat) -> Consumer:
        member = self.planning.members.get(beat.member_id)
        if member is None:
            if beat.epoch != JOIN:
                raise self._unknown(beat.member_id)
            member = Consumer(member_id=beat.member_id or str(uuid.uuid4()))
            self._check_room()
            self.planning.add(member)
            return member
        self._check_epoch(member, beat)
        return member

    def _static(self, beat: Beat) -> Consumer:
        assert beat.instance_id is not None
        known = self.planning.instances.get(beat.instance_id)
        if known is None:
            if beat.epoch != JOIN:
                raise UnknownMember(
                    f"group {self.name!r} has no static member {beat.instance_id!r}: join it first"
                )
            member = self._dynamic(beat)
            self.planning.name(member, beat.instance_id)
            return member
        member = self.planning.members[known]
        if known == beat.member_id:
            self._check_epoch(member, beat)
            return member
        if beat.epoch != JOIN:
            raise self._fenced(beat.instance_id)
        if member.classic is None and member.standing.epoch != AWAY:
            raise InstanceUnreleased(
                f"static member {beat.instance_id!r} of group {self.name!r} has not left: stop it, "
                "or wait until its session has ended"
            )
        return self._replaced(member, beat.member_id or str(uuid.uuid4()))

    def _replaced(self, member: Consumer, member_id: str) -> Consumer:
        """A static member comes back under another id."""
        self._cancel_timers(member)
        after = replace(
            member,
            member_id=member_id,
            standing=member.standing._replace(epoch=0, epoch_before=0),
        )
        self.planning.replace(member, after)
        return after

    def _update(self, member: Consumer, beat: Beat) -> bool:
        """Take over what a member says of itself; True if it reads other topics now."""
        before = _facts(member)
        subscription = member.subscription
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        if beat.rebalance_timeout_ms is not None:
            member.rebalance_timeout_ms = beat.rebalance_timeout_ms
        if beat.assignor is not None:
            member.assignor = beat.assignor
        if beat.topics is not None:
            member.topics = beat.topics
        if beat.pattern is not None and beat.pattern != member.pattern:
            member.pattern = beat.pattern
            if beat.pattern:
                member.pattern_cost = pattern(beat.pattern).cost(NAME_CHARACTERS_MAX)
        member.sight = beat.sight if member.pattern else None
        member.client_id = beat.client_id
        member.client_host = beat.client_host
        member.classic = None
        if _facts(member) != before:
            self.planning.changed_members.add(member.member_id)
        if not member.bytes or member.subscription != subscription:
            self._charge(member, beat.owner)
        return member.subscription != subscription

    def _check_memory(self, beat: Beat) -> None:
        """Raise `GroupFull` if what a member says of itself does not fit in memory."""
        known = self.planning.members.get(beat.member_id)
        if known is not None and beat.topics is None and beat.pattern is None:
            return
        topics = beat.topics or frozenset()
        check_bytes(sum(map(len, topics)), self._config)
        more = texts_bytes(beat.client_id, beat.instance_id, beat.rack_id, beat.pattern)
        more += names_bytes(topics)
        self._memory.check(beat.owner, more - (0 if known is None else known.bytes))

    def _charge(self, member: Consumer, owner: str = "") -> None:
        """Count what a member takes; one that an earlier life has left gets its owner here."""
        if owner and not member.owner:
            self._release(member)
            member.owner = owner
        size = texts_bytes(
            member.client_id, member.instance_id, member.rack_id, member.pattern
        ) + names_bytes(member.topics)
        if member.classic is not None:
            size += proposals_bytes(member.classic.proposals)
        self._memory.add(member.owner, size - member.bytes)
        member.bytes = size

    def _release(self, member: Consumer) -> None:
        self._memory.release(member.owner, member.bytes)
        member.bytes = 0

    def _leave(self, beat: Beat) -> Later[Beaten]:
        if beat.instance_id is None:
            member = self.planning.members.get(beat.member_id)
            if member is None:
                raise self._unknown(beat.member_id)
        else:
            known = self.planning.instances.get(beat.instance_id)
            if known is None:
                raise UnknownMember(
                    f"group {self.name!r} has no static member {beat.instance_id!r}"
                )
            if known != beat.member_id:
                raise self._fenced(beat.instance_id)
            member = self.planning.members[known]
        if beat.epoch == AWAY and member.instance_id is not None:
            standing = member.standing
            self.planning.stand(member, Standing(AWAY, AWAY, Step.STABLE, standing.held))
            self._watch_revocation(member)
        else:
            self.remove([member])
        return self._saved(Beaten(beat.member_id, beat.epoch, 0))

    # What others ask

    @property
    def empty(self) -> bool:
        return not self.planning.members

    @property
    def settled(self) -> bool:
        return True

    def check_commit(
        self,
        fence: Fence,
        *,
        transactional: bool,
        epoch_aware: bool,
        at: Collection[Partition] = (),
    ) -> None:
        anonymous = not fence.member_id and fence.instance_id is None
        if fence.generation < 0 and (self.empty or (transactional and anonymous)):
            return
        member = self._known(fence)
        if member.classic is None and not transactional and not epoch_aware:
            raise UnsupportedVersion(
                f"{fence.member_id!r} is a member of a group the broker plans, which must commit "
                "by a version of the request that knows such groups: use a newer client"
            )
        if not self._held_since(member, fence.generation, at):
            self._check_generation(member, fence)
        self._watch(member)

    def check_fetch(self, fence: Fence) -> None:
        if not fence.member_id and fence.generation < 0:
            return
        self._check_generation(self._known(fence), fence)

    def check_forget(self) -> None:
        """It is always known what the members read."""

    def reads(self, topic: str) -> bool:
        return self.planning.reads(topic)

    def view(self, *, members: bool) -> GroupView:
        shown = [
            MemberView(m.member_id, m.instance_id, m.client_id, m.client_host, b"", b"")
            for m in (self.planning.members.values() if members else ())
        ]
        return GroupView(self.name, self.kind, self.planning.state, "consumer", "", shown)

    def describe(self) -> ConsumersView:
        planning = self.planning
        return ConsumersView(
            self.name,
            planning.state,
            planning.epoch,
            planning.plan_epoch,
            planning.assignor,
            planning.views(),
        )

    def erase(self) -> None:
        consumer_rows.erase(self._state, self.name)

    def close(self) -> None:
        self._closed = True
        self._drafting.close()
        for member in self.planning.members.values():
            self._cancel_timers(member)
            self._release(member)

    # Members going

    def remove(self, members: Sequence[Consumer]) -> None:
        """Members have left or are taken for dead."""
        if not members:
            return
        for member in members:
            self._cancel_timers(member)
            self._release(member)
            self.planning.remove(member)
        if self.empty:
            self.changed_ms = self._runtime.now_ms()
        self.save()
        self._lost(self)

    def save(self) -> bool:
        """Queue what has changed; False if nothing has."""
        return consumer_rows.write(self._state, self.name, self.planning, self.changed_ms)

    def _saved(self, answer: Beaten) -> Later[Beaten]:
        """The answer, as soon as what it rests on is on the disk."""
        if not self.save() and answer.epoch > JOIN:
            return Later.now(answer)
        later: Later[Beaten] = Later()
        self._state.settle().then(lambda settled: pass_on(settled, later, answer))
        return later

    def _watch(self, member: Consumer) -> None:
        """Expect to hear of a member again in time; moves a deadline, mostly no timer."""
        timeout_ms = self._session_timeout_ms(member)
        member.deadline = self._runtime.monotonic() + timeout_ms / 1000
        if member.session_timer is None:
            self._arm(member, timeout_ms)

    def _session_timeout_ms(self, member: Consumer) -> int:
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self._settings.value(self.name, SESSION_TIMEOUT_MS)

    def _arm(self, member: Consumer, delay_ms: float) -> None:
        def look() -> None:
            member.session_timer = None
            if self._closed or self.planning.members.get(member.member_id) is not member:
                return
            left_ms = (member.deadline - self._runtime.monotonic()) * 1000
            if left_ms > 0.5:
                self._arm(member, left_ms)
            else:
                self._turns.do(give_up)

        def give_up() -> None:
            known = self.planning.members.get(member.member_id) is member
            if known and member.session_timer is None and not self._closed:
                self.remove([member])

        member.session_timer = self._runtime.after(delay_ms, look)

    def _watch_revocation(self, member: Consumer) -> None:
        """A member that does not give up what it must not have any more is fenced in time."""
        if member.classic is not None:
            return
        revoking = member.standing.step is Step.REVOKING and member.standing.epoch != AWAY
        if not revoking:
            self._cancel_rebalance_timer(member)
        elif member.rebalance_timer is None:
            self._expect(member, member.rebalance_timeout_ms)

    def _expect(self, member: Consumer, timeout_ms: int) -> None:
        """Remove a member unless the timer set here is cancelled in time."""
        self._cancel_rebalance_timer(member)

        def overdue() -> None:
            member.rebalance_timer = None
            if not self._closed and self.planning.members.get(member.member_id) is member:
                self.remove([member])

        member.rebalance_timer = self._runtime.after(timeout_ms, overdue)

    def _cancel_rebalance_timer(self, member: Consumer) -> None:
        if member.rebalance_timer is not None:
            member.rebalance_timer.cancel()
            member.rebalance_timer = None

    def _cancel_timers(self, member: Consumer) -> None:
        self._cancel_rebalance_timer(member)
        if member.session_timer is not None:
            member.session_timer.cancel()
            member.session_timer = None

    # Checks

    def _check_room(self) -> None:
        most = self._config.group_size_max
        if len(self.planning.members) >= most:
            raise GroupFull(
                f"group {self.name!r} has {most} members, as many as group_size_max allows: "
                "stop one first"
            )

    def _check_epoch(self, member: Consumer, beat: Beat) -> None:
        standing = member.standing
        if beat.epoch in (JOIN, standing.epoch):
            return
        if beat.epoch == standing.epoch_before and within(beat.owned, standing.held):
            return
        raise MemberEpochFenced(
            f"member {member.member_id!r} of group {self.name!r} says it is at epoch {beat.epoch}, "
            f"it is at {standing.epoch}: give up all partitions and join again with epoch 0"
        )

    def _check_generation(self, member: Consumer, fence: Fence) -> None:
        epoch = member.standing.epoch
        if fence.generation == epoch:
            return
        text = (
            f"generation {fence.generation} of member {member.member_id!r} of group "
            f"{self.name!r}, which is at {epoch}"
        )
        if member.classic is not None:
            raise StaleGeneration(text + ": join it again")
        raise MemberEpochStale(text + ": try again with that one")

    def _held_since(self, member: Consumer, epoch: int, at: Collection[Partition]) -> bool:
        """Has the member held all these since an epoch that it says it is at, or before?

        Then nobody else can have read them meanwhile, and a commit that crossed the answer to a
        heartbeat on its way is as good as any.
        """
        if not at or member.classic is not None or epoch > member.standing.epoch:
            return False
        for where in at:
            try:
                topic_id = self._topics.get(where.topic).topic_id
            except TopicNotFound:
                return False
            standing = member.standing
            since = standing.held.get(topic_id, {}).get(where.index)
            if since is None:
                since = standing.revoking.get(topic_id, {}).get(where.index)
            if since is None or since > epoch:
                return False
        return True

    def _known(self, fence: Fence) -> Consumer:
        if fence.instance_id is not None:
            known = self.planning.instances.get(fence.instance_id)
            if known is not None and known != fence.member_id:
                raise self._fenced(fence.instance_id)
        member = self.planning.members.get(fence.member_id)
        if member is None:
            raise self._unknown(fence.member_id)
        return member

    def _unknown(self, member_id: str) -> UnknownMember:
        return UnknownMember(f"group {self.name!r} has no member {member_id!r}: join it again")

    def _fenced(self, instance_id: str) -> InstanceFenced:
        return InstanceFenced(
            f"another process has joined group {self.name!r} as {instance_id!r}: stop one of them, "
            "or give it another group.instance.id"
        )


def _facts(member: Consumer) -> tuple[object, ...]:
    return (
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.topics,
        member.pattern,
        member.sight,
        member.assignor,
        member.classic,
    )


def pass_over(found: Later[T], later: Later[T]) -> None:
    """Fill one by what came in the other."""
    try:
        value = found.value
    except BrokerError as refusal:
        later.refuse(refusal)
    else:
        later.fill(value)


def pass_on(settled: Later[None], later: Later[T], answer: T) -> None:
    """Answer once it is on the disk, or say why it is not."""
    try:
        _ = settled.value
    except BrokerError as refusal:
        later.refuse(refusal)
    else:
        later.fill(answer)
