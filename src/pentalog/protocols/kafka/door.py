"""What all Kafka connections of one broker share: where topics are, fetch sessions, metadata."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from pentalog.broker.port import Broker, Topics
from pentalog.model.errors import NotEnoughReplicas, PartitionNotFound, TopicNotFound
from pentalog.model.types import Partition
from pentalog.protocols.kafka.errors import ErrorCode, Refused
from pentalog.protocols.kafka.fetch_sessions import FetchSessions
from pentalog.protocols.kafka.serving import Gate

_ROUTES_MAX: Final = 65_536
_METADATA_ENTRIES_MAX: Final = 256
_METADATA_BYTES_MAX: Final = 16 << 20


class Routes:
    """Names and ids on the wire to partitions, remembered until any topic changes."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._version = topics.version
        self._by_name: dict[tuple[bytes, int], Partition] = {}
        self._by_id: dict[tuple[bytes, int], Partition] = {}
        self._short_of_copies: dict[str, int] = {}
        """Topics that ask for more copies than one broker has, and for how many."""

    def find(self, topic: bytes, index: int, *, by_id: bool) -> Partition:
        """The partition; `topic` is the name, or the 16 bytes of the id."""
        if self._version != self._topics.version:
            self._by_name.clear()
            self._by_id.clear()
            self._short_of_copies.clear()
            self._version = self._topics.version
        known = self._by_id if by_id else self._by_name
        at = known.get((topic, index))
        if at is None:
            at = self._look_up(topic, index, by_id=by_id)
            if len(known) >= _ROUTES_MAX:
                known.clear()
            known[topic, index] = at
        return at

    def check_copies(self, at: Partition) -> None:
        """A write that waits for all copies is refused where there cannot be enough."""
        wanted = self._short_of_copies.get(at.topic)
        if wanted is not None:
            raise NotEnoughReplicas(
                f"min.insync.replicas of {at.topic} is {wanted}, this broker keeps 1 copy; "
                f"set it to 1, or write with acks=1"
            )

    def _look_up(self, topic: bytes, index: int, *, by_id: bool) -> Partition:
        if by_id:
            try:
                found = self._topics.by_id(UUID(bytes=topic))
            except TopicNotFound as refusal:
                raise Refused(ErrorCode.unknown_topic_id, str(refusal)) from refusal
        else:
            try:
                name = str(topic, "utf-8")
            except UnicodeDecodeError as flaw:
                raise TopicNotFound("the topic's name is not UTF-8") from flaw
            found = self._topics.get(name)
        if not 0 <= index < found.partitions:
            raise PartitionNotFound(
                f"partition {index} of {found.name}; it has 0..{found.partitions - 1}"
            )
        if found.settings.insync_replicas_min > 1:
            self._short_of_copies[found.name] = found.settings.insync_replicas_min
        return Partition(found.name, index)


class Answers:
    """Encoded answers that hold until any topic changes; bounded in number and bytes."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._version = topics.version
        self._kept: dict[object, bytes] = {}
        self._bytes = 0

    def get(self, key: object) -> bytes | None:
        if self._version != self._topics.version:
            self._forget()
        return self._kept.get(key)

    def keep(self, key: object, answer: bytes) -> None:
        if self._version != self._topics.version:
            self._forget()
        if len(answer) > _METADATA_BYTES_MAX:
            return
        full = self._bytes + len(answer) > _METADATA_BYTES_MAX
        if full or len(self._kept) >= _METADATA_ENTRIES_MAX:
            self._forget()
        self._kept[key] = answer
        self._bytes += len(answer)

    def _forget(self) -> None:
        self._kept.clear()
        self._bytes = 0
        self._version = self._topics.version


class Door:
    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.routes = Routes(topics)
        self.metadata = Answers(topics)
        self.fetch_sessions = FetchSessions()
        self.large_requests = Gate()


def door_of(broker: Broker) -> Door:
    """The one door of a broker, made when its first connection opens."""
    return broker.share("kafka", lambda: Door(broker.topics))
