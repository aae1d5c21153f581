"""One transactional id: whose it is, how far its transaction has come, its row on the disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from pentalog.broker.state import Row, Value
from pentalog.model.errors import (
    ProducerFenced,
    TransactionBusy,
    TransactionState,
    TransactionUnknown,
)
from pentalog.model.types import Identity, Partition

EPOCH_MAX: Final = (1 << 15) - 1
EPOCH_LAST: Final = EPOCH_MAX - 1
"""The last epoch a producer is given; the one behind it only ever fences."""

_PARTICIPANT_BYTES: Final = 200

COLUMNS: Final = (
    "name, producer_id, epoch, previous_id, last_epoch, next_id, timeout_ms, phase, bumps,"
    " participants, updated_ms"
)
UPSERT: Final = "INSERT OR REPLACE INTO transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
DELETE: Final = "DELETE FROM transactions WHERE name = ?"
ENLIST: Final = "INSERT INTO enlisted VALUES (?, ?, ?)"
DISMISS: Final = "DELETE FROM enlisted WHERE name = ?"


class Phase(Enum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED: Final = frozenset({Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT})


class Extent(NamedTuple):
    """How much of a partition a prepared transaction may be found in.

    What begins behind `end_offset`, or lies in another topic of the same name, is not of it.
    """

    topic_id: UUID
    end_offset: int


class Participants(NamedTuple):
    """What a producer has added to its transaction by one request."""

    partitions: Collection[Partition] = ()
    groups: Collection[str] = ()

    def size(self) -> int:
        """Return how much memory they take, roughly."""
        names = sum(map(len, self.groups)) if self.groups else 0
        return _PARTICIPANT_BYTES * (len(self.partitions) + len(self.groups)) + names

    def text(self) -> str:
        """As it is kept in the state."""
        return json.dumps([[list(at) for at in self.partitions], list(self.groups)])

    @classmethod
    def of_text(cls, text: str) -> Participants:
        partitions, groups = json.loads(text)
        return cls([Partition(*at) for at in partitions], groups)


class Transaction:
    __slots__ = (
        "added",
        "bumps",
        "charged",
        "enlisted",
        "epoch",
        "extents",
        "finishing",
        "groups",
        "last_epoch",
        "name",
        "next_id",
        "owner",
        "partitions",
        "phase",
        "previous_id",
        "producer_id",
        "staged",
        "started_ms",
        "started_s",
        "timeout_ms",
        "uncertain",
        "undecided",
        "unmarked",
        "updated_ms",
        "waiting",
    )

    def __init__(self, name: str, producer_id: int, timeout_ms: int) -> None:
        self.name = name
        self.producer_id = producer_id
        self.owner = ""
        """The principal that made the name, in this life of the broker."""
        self.epoch = -1
        self.previous_id = -1
        """The id before this one, whose epochs are used up."""
        self.last_epoch = -1
        """The epoch before this one, if the producer itself asked for the next."""
        self.next_id = -1
        """The id that takes over when the prepared end is complete."""
        self.timeout_ms = timeout_ms
        self.phase = Phase.EMPTY
        self.bumps = False
        """The last end gave the producer a new epoch."""
        self.partitions: dict[Partition, None] = {}
        self.groups: set[str] = set()
        self.charged = 0
        """Bytes that its participants count for."""
        self.added: list[Participants] = []
        """Participants that are not in the state file yet."""
        self.enlisted = 0
        """Rows of the state with participants that the producer has added."""
        self.started_ms = -1
        self.started_s = 0.0
        """When it began by the monotonic clock: timeouts do not follow a clock that is set."""
        self.updated_ms = 0
        self.extents: dict[Partition, Extent] = {}
        self.unmarked: set[Partition] = set()
        """Partitions of a prepared transaction whose marker is not on the disk yet."""
        self.staged = False
        """Offsets take part in the prepared end."""
        self.finishing = False
        """These become real, or are dropped, a few at a time."""
        self.undecided = False
        """A change of the identity or the decision is on its way to the disk."""
        self.uncertain = False
        """Read from the disk and not ended since: whether it was begun without data may be lost."""
        self.waiting: list[Callable[[Identity | None], None]] = []
        """Called when it is no longer busy, with its identity; with None if that takes longer."""

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.epoch)

    @property
    def busy(self) -> bool:
        return self.undecided or self.phase in PREPARED

    @property
    def commits(self) -> bool:
        return self.phase in (Phase.PREPARE_COMMIT, Phase.COMPLETE_COMMIT)

    def row(self) -> tuple[Value, ...]:
        partitions = [
            [at.topic, at.index, extent.topic_id.hex, extent.end_offset]
            for at, extent in self.extents.items()
        ]
        return (
            self.name,
            self.producer_id,
            self.epoch,
            self.previous_id,
            self.last_epoch,
            self.next_id,
            self.timeout_ms,
            self.phase.value,
            int(self.bumps),
            json.dumps({"partitions": partitions, "offsets": self.staged}),
            self.updated_ms,
        )

    @classmethod
    def of_row(cls, row: Row) -> Transaction:
        name, producer_id, epoch, previous_id, last_epoch, next_id, timeout_ms, *rest = row
        phase, bumps, participants, updated_ms = rest
        found = cls(name, producer_id, timeout_ms)
        found.epoch, found.previous_id, found.last_epoch = epoch, previous_id, last_epoch
        found.next_id = next_id
        found.phase = Phase(phase)
        found.bumps = bool(bumps)
        taking_part = json.loads(participants)
        found.staged = taking_part["offsets"]
        found.extents = {
            Partition(topic, index): Extent(UUID(hex=topic_id), end_offset)
            for topic, index, topic_id, end_offset in taking_part["partitions"]
        }
        found.updated_ms = updated_ms
        found.uncertain = True
        return found

    def check_owner(self, who: Identity) -> None:
        """Raise unless `who` may take part in a transaction of this name now."""
        if who.producer_id != self.producer_id:
            raise self.stranger(who)
        if who.epoch != self.epoch:
            raise self.fenced(who)
        if self.busy:
            raise self.ending()

    def stranger(self, who: Identity) -> TransactionUnknown:
        return TransactionUnknown(
            f"transactional id {self.name!r} is not that of producer {who.producer_id}; "
            f"it has producer {self.producer_id}: initialize it again"
        )

    def fenced(self, who: Identity | None) -> ProducerFenced:
        epoch = "none" if who is None else who.epoch
        return ProducerFenced(
            f"epoch {epoch} of transactional id {self.name!r} is not its newest, {self.epoch}: "
            f"another producer uses it, or the transaction took longer than {self.timeout_ms} ms"
        )

    def ending(self) -> TransactionBusy:
        return TransactionBusy(f"the transaction of {self.name!r} is ending: try again in a moment")

    def impossible(self, commit: bool) -> TransactionState:
        wish = "commit" if commit else "abort"
        return TransactionState(
            f"cannot {wish} the transaction of {self.name!r}: it is {self.phase.value}; "
            f"write something or add a partition first"
        )
