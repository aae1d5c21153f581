"""The part of the contract about committed offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pentalog.model.later import Later
from pentalog.model.types import Offset, Partition


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a group goes on in one partition."""

    offset: Offset
    leader_epoch: int = -1
    metadata: str = ""
    timestamp_ms: int = -1
    """When it was committed; -1: now."""
    expire_ms: int = -1
    """When it expires, if the client that committed it said so; -1: by the broker's rule."""
    sequence: int = field(default=-1, compare=False)
    """Set by the broker: larger than that of every commit and staging before it."""


class Offsets(Protocol):
    """`(group, topic, partition)` to the next offset: one map for all protocols.

    Nothing here asks who may commit, or whether the topic exists; that is `Groups.commit`'s and
    the adapter's business.
    """

    def commit(
        self, group: str, offsets: Mapping[Partition, Committed], *, owner: str = ""
    ) -> Later[None]:
        """Seen at once; ready when it is on the disk.  `owner`: see `Access.owner`."""

    def committed(
        self, group: str, at: Collection[Partition] | None = None
    ) -> Mapping[Partition, Committed]:
        """Those that are there, of these partitions or of all.

        An answer that contains one of them, or says that there is none, waits for `settled`.
        """

    def walk(self, group: str) -> Iterator[tuple[Partition, Committed]]:
        """Yield all offsets of a group, for callers that use a few of them per turn.

        What is committed between two turns may be missing.  `settled` must be asked for after the
        last one.
        """

    def settled(self, group: str) -> Later[None]:
        """Ready once everything `committed` says of the group now is durable.

        Called in the same turn as `committed`: what it found is the answer, not what has been
        committed during the wait.  Refused if the disk fails or does not answer in time.
        """

    def forget(self, group: str, at: Collection[Partition] | None = None) -> Later[None]:
        """Drop the offsets of these partitions, or of all."""

    def holds(self, group: str) -> bool:
        """Return whether the group has any offset."""

    def groups(self) -> Collection[str]:
        """Every group with an offset, also one in an open transaction."""

    def names(self) -> Iterator[str]:
        """Yield the same in no order, without those that are removed between two of them."""

    def stage(
        self,
        producer_id: int,
        group: str,
        offsets: Mapping[Partition, Committed],
        *,
        owner: str = "",
    ) -> Later[None]:
        """Keep offsets until the producer's transaction ends: durable, but not visible.

        They count as `owner`'s.
        """

    def staged(self) -> Collection[int]:
        """The producers whose open transactions hold offsets."""

    def unstable(self, group: str, at: Partition) -> bool:
        """Does an open transaction hold an offset of this partition?"""

    def finish(self, producer_id: int, *, commit: bool, at_once: bool = False) -> Later[None]:
        """The transaction has ended: its offsets become real, or are dropped.

        Ready when that is so; many of them take more than a turn.  Doing it twice is doing it once.
        `at_once`: in this turn.  For a start, when no client waits.
        """

    def publish(self) -> None:
        """Let commits be read as records of an internal topic too, from now on.

        For clients that know such a topic; without one of them there need not be any.
        """
