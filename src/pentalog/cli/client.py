"""A small synchronous Kafka client for the command line; works with any Kafka broker.

Speaks plain text connections only.  Every request is answered before the next is sent.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import socket
import struct
import time
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from pentalog.cli.output import Misused, Refused

_LENGTH: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">hhih")
_CLIENT_ID: Final = b"pentalog-cli"
_ANSWER_BYTES_MAX: Final = 256 << 20

# The versions this module can fill and read: topics by name, no fields that need more thought.
_VERSIONS: Final[Mapping[int, tuple[int, int]]] = {
    0: (3, 9),
    1: (4, 12),
    2: (1, 7),
    3: (4, 12),
    18: (0, 0),
    19: (2, 7),
    20: (1, 5),
    32: (1, 4),
    37: (0, 3),
    44: (0, 1),
}
_NAMES: Final = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    19: "CreateTopics",
    20: "DeleteTopics",
    32: "DescribeConfigs",
    37: "CreatePartitions",
    44: "IncrementalAlterConfigs",
}

EARLIEST: Final = -2
LATEST: Final = -1
_TOPIC_RESOURCE: Final = 2
_SET: Final = 0
_UNSET: Final = 1


def parse_server(text: str) -> tuple[str, int]:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Misused(f"--server {text!r} is not HOST:PORT, for example 127.0.0.1:9092")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Connection:
    """One connection to one broker, with the versions both sides know."""

    def __init__(self, host: str, port: int, *, timeout_ms: int) -> None:
        self.name = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_ms / 1000)
        except OSError as error:
            raise Refused(
                f"cannot reach {self.name}: {error.strerror or error}; start a broker with "
                "`pentalog start` or name another one with --server HOST:PORT"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {18: (0, 0)}
        answer = self.ask(18, {})
        self._versions |= {
            key.api_key: (key.min_version, key.max_version) for key in answer.api_keys
        }

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: int, fields: Mapping[str, Any], *, silent: bool = False) -> Any:
        """Send a request made of plain values and give back the decoded answer."""
        version = self._version(key)
        request = _entity(load_request_schema(key, version), fields)
        out = io.BytesIO()
        out.write(_HEADER.pack(key, version, self._correlation_id, len(_CLIENT_ID)) + _CLIENT_ID)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        if request.__flexible__:
            out.write(b"\0")
        entity_writer(type(request))(out, request)
        frame = out.getvalue()
        try:
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
            if silent:
                return None
            answer = self._receive()
        except OSError as error:
            raise Refused(
                f"{self.name} broke off: {error.strerror or error}; look at the broker's own log"
            ) from error
        schema = load_response_schema(key, version)
        # The correlation id, and in newer headers an empty list of tagged fields.
        start = 5 if schema.__flexible__ and key != 18 else 4
        return entity_reader(schema)(answer, start)[0]

    def _version(self, key: int) -> int:
        ours_min, ours_max = _VERSIONS[key]
        theirs_min, theirs_max = self._versions.get(key, (0, -1))
        version = min(ours_max, theirs_max)
        if version < max(ours_min, theirs_min):
            offered = f"{theirs_min}..{theirs_max}" if theirs_max >= 0 else "nothing"
            raise Refused(
                f"{self.name} offers {offered} of {_NAMES[key]}; this command needs a version in "
                f"{ours_min}..{ours_max}"
            )
        return version

    def _receive(self) -> bytes:
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if size > _ANSWER_BYTES_MAX:
            raise Refused(f"{self.name} announced an answer of {size} bytes: not a Kafka broker?")
        return bytes(self._exactly(size))

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, received = memoryview(data), 0
        while received < size:
            step = self._socket.recv_into(view[received:])
            if not step:
                raise ConnectionError("the connection was closed")
            received += step
        return data


@functools.cache
def _nested(kind: type) -> dict[str, type | None]:
    """Field names of a message, with the type of those that are arrays of structures."""
    found: dict[str, type | None] = {}
    for field in dataclasses.fields(kind):
        choices = [field.type, *typing.get_args(field.type)]
        inner = [part for choice in choices for part in (choice, *typing.get_args(choice))]
        found[field.name] = next(
            (part for part in inner if isinstance(part, type) and dataclasses.is_dataclass(part)),
            None,
        )
    return found


def _entity(kind: type, fields: Mapping[str, Any]) -> Any:
    """Build a message of one version; fields that this version lacks are left out."""
    values: dict[str, Any] = {}
    for name, inner in _nested(kind).items():
        if name not in fields:
            continue
        value = fields[name]
        if inner is not None and value is not None:
            value = tuple(_entity(inner, item) for item in value)
        values[name] = value
    return kind(**values)


def _ms(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A broker's refusal of one part of a request."""

    code: ErrorCode
    text: str

    def __str__(self) -> str:
        name = self.code.name.upper()
        return f"{name}: {self.text}" if self.text else name


