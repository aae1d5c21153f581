"""The contract between protocols and the broker; the only broker module protocols import.

A plain `def` never waits.  What another engine would have to wait for returns `Later`, which
the local engine fills before it returns wherever it can.  Every call may raise a `BrokerError`;
nothing else ever comes out of a correct call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from pentalog.broker.council import ALONE, Council
from pentalog.broker.council import Peer as Peer
from pentalog.broker.credentials import (
    NOBODY,
    TICKETLESS,
    TOKENLESS,
    TRUSTLESS,
    Bearers,
    Tickets,
    Tokens,
    Users,
)
from pentalog.broker.deliveries import UNSUBSCRIBED, Subscriptions
from pentalog.broker.group_offsets import Committed as Committed
from pentalog.broker.group_offsets import Offsets as Offsets
from pentalog.broker.knowledge import ALL_KNOWN, Knowledge
from pentalog.broker.membership import UNPLANNED, Consumers
from pentalog.broker.membership import Beat as Beat
from pentalog.broker.membership import Beaten as Beaten
from pentalog.broker.membership import ConsumersView as ConsumersView
from pentalog.broker.membership import ConsumerView as ConsumerView
from pentalog.broker.operation import FIXED, UNLIMITED, GroupSettings, Quotas, Settings
from pentalog.broker.security import UNGUARDED, Rules
from pentalog.broker.signpost import Signpost
from pentalog.broker.sourcing import UNSOURCED, Sourcing
from pentalog.broker.transformation import UNTRANSFORMED, SmartModules
from pentalog.kernels import Facts
from pentalog.model.errors import BrokerError
from pentalog.model.internal import INTERNAL
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import (
    Ack,
    Appended,
    Edge,
    Horizon,
    Identity,
    Marks,
    Offset,
    Partition,
    Slice,
    Volume,
)

T = TypeVar("T")


class Log(Protocol):
    """Batches in, batches out."""

    def append(
        self,
        at: Partition,
        batches: memoryview,
        facts: Facts | None = None,
        *,
        parted: bool = False,
        given: bool = False,
        opened: LogSettings | None = None,
        relayed: bool = False,
    ) -> Appended:
        """Take whole batches in the log's own format, all or none; ordered, never waits.

        `batches` is writable and is patched in place (offset and epoch lie outside the
        checksum); it is not needed any more when this returns.  `facts` is what
        `kernels.check_batches` said of exactly these bytes, if the caller asked already.
        Producer id, epoch and sequence are in the batches: a repeated batch is answered with
        the offsets it got the first time.  Offsets that others give out are -1 until `settle`
        tells them; such an engine takes one batch at a time, and refuses more with
        `RecordTooLarge`.  `parted` lets it take them one after the other: others' records may
        come between them, and if one is refused, those before it are there.  `given`: whoever
        calls lets go of the buffer that is behind all of `batches`, and the engine may keep it.
        `opened`: what `admission` gave back with these batches.  `relayed`: a topic has accepted
        these records before, so no limit of timestamps applies, even if the clock was set back.
        """

    def admission(
        self, at: Partition, batches: memoryview, facts: Facts, *, owned: bool = False
    ) -> Later[Admitted] | None:
        """Open batches whose records must be looked at, and check each; None if none must be.

        The log does so itself in `append`, however long it takes; whoever may have to do with
        large batches asks here first, waits, and appends what comes back.  Refused as `append`
        would be.  `batches` is not needed any more when this returns, unless the caller says that
        they are `owned`: in memory of their own, which nothing else will change.
        """

    def settle(self, appended: Appended, ack: Ack) -> Later[Appended]:
        """Ready, with their offsets, as soon as the records are as safe as `ack` demands."""

    def read(
        self,
        at: Partition,
        offset: Offset,
        *,
        bytes_max: int,
        horizon: Horizon,
        whole_first: bool = True,
    ) -> Later[Slice]:
        """Whole batches from the one that contains `offset`, up to `bytes_max` and the horizon.

        With `whole_first` the first batch comes whole even if it is larger than `bytes_max`.
        Never waits for data: an empty slice if there is none yet; `wait` before that is answered.
        Not ready at once only when the bytes must come from a slow disk.
        """

    def open(
        self, at: Partition, offset: Offset, *, bytes_max: int, horizon: Horizon
    ) -> Later[Opened]:
        """Like `read`, for protocols that look inside batches.

        The first batch comes whole, or if it was compressed as much of it as fits into
        `bytes_max` opened, at least one record; the others only while they fit.  If all of it
        must stay hidden, nothing comes, but `next_offset` has moved.  A batch that cannot be
        read is skipped, counted and logged.
        """

    def wait(
        self,
        positions: Mapping[Partition, Offset],
        *,
        bytes_min: int,
        horizon: Horizon,
        timeout_ms: int,
    ) -> Waiting:
        """Ready (True) once `bytes_min` lie behind the positions, (False) when time is up.

        What was written before this call is durable before it is False, however short the time
        is.  With `timeout_ms` 0 it waits for that commit only, if there is anything to commit.
        """

    def ends(self, partitions: Collection[Partition]) -> Later[Mapping[Partition, Offset]]:
        """Where partitions end, ready once everything before that is durable: one group commit.

        Every answer that contains the end of a partition waits for this first, also if the end
        is then read from `marks` or `locate`.  Never refused: for a partition that cannot sync it
        is the durable mark, and a deleted partition is left out.
        """

    def marks(self, at: Partition) -> Marks: ...

    def locate(self, at: Partition, when: Edge | int) -> Later[tuple[Offset, int]]:
        """Offset and timestamp of an edge, or of the first record at or after `when` ms.

        (-1, -1) if there is no such record.
        """

    def size_bytes(self, at: Partition) -> int:
        """Bytes of the partition's segments on disk."""

    def appended_bytes(self, at: Partition) -> int:
        """Bytes of batches appended to the partition since the broker started."""

    def volume(self) -> Volume:
        """The disk everything is on."""

    def segments(self, at: Partition) -> int:
        """How many there are, the one that is written to included."""


