"""What an engine must look up elsewhere before the port's plain verbs can answer it.

`topics.get`, `log.marks` and `offsets.committed` never wait: they say what the engine knows.  The
local engine knows everything.  One that asks others is told first what is about to be asked of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from pentalog.model.later import Later
from pentalog.model.types import Edge, Offset, Partition


class Knowledge(Protocol):
    """Every answer is ready once the engine knows what it could know when it was asked.

    What is not there is not a refusal: the plain verb says so afterwards.  `Overloaded` is
    refused if nobody could be asked.
    """

    @property
    def current(self) -> bool:
        """Everything is known at any time: nothing need be asked for here."""

    def topics(self, *, settings: bool = False) -> Later[None]:
        """Which topics there are; with `settings`, also how each of them is set."""

    def topic(self, name: str, partition: int = 0) -> Later[None]:
        """How this one is set, and whether it has this partition.

        What others have deleted since may still be known; whoever uses it is told.
        """

    def partitions(self, topic: str, indexes: Collection[int] | None = None) -> Later[None]:
        """The marks of these partitions, or of all; what was appended here before is in them."""

    def sizes(self, topics: Collection[str]) -> Later[None]:
        """What `log.size_bytes` is about to tell of the partitions of these topics."""

    def records(
        self, at: Partition, offset: Offset, *, bytes_max: int, lately: bool = False
    ) -> Later[None]:
        """The marks of a partition, and the stable records that `log.open` is about to read.

        `lately`: records that were brought a moment ago will do, and marks from then.
        """

    def located(self, at: Partition, when: Edge | int) -> Later[None]:
        """Where `log.locate` finds this time."""

    def offsets(self, group: str, at: Collection[Partition] | None = None) -> Later[None]:
        """Where a group goes on in these partitions, or wherever it has committed."""

    def groups(self) -> Later[None]:
        """Which groups there are."""

    def joining(self, group: str, topic: str, name: str) -> Later[None]:
        """What `sourcing.rosters.join` is about to tell: whoever is new has been let in."""

    def roster(self, group: str) -> Later[None]:
        """Who is in a group, and what they read."""

    def transaction(self, name: str, epoch: int | None = None) -> Later[None]:
        """A transactional id; with `epoch` only if its producer is not known to be in it."""

    def enlisting(self, name: str, at: Partition) -> Later[None]:
        """A partition that `transactions.admit` is about to let take part."""

    def transacted(self, name: str, at: Partition) -> Later[None]:
        """What the producer of a transactional id has written to a partition, by any gateway."""

    def owner(self) -> Later[None]:
        """Which gateway owns what they keep; ready as soon as one does."""

    def state(self) -> Later[None]:
        """What the owner has kept up to now, as far as every gateway knows it."""

    def producer(self, at: Partition, name: bytes, epoch: int, sequence: int) -> Later[None]:
        """What a named producer has written to a partition, before a batch from `sequence` on."""


class AllKnown:
    """Implements `Knowledge` for an engine that keeps everything itself."""

    current = True

    def topics(self, *, settings: bool = False) -> Later[None]:
        return Later.now(None)

    def topic(self, name: str, partition: int = 0) -> Later[None]:
        return Later.now(None)

    def partitions(self, topic: str, indexes: Collection[int] | None = None) -> Later[None]:
        return Later.now(None)

    def sizes(self, topics: Collection[str]) -> Later[None]:
        return Later.now(None)

    def records(
        self, at: Partition, offset: Offset, *, bytes_max: int, lately: bool = False
    ) -> Later[None]:
        return Later.now(None)

    def located(self, at: Partition, when: Edge | int) -> Later[None]:
        return Later.now(None)

    def offsets(self, group: str, at: Collection[Partition] | None = None) -> Later[None]:
        return Later.now(None)

    def groups(self) -> Later[None]:
        return Later.now(None)

    def joining(self, group: str, topic: str, name: str) -> Later[None]:
        return Later.now(None)

    def roster(self, group: str) -> Later[None]:
        return Later.now(None)

    def transaction(self, name: str, epoch: int | None = None) -> Later[None]:
        return Later.now(None)

    def enlisting(self, name: str, at: Partition) -> Later[None]:
        return Later.now(None)

    def transacted(self, name: str, at: Partition) -> Later[None]:
        return Later.now(None)

    def owner(self) -> Later[None]:
        return Later.now(None)

    def state(self) -> Later[None]:
        return Later.now(None)

    def producer(self, at: Partition, name: bytes, epoch: int, sequence: int) -> Later[None]:
        return Later.now(None)


ALL_KNOWN: Final = AllKnown()
