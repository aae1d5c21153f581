"""Where published messages go, and deliveries to polls.

Topics are found by their bytes on the wire, and made when they are first named.
"""

from __future__ import annotations

from typing import Final

from pentalog import kernels
from pentalog.broker.deliveries import Search, Subscription
from pentalog.broker.port import Topics, TopicSpec
from pentalog.broker.security import Access
from pentalog.model.errors import TopicNotFound
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.protocols.blipmq import rights
from pentalog.protocols.blipmq.frames import FRAME_BYTES_MAX, FrameType
from pentalog.protocols.blipmq.messages import Nack
from pentalog.session import Usage

BATCH_BYTES_MAX: Final = 1_000_000
"""Publishes are joined up to this size; just below what a topic takes unless it is told to."""
LARGE_BYTES: Final = 4 << 20
"""A message that takes long to take out of its frame, and as long to append."""
_ANSWER_BYTES: Final = 256 << 10
"""Deliveries made by one kernel call."""
_ROUTES_MAX: Final = 1_000
_KEPT_NAME_BYTES_MAX: Final = 1_000
"""Routes by longer names are found anew: remembered, they could take much room."""
_OVERHEAD_BYTES: Final = 100
TOPIC_SETTINGS: Final = {"max.message.bytes": str(FRAME_BYTES_MAX + _OVERHEAD_BYTES)}
"""Topics made here take any message a frame can carry."""


class Routes:
    """Topics as one connection names them; it keeps to one partition of each, so order holds."""

    def __init__(
        self, topics: Topics, access: Access, usage: Usage, *, create: bool, number: int
    ) -> None:
        self._topics = topics
        self._access = access
        self._usage = usage
        self._create = create
        self._number = number
        self._version = topics.version
        self._known: dict[bytes, Partition] = {}
        self.made = 0
        """Topics made for this connection."""

    def knows(self, name: bytes) -> bool:
        """Has it been written to, with topics as they are?"""
        return name in self._known and self._version == self._topics.version

    def find(self, name: bytes) -> Partition:
        """Where to write what is published; refuses what may not be written."""
        if self._version != self._topics.version:
            self._known.clear()
            self._version = self._topics.version
        at = self._known.get(name)
        if at is not None:
            rights.check(self._access, FrameType.PUBLISH, at.topic)
        else:
            try:
                topic = str(name, "utf-8")
            except UnicodeDecodeError:
                raise Nack(400, "invalid PUBLISH payload") from None
            rights.check(self._access, FrameType.PUBLISH, topic)
            partitions = self.require(topic)
            at = Partition(topic, self._number % partitions)
            if len(name) <= _KEPT_NAME_BYTES_MAX:
                if len(self._known) >= _ROUTES_MAX:
                    self._known.clear()
                self._known[name] = at
            self._version = self._topics.version
        return at

    def require(self, topic: str) -> int:
        """How many partitions the topic has; it is made if it is not there."""
        try:
            return self._topics.get(topic).partitions
        except TopicNotFound:
            if not self._create:
                raise
        rights.check_creation(self._access, topic)
        spec = TopicSpec(name=topic, settings=TOPIC_SETTINGS)
        self._usage.check_change()
        partitions = self._topics.create(spec).partitions
        self._usage.changed(partitions)
        self._access.record("create topic", topic)
        self.made += 1
        return partitions

    def batch_bytes_max(self, at: Partition) -> int:
        return self._topics.get(at.topic).settings.message_bytes_max


def deliver(
    subscription: Subscription, polls: memoryview, search: Search | None = None
) -> tuple[bytes, int] | Later[None] | None:
    """Return frames and how many polls they answer; None if there is nothing to deliver."""
    stretch = subscription.stretch(search)
    if stretch is None or isinstance(stretch, Later):
        return stretch
    delivered = kernels.deliver_blipmq(
        stretch.batches,
        stretch.batch,
        stretch.record,
        stretch.offset,
        stretch.stop,
        polls,
        topic=subscription.topic.encode(),
        qos=int(subscription.leased),
        tag_shift=stretch.tag_shift,
        timestamp_min=stretch.timestamp_min,
        bytes_max=_ANSWER_BYTES,
        frame_bytes_max=FRAME_BYTES_MAX,
        again=stretch.again,
        states=stretch.states,
        floor=stretch.floor,
        doubtful_end=stretch.doubtful_end,
        zero_end=stretch.zero_end,
    )
    subscription.took(stretch, delivered)
    return delivered.frames, delivered.polls