ADMISSION_BYTES_MIN: Final = 32 << 10
"""Uncompressed batches of less are appended at once: whatever a topic demands takes no time."""


class Admitted(NamedTuple):
    """Batches whose records were checked, as they are to be written."""

    batches: memoryview
    facts: Facts
    settings: LogSettings
    """Under which they were checked: another check is due if these have changed."""


class Opened(NamedTuple):
    """Batches of one partition as a reader of records wants them."""

    batches: bytes | bytearray | memoryview
    """Whole batches one behind another, uncompressed; control batches and those of aborted
    transactions left out.  The first may begin before the offset asked for."""
    marks: Marks
    next_offset: Offset
    """Where to go on: behind everything looked at, what was left out included."""


class Waiting(Later[bool]):
    """A wait that can be given up."""

    __slots__ = ()

    def cancel(self) -> None:
        """Forget it: nothing will be filled any more."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic as somebody wishes it."""

    name: str
    partitions: int | None = None
    """None: the broker's default."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """By Kafka's names (`retention.ms`); only those that differ from the defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as it is."""

    name: str
    topic_id: UUID
    partitions: int
    overrides: Mapping[str, str]
    settings: LogSettings

    @property
    def internal(self) -> bool:
        """The broker's own: to be read, not to be written or deleted."""
        return self.name in INTERNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One topic setting, for those who list them."""

    name: str
    value: str
    default: str
    overridden: bool
    kind: str
    """boolean, string, int, long, double or list."""
    documentation: str


class Topics(Protocol):
    version: int
    """Grows with every change of any topic, so answers built from topics can be kept."""

    def create(self, spec: TopicSpec, *, dry_run: bool = False) -> Topic: ...
    def prepare(self, spec: TopicSpec) -> Later[None]:
        """Make ready what `create`, or `grow` of a topic there is, would make at once.

        For topics of many partitions: it takes several turns, in which others are served.  And
        for an engine that has to ask others: there `create` only takes what was made ready.
        """

    def delete(self, name: str) -> None: ...
    def get(self, name: str) -> Topic: ...
    def by_id(self, topic_id: UUID) -> Topic: ...
    def all(self, *, internal: bool = False) -> Sequence[Topic]:
        """In the order of their names; the broker's own only if asked for."""

    def grow(self, name: str, partitions: int, *, dry_run: bool = False) -> None: ...
    def configure(
        self,
        name: str,
        changes: Mapping[str, str | None],
        *,
        replace: bool = False,
        dry_run: bool = False,
    ) -> None:
        """Change settings (None: back to the default); with `replace`, drop all others first."""

    def settings(self, name: str) -> Sequence[Setting]: ...
    def defaults(self) -> Sequence[Setting]:
        """Every setting, as a topic without settings of its own has it."""

    def settle(self) -> Later[None]:
        """Ready as soon as every change made so far is on the disk.

        An engine that has to ask others begins in the turn of the change, and refuses here, to
        whoever asks in the same turn.
        """

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        """Call `run` after every change of any topic; returns what ends that."""

    def trim(self, at: Partition, before: Offset) -> Offset:
        """Request deletion of all records below an offset; returns the new log start.

        It takes effect when `settle` is ready.
        """


