"""All brokers of one cluster, addressed by what is asked of them.

Every request is answered before the next is sent.  What a moving cluster refuses for the moment,
and connections that break, are tried again with growing pauses until the timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from pentalog.clients.kafka import messages
from pentalog.clients.kafka.connection import ClientOptions, Connection, checked, parse_servers
from pentalog.clients.kafka.errors import Incompatible, KafkaFailed, Refused, Unreachable
from pentalog.clients.kafka.resources import unlisted
from pentalog.model.internal import INTERNAL
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.types import Offset, Partition

T = TypeVar("T")

EARLIEST: Final = -2
LATEST: Final = -1

_PRODUCE: Final = 0
_LIST_OFFSETS: Final = 2
_METADATA: Final = 3
_FIND_COORDINATOR: Final = 10
_CREATE_TOPICS: Final = 19
_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0
_COMMITTED: Final = 1


class Topic(NamedTuple):
    name: str
    partitions: Mapping[int, int]
    """Leader by partition; -1 while there is none."""
    topic_id: UUID | None = None
    """None: the node is too old to tell."""


class Cluster:
    def __init__(self, servers: str, options: ClientOptions | None = None) -> None:
        """`servers` is `HOST:PORT,...`: brokers to ask first."""
        self.options = options if options is not None else ClientOptions()
        self._servers = parse_servers(servers)
        self._first: Connection | None = None
        self._nodes: dict[int, Connection] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._leaders: dict[Partition, int] = {}
        self._controller = -1
        self._coordinators: dict[tuple[int, str], int] = {}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        connections = [*self._nodes.values()] + ([self._first] if self._first is not None else [])
        for connection in connections:
            connection.close()
        self._nodes.clear()
        self._first = None

    # Topics

    def topics(self, names: Collection[str] | None = None, *, create: bool = False) -> list[Topic]:
        """Those that exist, or None: all of them; without Kafka's internal ones."""
        return self.retried("asking for topics", lambda: self._topics(names, create))

    def _topics(self, names: Collection[str] | None, create: bool) -> list[Topic]:
        asked = None if names is None else [{"topic_id": None, "name": name} for name in names]
        answer = self._any().ask(
            _METADATA,
            {
                "topics": asked,
                "allow_auto_topic_creation": create,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        self._controller = answer.controller_id
        self._addresses = {node.node_id: (node.host, node.port) for node in answer.brokers}
        found: list[Topic] = []
        for topic in answer.topics:
            code = topic.error_code
            if code is ErrorCode.unknown_topic_or_partition and not create:
                continue
            checked(f"asking for topic {topic.name!r}", code)
            leaders = {part.partition_index: part.leader_id for part in topic.partitions}
            self._leaders |= {Partition(topic.name, at): node for at, node in leaders.items()}
            if names is not None or not topic.is_internal:
                found.append(Topic(topic.name, leaders, getattr(topic, "topic_id", None)))
        return found

    def all_topics(self) -> list[Topic]:
        """As `topics`, and those whose names Kafka's own tools are not told of."""
        listed = self.topics()
        names = [topic.name for topic in listed]
        try:
            others = self.retried("asking for names", lambda: unlisted(self._any().ask, names))
        except Incompatible:
            return listed
        return [*listed, *(topic for topic in self.topics(others) if topic.name not in INTERNAL)]

    def topic(self, name: str, *, create: bool = False) -> Topic:
        """One topic with all partitions led."""

        def once() -> Topic:
            found = self._led_topic(name, create)
            if found is None:
                raise KafkaFailed(
                    f"topic {name!r} does not exist at {self._server_names()}; create it first"
                )
            return found

        return self.retried(f"asking for topic {name!r}", once)

    def _led_topic(self, name: str, create: bool) -> Topic | None:
        found = self._topics([name], create)
        if not found:
            return None
        if any(leader < 0 for leader in found[0].partitions.values()):
            raise Refused(f"asking for topic {name!r}", ErrorCode.leader_not_available)
        return found[0]

    def create_topic(
        self, name: str, partitions: int = -1, settings: Mapping[str, str] | None = None
    ) -> bool:
        """Create a topic and wait until its partitions have leaders; False if it existed.

        The controller of a cluster answers before the brokers know of the topic.
        """
        fields = {
            "topics": [
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": -1,
                    "assignments": [],
                    "configs": [
                        {"name": key, "value": value} for key, value in (settings or {}).items()
                    ],
                }
            ],
            "timeout": messages.ms(self.options.timeout_ms),
            "validate_only": False,
        }
        doing = f"creating topic {name!r}"

        def once() -> bool:
            (result,) = self.control().ask(_CREATE_TOPICS, fields).topics
            if result.error_code is ErrorCode.topic_already_exists:
                return False
            checked(doing, result.error_code, getattr(result, "error_message", None))
            return True

        def known() -> None:
            if self._led_topic(name, create=False) is None:
                raise Refused(waiting, ErrorCode.unknown_topic_or_partition)

        is_new = self.retried(doing, once)
        waiting = f"waiting for topic {name!r}"
        try:
            self.retried(waiting, known)
        except Refused as refused:
            if refused.code is not ErrorCode.topic_authorization_failed:
                raise  # CREATE does not imply DESCRIBE
        return is_new

    # Offsets

    def offsets(self, asked: Mapping[Partition, int]) -> dict[Partition, Offset]:
        """First offset at or after each timestamp, -1 if there is none; `LATEST` is the stable end.

        `EARLIEST` and `LATEST` are timestamps too.
        """
        return self.retried("looking up offsets", lambda: self._offsets(asked))

    def _offsets(self, asked: Mapping[Partition, int]) -> dict[Partition, Offset]:
        found: dict[Partition, Offset] = {}
        for connection, partitions in self._by_leader(asked):
            answer = connection.ask(
                _LIST_OFFSETS,
                {
                    "replica_id": -1,
                    "isolation_level": _COMMITTED,
                    "topics": [
                        {
                            "name": topic,
                            "partitions": [
                                {
                                    "partition_index": at.index,
                                    "current_leader_epoch": -1,
                                    "timestamp": asked[at],
                                }
                                for at in group
                            ],
                        }
                        for topic, group in by_topic(partitions).items()
                    ],
                },
            )
            for topic in answer.topics:
                for part in topic.partitions:
                    at = Partition(topic.name, part.partition_index)
                    checked(f"looking up offsets of {at}", part.error_code)
                    found[at] = part.offset
        return found

    # Records

    def produce(
        self, at: Partition, data: bytes, *, acks: int = -1, transactional_id: str | None = None
    ) -> Offset:
        """Append one batch, brokers take no more at once; the offset its first record got.

        Not tried again when a connection breaks: only a producer with an id can do that safely.
        """
        fields = {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": messages.ms(self.options.timeout_ms),
            "topic_data": [
                {
                    "name": at.topic,
                    "partition_data": [{"index": at.index, "records": data}],
                }
            ],
        }
        doing = f"writing to {at}"

        def once() -> Offset:
            answer = self.leader(at).ask(_PRODUCE, fields)
            (part,) = answer.responses[0].partition_responses
            checked(doing, part.error_code, getattr(part, "error_message", None))
            return int(part.base_offset)

        return self.retried(doing, once, reconnect=transactional_id is not None)

    # Where to ask

    def leader(self, at: Partition) -> Connection:
        """A connection to the leader of a partition."""
        if self._leaders.get(at, -1) < 0:
            found = self._topics([at.topic], False)
            if not found or at.index not in found[0].partitions:
                raise Refused(f"finding {at}", ErrorCode.unknown_topic_or_partition)
            if found[0].partitions[at.index] < 0:
                raise Refused(f"finding the leader of {at}", ErrorCode.leader_not_available)
        return self.node(self._leaders[at])

    def coordinator(self, key: str, kind: int) -> Connection:
        """The broker that keeps a group's offsets (kind 0) or a transaction (kind 1)."""
        node = self._coordinators.get((kind, key))
        if node is None:
            answer = self._any().ask(_FIND_COORDINATOR, {"key": key, "key_type": kind})
            checked(
                f"finding the coordinator of {key!r}",
                answer.error_code,
                getattr(answer, "error_message", None),
            )
            node = answer.node_id
            self._addresses[node] = (answer.host, answer.port)
            self._coordinators[kind, key] = node
        return self.node(node)

    def node(self, node_id: int) -> Connection:
        connection = self._nodes.get(node_id)
        if connection is None or connection.broken:
            if node_id not in self._addresses:
                return self._any()
            connection = Connection(*self._addresses[node_id], self.options)
            self._nodes[node_id] = connection
        return connection

    @property
    def node_ids(self) -> Sequence[int]:
        """Those that the last answer about topics named."""
        return sorted(self._addresses)

    def connect(self, at: Partition) -> Connection:
        """A connection of its own to the leader of a partition."""
        self.leader(at)
        address = self._addresses.get(self._leaders[at], self._servers[0])
        return Connection(*address, self.options)

    def forget(self) -> None:
        """What was known of leaders and coordinators may be wrong."""
        self._leaders.clear()
        self._coordinators.clear()

    def _any(self) -> Connection:
        if self._first is None or self._first.broken:
            failures: list[str] = []
            for host, port in self._servers:
                try:
                    self._first = Connection(host, port, self.options)
                    break
                except Unreachable as error:
                    failures.append(str(error))
            else:
                raise Unreachable("; ".join(failures))
        return self._first

    def control(self) -> Connection:
        """The broker that changes topics."""
        if self._controller < 0:
            self._topics([], False)
        return self.node(self._controller)

    def _by_leader(
        self, asked: Collection[Partition]
    ) -> Sequence[tuple[Connection, list[Partition]]]:
        groups: dict[str, tuple[Connection, list[Partition]]] = {}
        for at in asked:
            connection = self.leader(at)
            groups.setdefault(connection.name, (connection, []))[1].append(at)
        return list(groups.values())

    def _server_names(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self._servers)

    def retried(self, doing: str, once: Callable[[], T], *, reconnect: bool = True) -> T:
        """Repeat what is refused for the moment; anything else is final."""
        deadline = time.monotonic() + self.options.timeout_ms / 1000
        pause = _PAUSE_FIRST_S
        while True:
            try:
                return once()
            except Refused as refused:
                if not refused.retriable or time.monotonic() + pause > deadline:
                    raise
            except Unreachable:
                if not reconnect or time.monotonic() + pause > deadline:
                    raise
            self.forget()
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)


def by_topic(partitions: Collection[Partition]) -> dict[str, list[Partition]]:
    groups: dict[str, list[Partition]] = {}
    for at in partitions:
        groups.setdefault(at.topic, []).append(at)
    return groups
