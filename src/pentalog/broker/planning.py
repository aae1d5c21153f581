"""The members, the epochs and the plan of one group that leaves planning to the broker.

Three epochs tell how far everybody is: the group's grows with every reason to plan again, the
plan's says for which of them the plan was made, a member's which plan it has come to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from pentalog.broker.assignors import ASSIGNORS, NOTHING, Planned, Share
from pentalog.broker.patterns import pattern
from pentalog.broker.port import ConsumerView, Proposal, Topics
from pentalog.broker.reconciliation import Aim, Held, Owned, Standing, Step, advance
from pentalog.broker.security import UNGUARDED, Rules, Sight
from pentalog.broker.topic_patterns import STEP_COST, TopicPatterns
from pentalog.model.errors import TopicNotFound
from pentalog.runtime import Timer

DEFAULT_ASSIGNOR: Final = next(iter(ASSIGNORS))
AWAY: Final = -2
"""The epoch of a static member that has left and will be back."""

_Subscription: TypeAlias = tuple[frozenset[str], str, Sight | None]


class Classic(NamedTuple):
    """What else there is to know of a member that speaks the older protocol."""

    session_timeout_ms: int
    proposals: tuple[Proposal, ...]


@dataclass(slots=True, kw_only=True)
class Consumer:
    """A member."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    pattern_cost: int = STEP_COST
    """Work that the pattern takes for one topic, at most; not known of members read from disk."""
    sight: Sight | None = None
    """Which topics the pattern may find; None: all."""
    owner: str = ""
    """The principal that `bytes` are charged to."""
    bytes: int = 0
    assignor: str | None = None
    classic: Classic | None = None
    standing: Standing = field(default_factory=Standing)
    deadline: float = 0.0
    """When it is taken for dead, in the runtime's seconds."""
    session_timer: Timer | None = None
    rebalance_timer: Timer | None = None

    @property
    def subscription(self) -> _Subscription:
        return self.topics, self.pattern, self.sight