class Producers(Protocol):
    def identify(self) -> Later[Identity]:
        """A producer id nobody had before, in this life of the broker or any other."""


class Fence(NamedTuple):
    """Who a member says it is; refused if the group has moved on."""

    member_id: str = ""
    generation: int = -1
    """Or the member epoch, in a group the broker plans."""
    instance_id: str | None = None


class Proposal(NamedTuple):
    """One way of sharing partitions that a member knows, and what it tells the leader for it."""

    name: str
    metadata: bytes
    topics: frozenset[str] | None = None
    """The topics the member subscribes to, where the adapter can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """A member that wants to be in the next generation of a leader-planned group."""

    member_id: str = ""
    """Empty: new."""
    instance_id: str | None = None
    """The name that outlives restarts, of a static member."""
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    proposals: tuple[Proposal, ...]
    """The one it likes best comes first."""
    id_required: bool = True
    """A new member is told its id first and joins with it."""
    plan_skippable: bool = False
    """The member understands that it leads without planning."""
    reason: str = ""
    owner: str = ""
    """The principal that what is kept of the member is charged to (`Access.owner`)."""


class Candidate(NamedTuple):
    """A member, as the leader sees it when it plans."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    member_id: str
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str
    candidates: Sequence[Candidate] = ()
    """Everybody; told to the leader only."""
    skip_plan: bool = False


class Synced(NamedTuple):
    """A member's part of the plan."""

    protocol_type: str | None
    protocol: str | None
    assignment: bytes


class Leaving(NamedTuple):
    """Who leaves: by its id, or (empty id) by the name of a static member."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


class MemberView(NamedTuple):
    """A member of a leader-planned group, for those who list them."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupView(NamedTuple):
    """A group, for those who list them."""

    name: str
    kind: str
    """`classic` (leader-planned) or `consumer` (broker-planned)."""
    state: str
    """Empty, PreparingRebalance, CompletingRebalance, Stable, Dead; others as `kind` has them."""
    protocol_type: str
    protocol: str = ""
    members: Sequence[MemberView] = ()


