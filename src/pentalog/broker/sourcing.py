"""The part of the contract for clients that name themselves: producers, rosters, aggregates.

Here clients choose the names of producers, the broker shares partitions out at once and without a
barrier, and a topic may hold the events of aggregates, numbered without a gap for each key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from pentalog.kernels import Facts
from pentalog.model.errors import GroupNotFound, ProducerFenced, UnsupportedVersion
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import Appended, Identity, Offset, Partition


class Sequenced(NamedTuple):
    """A batch as its producer numbered it, and where it begins."""

    sequence_first: int
    sequence_last: int
    base_offset: Offset


class NamedProducers(Protocol):
    """Producers whose names and epochs are their own choice."""

    def epoch(self, name: bytes) -> int | None:
        """The newest epoch seen of this name."""

    def who(self, name: bytes, epoch: int) -> Identity:
        """The identity of this life of the producer; the same in every life of the broker."""

    def owner(self, name: bytes) -> str:
        """Return the principal that used this name first; empty: anyone may use it."""

    def enter(self, name: bytes, epoch: int, owner: str = "", charged: str = "") -> Later[None]:
        """This life writes: earlier ones are fenced as soon as it is ready.

        The name belongs to `owner` if it belonged to none.  One that belongs to none counts for
        the client `charged`.  Raises `ProducerFenced` if a later life has been seen.
        """

    def written(self, at: Partition, who: Identity) -> Sequence[Sequenced]:
        """The last batches this producer wrote here, newest last; none: it is not known here."""


class Share(NamedTuple):
    """A member's part of the partitions."""

    member_id: str
    generation: int
    partitions: Sequence[int]


class MemberShare(NamedTuple):
    """A member of a roster, for those who list them."""

    member_id: str
    seen_ms: int
    partitions: Sequence[int]


class RosterView(NamedTuple):
    group: str
    topic: str
    generation: int
    partitions: int
    members: Sequence[MemberShare]
    changed_ms: int


class SharedRosters(Protocol):
    """Groups whose partitions the broker shares out at once: one roster per group and topic.

    Raises `GroupNotFound` where there is no roster, `UnknownMember` for strangers and
    `StaleGeneration` for members that have missed a change.
    """

    def register(self, group: str, topic: str, owner: str = "") -> None:
        """The group reads this topic; durable with `settle`.

        Raises `Overloaded` if `owner`, a client, has made too many already.
        """

    def join(
        self,
        group: str,
        topic: str,
        name: str,
        *,
        generation: int | None = None,
        owner: str = "",
    ) -> tuple[Share, bool]:
        """Come in, or come back; says whether the member was there already.

        `name` is the client's own, or the member id it got.  With `generation` only a member
        that is there may come back.  `owner` is the client that the member counts for.
        """

    def sync(self, group: str, topic: str, member_id: str, generation: int) -> Share: ...
    def heartbeat(self, group: str, topic: str, member_id: str, generation: int) -> None: ...

    def leave(self, group: str, topic: str, name: str, *, generation: int | None = None) -> str:
        """Leave, by the member id or by the client's own name; returns the member id."""

    def leave_elsewhere(self, group: str, topic: str, member_id: str) -> Later[bool]:
        """Let a member leave that others let in; False if there is none of that id."""

    def check(self, group: str, topic: str, member_id: str, generation: int) -> Share:
        """A member that may act for the group now."""

    def topics(self, group: str) -> Collection[str]:
        """What the group reads, as far as it was told."""

    def view(self, group: str, topic: str) -> RosterView: ...
    def all(self) -> Sequence[tuple[str, str]]:
        """Every (group, topic)."""

    def settle(self) -> Later[None]: ...


class Conflict(NamedTuple):
    """An event was not the next one of its aggregate."""

    version: int
    """The version the aggregate has."""


class Extent(NamedTuple):
    """Where the events of an aggregate lie; all 0 if there are none."""

    version: int = 0
    first_offset: Offset = 0
    next_offset: Offset = 0


class Snapshot(NamedTuple):
    version: int
    payload: bytes


class Aggregates(Protocol):
    """Events by key, numbered 1, 2, 3 ...; the log itself is the truth."""

    def extent(self, at: Partition, key: bytes) -> Later[Extent]: ...

    def append(
        self,
        at: Partition,
        key: bytes,
        version: int,
        batch: memoryview,
        facts: Facts,
        *,
        owner: str = "",
        opened: LogSettings | None = None,
    ) -> Later[Appended | Conflict]:
        """Append the one event in `batch` if `version` is the next; ready when it is durable.

        A new aggregate counts for `owner`, the client.  `opened`: what `Log.admission` gave back
        with the batch.
        """

    def save_snapshot(self, topic: str, key: bytes, snapshot: Snapshot) -> Later[None]: ...
    def snapshot(self, topic: str, key: bytes) -> Later[Snapshot | None]: ...
    def check(self) -> None:
        """Raise `Overloaded` if it cannot be answered here at the moment."""