class Client:
    """All brokers of one cluster, addressed by what is asked of them."""

    def __init__(self, server: str, *, timeout_ms: int = 30_000) -> None:
        self._timeout_ms = timeout_ms
        self._first = Connection(*parse_server(server), timeout_ms=timeout_ms)
        self._nodes: dict[int, Connection] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._leaders: dict[tuple[str, int], int] = {}
        self._controller = -1

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (self._first, *self._nodes.values()):
            connection.close()

    def topics(self, names: Sequence[str] | None = None, *, create: bool = False) -> list[Any]:
        """Topics as the brokers describe them; None: all of them."""
        asked = None if names is None else [{"topic_id": None, "name": name} for name in names]
        answer = self._first.ask(
            3,
            {
                "topics": asked,
                "allow_auto_topic_creation": create,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        self._controller = answer.controller_id
        self._addresses = {node.node_id: (node.host, node.port) for node in answer.brokers}
        for topic in answer.topics:
            for partition in topic.partitions:
                place = (topic.name, partition.partition_index)
                self._leaders[place] = partition.leader_id
        return list(answer.topics)

    def topic(self, name: str, *, create: bool = False) -> Any:
        """One topic with all partitions led; waits for a topic that is being created."""
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            (found,) = self.topics([name], create=create)
            code = found.error_code
            ready = not code and all(part.leader_id >= 0 for part in found.partitions)
            if ready:
                return found
            unknown = code is ErrorCode.unknown_topic_or_partition
            if unknown and not create:
                raise Refused(
                    f"topic {name!r} does not exist; `pentalog topic list` shows those that do"
                )
            if (code and not code.retriable) or time.monotonic() > deadline:
                raise Refused(f"topic {name!r}: {code.name.upper()}")
            time.sleep(0.1)

    def produce(self, topic: str, partition: int, batch: bytes, *, acks: int) -> int:
        """Append one batch; the offset it got, -1 if nobody was asked to say."""
        fields = {
            "transactional_id": None,
            "acks": acks,
            "timeout": _ms(self._timeout_ms),
            "topic_data": [
                {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
            ],
        }
        if acks == 0:
            self._leader(topic, partition).ask(0, fields, silent=True)
            return -1

        def once() -> tuple[Failure | None, int]:
            answer = self._leader(topic, partition).ask(0, fields)
            (part,) = answer.responses[0].partition_responses
            failure = _failure(part.error_code, getattr(part, "error_message", None))
            return failure, part.base_offset

        return self._retried(f"writing to {topic}-{partition}", topic, once)

    def fetch(
        self, topic: str, offsets: Mapping[int, int], *, wait_ms: int, bytes_max: int
    ) -> dict[int, bytes]:
        """Batches from each partition's offset on, all from one leader after another."""
        found: dict[int, bytes] = {}
        by_leader: dict[int, list[int]] = {}
        for partition in offsets:
            by_leader.setdefault(self._leaders[topic, partition], []).append(partition)
        for partitions in by_leader.values():
            fields = {
                "max_wait": _ms(wait_ms if len(by_leader) == 1 else min(wait_ms, 50)),
                "min_bytes": 1,
                "max_bytes": bytes_max,
                "topics": [
                    {
                        "topic": topic,
                        "partitions": [
                            {
                                "partition": partition,
                                "fetch_offset": offsets[partition],
                                "partition_max_bytes": bytes_max,
                            }
                            for partition in partitions
                        ],
                    }
                ],
                "forgotten_topics_data": [],
            }
            found |= self._fetch_once(topic, partitions, fields)
        return found

    def _fetch_once(
        self, topic: str, partitions: Sequence[int], fields: Mapping[str, Any]
    ) -> dict[int, bytes]:
        found: dict[int, bytes] = {}

        def once() -> tuple[Failure | None, int]:
            answer = self._leader(topic, partitions[0]).ask(1, fields)
            for group in answer.responses:
                for part in group.partitions:
                    if part.error_code:
                        return Failure(part.error_code, f"partition {part.partition_index}"), 0
                    if part.records:
                        found[part.partition_index] = part.records
            return None, 0

        self._retried(f"reading {topic}", topic, once)
        return found

    def offsets(self, topic: str, asked: Mapping[int, int]) -> dict[int, int]:
        """First offset at or after each partition's timestamp; -1 if there is none."""
        found: dict[int, int] = {}
        for partition, timestamp in asked.items():
            fields = {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [{"partition_index": partition, "timestamp": timestamp}],
                    }
                ],
            }

            def once(
                partition: int = partition, fields: Mapping[str, Any] = fields
            ) -> tuple[Failure | None, int]:
                answer = self._leader(topic, partition).ask(2, fields)
                (part,) = answer.topics[0].partitions
                return _failure(part.error_code, None), part.offset

            found[partition] = self._retried(f"looking up {topic}-{partition}", topic, once)
        return found

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        answer = self._control().ask(
            19,
            {
                "topics": [
                    {
                        "name": name,
                        "num_partitions": partitions,
                        "replication_factor": -1,
                        "assignments": [],
                        "configs": [
                            {"name": key, "value": value} for key, value in settings.items()
                        ],
                    }
                ],
                "timeout": _ms(self._timeout_ms),
                "validate_only": False,
            },
        )
        _refuse(f"creating topic {name!r}", answer.topics)

    def delete_topic(self, name: str) -> None:
        fields = {"topic_names": (name,), "timeout": _ms(self._timeout_ms)}
        answer = self._control().ask(20, fields)
        _refuse(f"deleting topic {name!r}", answer.responses)

    def grow_topic(self, name: str, partitions: int) -> None:
        answer = self._control().ask(
            37,
            {
                "topics": [{"name": name, "count": partitions, "assignments": None}],
                "timeout": _ms(self._timeout_ms),
                "validate_only": False,
            },
        )
        _refuse(f"growing topic {name!r}", answer.results)

    def settings(self, topic: str) -> list[Any]:
        """Every setting of a topic with its value and where it comes from."""
        answer = self._control().ask(
            32,
            {
                "resources": [
                    {
                        "resource_type": _TOPIC_RESOURCE,
                        "resource_name": topic,
                        "configuration_keys": None,
                    }
                ],
                "include_synonyms": False,
                "include_documentation": False,
            },
        )
        _refuse(f"describing topic {topic!r}", answer.results)
        return list(answer.results[0].configs)

    def configure_topic(self, name: str, change: Mapping[str, str], drop: Iterable[str]) -> None:
        changes = [
            {"name": key, "config_operation": _SET, "value": value} for key, value in change.items()
        ]
        changes += [{"name": key, "config_operation": _UNSET, "value": None} for key in drop]
        answer = self._control().ask(
            44,
            {
                "resources": [
                    {
                        "resource_type": _TOPIC_RESOURCE,
                        "resource_name": name,
                        "configs": changes,
                    }
                ],
                "validate_only": False,
            },
        )
        _refuse(f"changing topic {name!r}", answer.responses)

    def _control(self) -> Connection:
        if self._controller < 0:
            self.topics([])
        return self._node(self._controller)

    def _leader(self, topic: str, partition: int) -> Connection:
        return self._node(self._leaders[topic, partition])

    def _node(self, node_id: int) -> Connection:
        if node_id not in self._addresses:
            return self._first
        connection = self._nodes.get(node_id)
        if connection is None:
            host, port = self._addresses[node_id]
            connection = Connection(host, port, timeout_ms=self._timeout_ms)
            self._nodes[node_id] = connection
        return connection

    def _retried(self, doing: str, topic: str, once: Any) -> int:
        """Repeat what a moving cluster refuses for the moment; anything else is final."""
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            failure, value = once()
            if failure is None:
                return int(value)
            if not failure.code.retriable or time.monotonic() > deadline:
                raise Refused(f"{doing} was refused: {failure}")
            time.sleep(0.1)
            self.topic(topic)


def _failure(code: ErrorCode, text: str | None) -> Failure | None:
    return Failure(code, text or "") if code else None


def _refuse(doing: str, results: Iterable[Any]) -> None:
    for result in results:
        if result.error_code:
            failure = Failure(result.error_code, getattr(result, "error_message", None) or "")
            raise Refused(f"{doing} was refused: {failure}")