class Planning:
    """Knows nothing of time or of the disk; `changed` says what its owner has to write."""

    def __init__(
        self, topics: Topics, rules: Rules = UNGUARDED, patterns: TopicPatterns | None = None
    ) -> None:
        """`patterns` is shared by all groups of a broker."""
        self.epoch = 0
        self.plan_epoch = 0
        self.plan: dict[str, Share] = {}
        self.sizes: dict[UUID, int] = {}
        """Partitions of the topics the plan was made for."""
        self.members: dict[str, Consumer] = {}
        self.instances: dict[str, str] = {}
        self.changed = False
        self.changed_members: set[str] = set()
        self._topics = topics
        self._rules = rules
        self._patterns = TopicPatterns(topics) if patterns is None else patterns
        self._versions = (-1, -1)
        self._resolved: dict[_Subscription, frozenset[UUID]] = {}
        self._resolved_before: dict[_Subscription, frozenset[UUID]] = {}
        """What subscriptions were to the last plan, while another is made."""
        self._owners: dict[tuple[UUID, int], str] = {}
        self._renamed: dict[str, str] | None = None
        """While a plan is made: static members that came back under another id."""

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.plan_epoch:
            return "Assigning"
        for member in self.members.values():
            standing = member.standing
            if standing.step is not Step.STABLE or standing.epoch != self.plan_epoch:
                return "Reconciling"
        return "Stable"

    @property
    def assignor(self) -> str:
        """The one most members ask for."""
        asked = Counter(m.assignor for m in self.members.values() if m.assignor is not None)
        return asked.most_common(1)[0][0] if asked else DEFAULT_ASSIGNOR

    def add(self, member: Consumer) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        self._claim(member, member.standing)
        self.changed_members.add(member.member_id)

    def name(self, member: Consumer, instance_id: str) -> None:
        """The member is a static one from now on, or has another name."""
        if member.instance_id is not None:
            self.instances.pop(member.instance_id, None)
        member.instance_id = instance_id
        self.instances[instance_id] = member.member_id
        self.changed_members.add(member.member_id)

    def remove(self, member: Consumer) -> None:
        """The member is gone; others shall have what it had."""
        self._take_out(member)
        self.plan.pop(member.member_id, None)
        self.bump()

    def replace(self, before: Consumer, after: Consumer) -> None:
        """A static member is back under another id: everything it had is its own again."""
        self._take_out(before)
        self._rename(before.member_id, after.member_id)
        share = self.plan.pop(before.member_id, None)
        if share is not None:
            self.plan[after.member_id] = share
        self.changed = True
        self.add(after)

    def bump(self) -> None:
        self.epoch += 1
        self.changed = True

    @property
    def behind(self) -> bool:
        """Is the plan not known to be the one for the members and topics there are now?"""
        return self.epoch != self.plan_epoch or self._versions != self._versions_now

    @property
    def _versions_now(self) -> tuple[int, int]:
        """Of all that subscriptions are resolved by."""
        return self._topics.version, self._rules.version

    @property
    def work(self) -> int:
        """Roughly how much there is to be done for a plan: topics, of each member."""
        every = len(self._topics.all(internal=True))
        members = self.members.values()
        return sum(
            len(member.topics) + (every * member.pattern_cost if member.pattern else 0)
            for member in members
        )

    def catch_up(self) -> None:
        """Plan again if there is reason to, at once."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[int]:
        """Plan again if there is reason to, in steps; each yields how much it has done.

        The reasons: the epoch has grown, topics that members read have come, gone or grown, or
        patterns find others because members may see others.
        Members may come and go between steps: they find the plan that was begun before, and
        an epoch that has grown beyond it.
        """
        self._renamed = {}
        try:
            yield from self._plan_in_steps(self._renamed)
        finally:
            self._renamed = None

    def _plan_in_steps(self, renamed: Mapping[str, str]) -> Iterator[int]:
        planned, sizes, epoch = yield from self._survey()
        turned = self._turned()
        if epoch == self.plan_epoch:
            if sizes == self.sizes and not turned:
                return
            # Should the epoch have grown meanwhile, it is ahead of this plan also after this.
            self.bump()
            epoch += 1
        plan = yield from ASSIGNORS[self.assignor](planned, sizes, dict(self.plan))
        self.plan = {
            now: share
            for member_id, share in plan.items()
            if (now := renamed.get(member_id, member_id)) in self.members
        }
        self.sizes = sizes
        self.plan_epoch = epoch
        self.changed = True

    def _survey(self) -> Generator[int, None, tuple[dict[str, Planned], dict[UUID, int], int]]:
        """The members as assignors see them, the sizes of the topics they read, and the epoch."""
        while True:
            versions, epoch = self._versions_now, self.epoch
            if self._versions != versions:
                self._resolved_before = {**self._resolved, **self._resolved_before}
                self._resolved.clear()
                self._versions = versions
            self._forget_unused()
            planned: dict[str, Planned] = {}
            sizes: dict[UUID, int] = {}
            seen: set[UUID] = set()
            for member_id, member in tuple(self.members.items()):
                topics = yield from self._resolve(member)
                planned[member_id] = Planned(topics, member.instance_id)
                if self._versions_now != versions:
                    break
                for topic_id in topics - seen:
                    sizes[topic_id] = self._topics.by_id(topic_id).partitions
                seen |= topics
                yield 1 + len(topics)
                if self._versions_now != versions:
                    break
            else:
                return planned, sizes, epoch

    def _turned(self) -> bool:
        """Is any subscription one to other topics than when the last plan was made?"""
        before, self._resolved_before = self._resolved_before, {}
        return any(
            self._resolved.get(subscription, topics) != topics
            for subscription, topics in before.items()
        )

    def topics_of(self, member: Consumer) -> frozenset[UUID]:
        """The topics a member is subscribed to, of those that exist."""
        resolving = self._resolve(member)
        while True:
            try:
                next(resolving)
            except StopIteration as done:
                found: frozenset[UUID] = done.value
                return found

    def resolved(self, member: Consumer) -> bool:
        """Is it known which topics the member is subscribed to?"""
        return member.subscription in self._resolved

    def _forget_unused(self) -> None:
        """Drop what was resolved for subscriptions that no member has any longer."""
        if len(self._resolved) > len(self.members):
            used = {member.subscription for member in self.members.values()}
            for subscription in self._resolved.keys() - used:
                del self._resolved[subscription]

    def reconcile(
        self, member: Consumer, owned: Owned | None, *, resubscribed: bool = False
    ) -> None:
        """Bring a member nearer to the plan."""
        aim = Aim(self.plan_epoch, self.plan.get(member.member_id, NOTHING), self.topics_of(member))
        before = member.standing

        def free(topic: UUID, index: int) -> bool:
            return self._owners.get((topic, index), member.member_id) == member.member_id

        after = advance(before, aim, owned, free, resubscribed=resubscribed)
        if after is not before:
            self.stand(member, after)

    def stand(self, member: Consumer, after: Standing) -> None:
        self._release(member.standing)
        member.standing = after
        self._claim(member, after)
        self.changed_members.add(member.member_id)

    def waits_for_others(self, member: Consumer) -> bool:
        """Is something meant for this member still held by another?"""
        topics = self.topics_of(member)
        return any(
            self._owners.get((topic, index), member.member_id) != member.member_id
            for topic, indexes in self.plan.get(member.member_id, NOTHING).items()
            if topic in topics
            for index in indexes
        )

    def reads(self, topic: str) -> bool:
        if any(topic in member.topics for member in self.members.values()):
            return True
        patterns = {(m.pattern, m.sight) for m in self.members.values() if m.pattern}
        return any(
            pattern(text).matches(topic) and (sight is None or sight.sees(topic))
            for text, sight in patterns
        )

    def views(self) -> list[ConsumerView]:
        return [
            ConsumerView(
                member.member_id,
                member.instance_id,
                member.rack_id,
                member.client_id,
                member.client_host,
                member.standing.epoch,
                sorted(member.topics),
                member.pattern,
                member.standing.held,
                self.plan.get(member.member_id, NOTHING),
                member.classic is not None,
            )
            for member in self.members.values()
        ]

    def _resolve(self, member: Consumer) -> Generator[int, None, frozenset[UUID]]:
        """Return the topics of a subscription; yields the work of each step."""
        subscription = member.subscription
        known = self._resolved.get(subscription)
        if known is not None:
            return known
        versions = self._versions_now
        names, text, sight = subscription
        found: set[UUID] = set()
        for number, name in enumerate(names, 1):
            with suppress(TopicNotFound):
                found.add(self._topics.get(name).topic_id)
            if not number % STEP_COST:
                yield STEP_COST
        matching: frozenset[UUID] = frozenset()
        if text:
            matching = yield from self._patterns.find(text)
        if sight is not None:
            for number, topic_id in enumerate(matching, 1):
                with suppress(TopicNotFound):
                    if sight.sees(self._topics.by_id(topic_id).name):
                        found.add(topic_id)
                if not number % STEP_COST:
                    yield STEP_COST
            matching = frozenset()
        # Groups whose members read the same by a pattern share one set.
        topics = matching | found if found else matching
        if versions == self._versions_now == self._versions:
            self._resolved[subscription] = topics
        return topics

    def _rename(self, before: str, after: str) -> None:
        if self._renamed is not None:
            for first, now in self._renamed.items():
                if now == before:
                    self._renamed[first] = after
            self._renamed[before] = after

    def _take_out(self, member: Consumer) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None:
            self.instances.pop(member.instance_id, None)
        self._release(member.standing)
        self.changed_members.add(member.member_id)

    def _claim(self, member: Consumer, standing: Standing) -> None:
        for place in _places(standing):
            self._owners[place] = member.member_id

    def _release(self, standing: Standing) -> None:
        for place in _places(standing):
            self._owners.pop(place, None)


def _places(standing: Standing) -> Iterator[tuple[UUID, int]]:
    held: Held
    for held in (standing.held, standing.revoking):
        for topic, indexes in held.items():
            for index in indexes:
                yield topic, index