class TopicOptions(Protocol):
    """What a protocol wants to remember of a topic and the log has no use for."""

    def get(self, topic: str) -> Mapping[str, str]: ...
    def set(self, topic: str, options: Mapping[str, str]) -> None:
        """Durable with `Topics.settle`."""

    def check(self) -> None:
        """Raise `Overloaded` if nothing can be set here at the moment."""


class Unnamed:
    """Implements `NamedProducers` for a broker that has none."""

    def epoch(self, name: bytes) -> int | None:
        return None

    def who(self, name: bytes, epoch: int) -> Identity:
        return Identity(-1, -1)

    def owner(self, name: bytes) -> str:
        return ""

    def enter(self, name: bytes, epoch: int, owner: str = "", charged: str = "") -> Later[None]:
        raise ProducerFenced("this broker keeps no producers by name: write without a sequence")

    def written(self, at: Partition, who: Identity) -> Sequence[Sequenced]:
        return ()


class Unshared:
    """Implements `SharedRosters` for a broker that shares nothing out."""

    def register(self, group: str, topic: str, owner: str = "") -> None:
        raise _no_groups(group)

    def join(
        self,
        group: str,
        topic: str,
        name: str,
        *,
        generation: int | None = None,
        owner: str = "",
    ) -> tuple[Share, bool]:
        raise _no_groups(group)

    def sync(self, group: str, topic: str, member_id: str, generation: int) -> Share:
        raise _no_groups(group)

    def heartbeat(self, group: str, topic: str, member_id: str, generation: int) -> None:
        raise _no_groups(group)

    def leave(self, group: str, topic: str, name: str, *, generation: int | None = None) -> str:
        raise _no_groups(group)

    def leave_elsewhere(self, group: str, topic: str, member_id: str) -> Later[bool]:
        raise _no_groups(group)

    def check(self, group: str, topic: str, member_id: str, generation: int) -> Share:
        raise _no_groups(group)

    def topics(self, group: str) -> Collection[str]:
        return ()

    def view(self, group: str, topic: str) -> RosterView:
        raise _no_groups(group)

    def all(self) -> Sequence[tuple[str, str]]:
        return ()

    def settle(self) -> Later[None]:
        return Later.now(None)


class Unsourced:
    """Implements `Aggregates` for a broker that keeps none."""

    def extent(self, at: Partition, key: bytes) -> Later[Extent]:
        raise _no_aggregates()

    def append(
        self,
        at: Partition,
        key: bytes,
        version: int,
        batch: memoryview,
        facts: Facts,
        *,
        owner: str = "",
        opened: LogSettings | None = None,
    ) -> Later[Appended | Conflict]:
        raise _no_aggregates()

    def save_snapshot(self, topic: str, key: bytes, snapshot: Snapshot) -> Later[None]:
        raise _no_aggregates()

    def snapshot(self, topic: str, key: bytes) -> Later[Snapshot | None]:
        raise _no_aggregates()

    def check(self) -> None:
        """It can be refused at any time."""


class NoOptions:
    """Implements `TopicOptions` for a broker that remembers none."""

    def get(self, topic: str) -> Mapping[str, str]:
        return {}

    def set(self, topic: str, options: Mapping[str, str]) -> None:
        if options:
            raise UnsupportedVersion(f"this broker remembers no options of topic {topic!r}")

    def check(self) -> None:
        """It can be refused at any time."""


def _no_groups(group: str) -> GroupNotFound:
    return GroupNotFound(f"group {group!r}: this broker shares out no partitions of its own accord")


def _no_aggregates() -> UnsupportedVersion:
    return UnsupportedVersion("this broker keeps no aggregates: write plain records")


@dataclass(frozen=True, slots=True)
class Sourcing:
    """What `port.Broker` has for such clients."""

    producers: NamedProducers = field(default_factory=Unnamed)
    rosters: SharedRosters = field(default_factory=Unshared)
    aggregates: Aggregates = field(default_factory=Unsourced)
    options: TopicOptions = field(default_factory=NoOptions)


UNSOURCED: Final = Sourcing()
