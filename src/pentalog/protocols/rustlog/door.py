"""What all RustLog connections of one broker share: where partitions are, and what was counted."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from pentalog.broker.port import Broker, Topics
from pentalog.model.errors import BrokerError, PartitionNotFound
from pentalog.model.types import Partition

BATCH_BYTES_MAX: Final = 512 << 10
"""Requests are joined to batches up to this size, where the topic takes them."""
RUN_BYTES_MAX: Final = 1 << 20
"""Requests are appended together up to this size."""

_GROWTH_MAX: Final = 3
_ROUTES_MAX: Final = 65_536
_KEPT_NAME_MAX: Final = 1_000
"""Routes by longer names are found anew: remembered, they could take much room."""
_SAMPLES_MAX: Final = 2048
_HEAD: Final = struct.Struct(">IBH")
_INDEX_BYTES: Final = 4


class Route(NamedTuple):
    at: Partition
    batch_bytes_max: int
    run_bytes_max: int


class Routes:
    """Names on the wire to partitions, remembered until any topic changes."""

    def __init__(self, topics: Topics, *, one_batch: bool) -> None:
        self._topics = topics
        self._one_batch = one_batch
        self._version = topics.version
        self._known: dict[bytes | tuple[str, int], Route] = {}

    def find(self, topic: str, index: int) -> Route:
        """Raises `TopicNotFound` and `PartitionNotFound`."""
        route = self._current().get((topic, index))
        if route is None:
            route = self._keep((topic, index), self._route(topic, index))
        return route

    def peek(self, data: memoryview, start: int, end: int) -> Route | None:
        """Where the Produce frame at `start` goes; None if it cannot be said at a glance."""
        if end - start < _HEAD.size:
            return None
        _, _, size = _HEAD.unpack_from(data, start)
        # The name and the number behind it, as they stand there, are the key.
        key = bytes(data[start + _HEAD.size : start + _HEAD.size + size + _INDEX_BYTES])
        route = self._current().get(key)
        if route is None and len(key) == size + _INDEX_BYTES:
            index = int.from_bytes(key[size:], "big")
            try:
                route = self._route(str(key[:size], "utf-8"), index)
            except (BrokerError, UnicodeDecodeError):
                return None
            self._keep(key, route)
        return route

    def _route(self, name: str, index: int) -> Route:
        topic = self._topics.get(name)
        if index >= topic.partitions:
            raise PartitionNotFound(
                f"partition {index} of {topic.name}; it has 0..{topic.partitions - 1}"
            )
        at, bytes_max = Partition(topic.name, index), topic.settings.message_bytes_max
        if self._one_batch:
            # What is appended together must fit, and in a batch it may be larger than it came.
            return Route(at, bytes_max, min(RUN_BYTES_MAX, bytes_max // _GROWTH_MAX))
        return Route(at, min(BATCH_BYTES_MAX, bytes_max), RUN_BYTES_MAX)

    def _current(self) -> dict[bytes | tuple[str, int], Route]:
        if self._version != self._topics.version:
            self._known.clear()
            self._version = self._topics.version
        return self._known

    def _keep(self, key: bytes | tuple[str, int], route: Route) -> Route:
        if len(route.at.topic) <= _KEPT_NAME_MAX:
            if len(self._known) >= _ROUTES_MAX:
                self._known.clear()
            self._known[key] = route
        return route


class Latencies:
    """How long the latest requests of one kind took."""

    def __init__(self) -> None:
        self._samples_s: deque[float] = deque(maxlen=_SAMPLES_MAX)

    def note(self, seconds: float) -> None:
        self._samples_s.append(seconds)

    def percentiles_ns(self, wanted: Sequence[int]) -> list[int]:
        """0 as long as there was no request."""
        samples = sorted(self._samples_s)
        if not samples:
            return [0] * len(wanted)
        last = len(samples) - 1
        return [round(samples[last * percent // 100] * 1e9) for percent in wanted]


class Door:
    def __init__(self, broker: Broker) -> None:
        self.routes = Routes(broker.topics, one_batch=not broker.knowledge.current)
        self.connections = 0
        self.produced = 0
        self.fetched = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.stalls = 0
        """How often a connection did not take its replies and was no longer served."""
        self.produce_latencies = Latencies()
        self.fetch_latencies = Latencies()


def door_of(broker: Broker) -> Door:
    """The one door of a broker, made when its first connection opens."""
    return broker.share("rustlog", lambda: Door(broker))
