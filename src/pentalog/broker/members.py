"""The members of one leader-planned group: who they are, what all know, who is overdue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from pentalog.broker import group_memory
from pentalog.broker.port import Joined, Joining, Proposal, Synced
from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.config import Config
from pentalog.model.errors import BrokerError, InstanceFenced, UnknownMember
from pentalog.model.later import Later
from pentalog.runtime import Runtime, Timer, Turns


class Member:
    """One member of a roster."""

    __slots__ = (
        "armed_for",
        "assignment",
        "bytes",
        "client_host",
        "client_id",
        "deadline",
        "instance_id",
        "joining",
        "member_id",
        "new",
        "owner",
        "proposals",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "syncing",
        "timer",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        proposals: tuple[Proposal, ...],
        owner: str = "",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.proposals = proposals
        self.owner = owner
        """The principal that `bytes` are charged to."""
        self.bytes = 0
        self.assignment = b""
        self.joining: Later[Joined] | None = None
        self.syncing: Later[Synced] | None = None
        self.new = False
        """Waits for its first generation, and sends no heartbeats yet."""
        self.deadline = 0.0
        self.armed_for = 0.0
        self.timer: Timer | None = None

    def metadata(self, protocol: str | None) -> bytes:
        return next((p.metadata for p in self.proposals if p.name == protocol), b"")

    def topics(self, protocol: str | None) -> frozenset[str] | None:
        return next((p.topics for p in self.proposals if p.name == protocol), None)

    def proposes(self, proposals: Sequence[Proposal]) -> bool:
        """Is this what it proposes already?"""
        return [p[:2] for p in self.proposals] == [p[:2] for p in proposals]

    def vote(self, shared: set[str]) -> str:
        return next(p.name for p in self.proposals if p.name in shared)


class Attendance:
    """Notices members that are not heard of in time; one that waits for an answer is alive."""

    def __init__(self, runtime: Runtime, turns: Turns, overdue: Callable[[Member], None]) -> None:
        self._runtime = runtime
        self._turns = turns
        self._overdue = overdue

    def expect(self, member: Member, timeout_ms: int) -> None:
        """Expect to hear of a member within this time; moves a deadline, mostly no timer."""
        deadline = self._runtime.monotonic() + timeout_ms / 1000
        member.deadline = deadline
        if member.timer is None or deadline < member.armed_for:
            if member.timer is not None:
                member.timer.cancel()
            self._arm(member, timeout_ms)

    def _arm(self, member: Member, delay_ms: float) -> None:
        member.armed_for = self._runtime.monotonic() + delay_ms / 1000
        member.timer = self._runtime.after(delay_ms, lambda: self._look(member))

    def _look(self, member: Member) -> None:
        member.timer = None
        waits = member.joining is not None or member.syncing is not None
        left_ms = (member.deadline - self._runtime.monotonic()) * 1000
        if waits and not member.new:
            self._arm(member, member.session_timeout_ms)
        elif left_ms >= 1:
            self._arm(member, left_ms)
        else:
            self._turns.do(lambda: self._give_up(member))

    def _give_up(self, member: Member) -> None:
        if member.timer is None:  # not heard of since
            self._overdue(member)


class Reservations:
    """Ids given out whose owners have not joined with them yet."""

    def __init__(
        self, runtime: Runtime, memory: PrincipalLimits, never_came: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._memory = memory
        self._never_came = never_came
        self._timers: dict[str, Timer] = {}
        self._owners: dict[str, str] = {}

    @property
    def any(self) -> bool:
        return bool(self._timers)

    def give(self, member_id: str, timeout_ms: int, owner: str) -> None:
        def over() -> None:
            if self.take(member_id):
                self._never_came()

        self._timers[member_id] = self._runtime.after(timeout_ms, over)
        self._owners[member_id] = owner
        self._memory.add(owner, group_memory.RESERVED_BYTES + len(member_id))

    def take(self, member_id: str) -> bool:
        """The owner has come, or will not come any more; False if there was no such id."""
        timer = self._timers.pop(member_id, None)
        if timer is not None:
            timer.cancel()
            size = group_memory.RESERVED_BYTES + len(member_id)
            self._memory.release(self._owners.pop(member_id), size)
        return timer is not None

    def close(self) -> None:
        for member_id in list(self._timers):
            self.take(member_id)


class Members:
    """Members by id, in the order they came, and by the name of the static ones."""

    def __init__(self, group: str, memory: PrincipalLimits) -> None:
        self._group = group
        self._memory = memory
        self._by_id: dict[str, Member] = {}
        self._instances: dict[str, str] = {}
        self._supported: Counter[str] = Counter()
        self.awaiting = 0
        """Those whose join waits for the next generation."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __contains__(self, member: Member) -> bool:
        return self._by_id.get(member.member_id) is member

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def static(self, instance_id: str) -> Member | None:
        member_id = self._instances.get(instance_id)
        return None if member_id is None else self._by_id[member_id]

    def find(self, member_id: str, instance_id: str | None) -> Member:
        if instance_id is not None:
            current = self.static(instance_id)
            if current is None:
                raise UnknownMember(f"group {self._group!r} has no static member {instance_id!r}")
            if current.member_id != member_id:
                raise fenced(self._group, instance_id)
        member = self._by_id.get(member_id)
        if member is None:
            raise UnknownMember(
                f"group {self._group!r} has no member {member_id!r}: join it without an id"
            )
        return member

    def check_room(self, joining: Joining) -> None:
        """Raise `GroupFull` if what a member says of itself does not fit in memory."""
        known = self.get(joining.member_id) or self.static(joining.instance_id or "")
        more = _member_bytes(joining.client_id, joining.instance_id, joining.proposals)
        if known is not None:
            more += len(known.assignment) - known.bytes
        self._memory.check(joining.owner, more)

    def check_plan(self, leader: Member, plan: Mapping[str, bytes], config: Config) -> None:
        """Raise `GroupFull` if a plan does not fit in memory."""
        more = 0
        for member_id in plan.keys() & self._by_id.keys():
            group_memory.check_bytes(len(plan[member_id]), config)
            more += len(plan[member_id]) - len(self._by_id[member_id].assignment)
        self._memory.check(leader.owner, more)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Give a member its part of the plan."""
        member.assignment = assignment
        self._charge(member)

    def release(self) -> None:
        """Free what members are charged for: the group is replaced or deleted."""
        for member in self:
            self._memory.release(member.owner, member.bytes)
            member.bytes = 0

    def _charge(self, member: Member) -> None:
        size = _member_bytes(member.client_id, member.instance_id, member.proposals)
        size += len(member.assignment)
        self._memory.add(member.owner, size - member.bytes)
        member.bytes = size

    def _forget_proposals(self, member: Member) -> None:
        for proposal in member.proposals:
            self._supported[proposal.name] -= 1
            if not self._supported[proposal.name]:
                del self._supported[proposal.name]

    def add(self, member: Member) -> None:
        self._by_id[member.member_id] = member
        self._charge(member)
        self._supported.update(proposal.name for proposal in member.proposals)
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        """Take a member out; what it waits for is refused."""
        member_id = member.member_id
        del self._by_id[member_id]
        self._memory.release(member.owner, member.bytes)
        member.bytes = 0
        self._forget_proposals(member)
        if member.instance_id is not None and self._instances.get(member.instance_id) == member_id:
            del self._instances[member.instance_id]
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None
        self.refuse(member, UnknownMember(f"{member_id!r} is no longer in group {self._group!r}"))

    def refuse(self, member: Member, refusal: BrokerError) -> None:
        """Answer whatever a member waits for."""
        joining, member.joining = member.joining, None
        syncing, member.syncing = member.syncing, None
        if joining is not None:
            self.awaiting -= 1
            joining.refuse(refusal)
        if syncing is not None:
            syncing.refuse(refusal)

    def await_join(self, member: Member, replaced: BrokerError) -> Later[Joined]:
        """Let a member wait for the next generation; an earlier wait of it is refused."""
        if member.joining is None:
            self.awaiting += 1
        else:
            member.joining.refuse(replaced)
        member.joining = Later()
        return member.joining

    def update(self, member: Member, joining: Joining) -> None:
        """What a member says of itself when it joins again."""
        self._forget_proposals(member)
        self._supported.update(proposal.name for proposal in joining.proposals)
        member.proposals = joining.proposals
        self._charge(member)
        member.session_timeout_ms = joining.session_timeout_ms
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms

    def rename(self, member: Member, member_id: str) -> None:
        """Another process of a static member; its place is kept, plans may depend on the order."""
        before = member.member_id
        self._by_id = {
            (member_id if known == before else known): kept for known, kept in self._by_id.items()
        }
        member.member_id = member_id
        if member.instance_id is not None:
            self._instances[member.instance_id] = member_id

    def all_know_one_of(self, proposals: Sequence[Proposal]) -> bool:
        everybody = len(self._by_id)
        return any(self._supported[proposal.name] == everybody for proposal in proposals)

    def choose(self) -> str:
        """The protocol all members know that most of them like best."""
        everybody = len(self._by_id)
        shared = {name for name, count in self._supported.items() if count == everybody}
        votes = Counter(member.vote(shared) for member in self)
        return votes.most_common(1)[0][0]

    def topics(self) -> frozenset[str] | None:
        """What the members read together; None if that is not known of all."""
        found: set[str] = set()
        for member in self:
            for proposal in member.proposals:
                if proposal.topics is None:
                    return None
                found |= proposal.topics
        return frozenset(found)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self), default=0)


def _member_bytes(client_id: str, instance_id: str | None, proposals: Sequence[Proposal]) -> int:
    return group_memory.texts_bytes(client_id, instance_id) + group_memory.proposals_bytes(
        proposals
    )


def fenced(group: str, instance_id: str) -> InstanceFenced:
    return InstanceFenced(
        f"another process has joined group {group!r} as {instance_id!r}: stop one of them, or "
        "give it another group.instance.id"
    )