class Groups(Protocol):
    """Rosters: who shares the partitions of which topics, and may commit for the group."""

    @property
    def offsets(self) -> Offsets: ...

    @property
    def settings(self) -> GroupSettings: ...

    def join(self, group: str, joining: Joining) -> Later[Joined]:
        """Be in the next generation; ready when it is complete."""

    def sync(
        self,
        group: str,
        fence: Fence,
        plan: Mapping[str, bytes],
        *,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> Later[Synced]:
        """Bring the plan (the leader: assignments by member) or fetch one's own part of it."""

    def heartbeat(self, group: str, fence: Fence) -> None: ...

    def leave(self, group: str, leaving: Sequence[Leaving]) -> Sequence[BrokerError | None]:
        """Leave, several at once; what became of each.  Raises if there is no such group."""

    def commit(
        self,
        group: str,
        fence: Fence,
        offsets: Mapping[Partition, Committed],
        *,
        epoch_aware: bool = True,
        owner: str = "",
    ) -> Later[None]:
        """Commit for a member, or by an empty fence where there is none; `epoch_aware`: KIP-848.

        `owner`: see `Access.owner`.
        """

    def check_commit(
        self, group: str, fence: Fence, *, transactional: bool, epoch_aware: bool = True
    ) -> None:
        """Raise unless this member may commit now."""

    def check_fetch(self, group: str, fence: Fence) -> None:
        """Raise unless this member may ask for offsets now; an empty fence may always."""

    def view(self, group: str) -> GroupView:
        """Raises `GroupNotFound`."""

    def all(self) -> Iterable[GroupView]:
        """Every group, without its members; there may be many, and a caller pauses between them."""

    def delete(self, group: str) -> Later[None]:
        """Delete an empty group and its offsets."""

    def forget(self, group: str, at: Collection[Partition]) -> Mapping[Partition, BrokerError]:
        """Drop offsets of topics nobody in the group reads; says which were refused.

        Durable with `settle`.
        """

    def settle(self) -> Later[None]:
        """Ready as soon as every change made so far is on the disk."""


class TransactionView(NamedTuple):
    """A transactional id, for those who list them."""

    name: str
    who: Identity
    phase: str
    """Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort."""
    timeout_ms: int
    started_ms: int
    """-1 unless a transaction is open."""
    partitions: Sequence[Partition]


class WriterView(NamedTuple):
    """An idempotent producer as one partition remembers it."""

    who: Identity
    last_sequence: int
    timestamp_ms: int
    transaction_start: Offset
    """-1 if it has no open transaction here."""


class Transactions(Protocol):
    """Writes to several partitions, and offsets of groups, that are seen together or never.

    Whoever uses an identity that is no longer the newest is refused with `ProducerFenced`, a
    name without an identity with `TransactionUnknown`, and everything that meets an end
    on its way to the disk with `TransactionBusy`.
    """

    def identify(
        self, name: str, *, timeout_ms: int, known: Identity | None = None, owner: str = ""
    ) -> Later[Identity]:
        """A new identity for this name: earlier ones are fenced, what they left open is aborted.

        With `known` only if that is the newest: the producer itself wants to go on.  `owner`: see
        `Access.owner`.
        """

    def enlist(self, name: str, who: Identity, at: Collection[Partition]) -> None:
        """These partitions take part; the first call begins a transaction."""

    def enlist_group(self, name: str, who: Identity, group: str) -> None: ...

    def enlisted(self, name: str, who: Identity, at: Partition) -> bool: ...

    def admit(self, name: str, who: Identity, at: Partition, *, enlists: bool) -> None:
        """May this producer write transactional batches here now, under this name?

        With `enlists` the write itself makes the partition take part.
        """

    def stage(
        self,
        name: str,
        who: Identity,
        group: str,
        offsets: Mapping[Partition, Committed],
        *,
        enlists: bool,
    ) -> Later[None]:
        """Offsets that become real with the transaction; whether the member may is not asked."""

    def end(self, name: str, who: Identity, *, commit: bool, bump: bool) -> Later[Identity]:
        """Commit or abort; ready when every reader can see it.

        With `bump` the producer goes on with the identity returned, so that writes of the ended
        transaction that are still under way are fenced.  Asked again, answers again.
        """

    def mark(self, who: Identity, at: Partition, *, commit: bool) -> Later[None]:
        """Write one marker by hand, past the rules: for those who clean up."""

    def all(self, pattern: str | None = None) -> Iterator[TransactionView | None]:
        """Every name, or those that match a regular expression (RE2's) as a whole.

        None for each that does not match: looking through many names takes long, and a caller
        pauses between them.
        """

    def view(self, name: str) -> TransactionView:
        """Raises `TransactionUnknown`."""

    def writers(self, at: Partition) -> Sequence[WriterView]: ...

    def unended(self, at: Partition) -> Offset | None:
        """Return where the oldest transaction begins that has not ended in a partition."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Broker:
    """One broker: everything a protocol may ask for."""

    cluster_id: str
    """22 characters, made once per data directory."""
    log: Log
    topics: Topics
    producers: Producers
    groups: Groups
    transactions: Transactions
    quotas: Quotas = field(default=UNLIMITED, kw_only=True)
    settings: Settings = field(default=FIXED, kw_only=True)
    consumers: Consumers = field(default=UNPLANNED, kw_only=True)
    sourcing: Sourcing = field(default=UNSOURCED, kw_only=True)
    subscriptions: Subscriptions = field(default=UNSUBSCRIBED, kw_only=True)
    smart_modules: SmartModules = field(default=UNTRANSFORMED, kw_only=True)
    rules: Rules = field(default=UNGUARDED, kw_only=True)
    users: Users = field(default=NOBODY, kw_only=True)
    tokens: Tokens = field(default=TOKENLESS, kw_only=True)
    bearers: Bearers = field(default=TRUSTLESS, kw_only=True)
    knowledge: Knowledge = field(default=ALL_KNOWN, kw_only=True)
    tickets: Tickets = field(default=TICKETLESS, kw_only=True)
    council: Council = field(default=ALONE, kw_only=True)
    signpost: Signpost | None = field(default=None, kw_only=True)
    """None: Kafka's clients are served here, and need not go anywhere else."""
    _shared: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def share(self, protocol: str, make: Callable[[], T]) -> T:
        """Return the object that all connections of a protocol share, created on first use.

        It belongs to the broker and is freed with it.
        """
        if protocol not in self._shared:
            self._shared[protocol] = make()
        shared: T = self._shared[protocol]
        return shared
