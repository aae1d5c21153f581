"""What commands ask of a Kafka cluster, by way of the shipped client; works with any Kafka broker.

`login.py` says how it logs in.  Every request is answered before the next is sent.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pentalog.cli.login import client_options
from pentalog.cli.output import Misused, Refused
from pentalog.clients.kafka import connection as kafka
from pentalog.clients.kafka.errors import KafkaFailed, Unreachable
from pentalog.clients.kafka.messages import ms as _ms
from pentalog.clients.kafka.resources import DESCRIBE_CONFIGS, TOPIC, settings_of, unlisted
from pentalog.model.kio_schemas import ErrorCode

_CLIENT_ID: Final = "pentalog-cli"

EARLIEST: Final = -2
LATEST: Final = -1
_WANTED: Final = ", or give a login or TLS by `pentalog profile add` if it wants them"
_SET: Final = 0
_UNSET: Final = 1


def parse_server(text: str, option: str = "--server") -> tuple[str, int]:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Misused(f"{option} {text!r} is not HOST:PORT, for example 127.0.0.1:9092")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_servers(text: str) -> None:
    """Refuse what is no list of `HOST:PORT`, with commas."""
    for one in text.split(","):
        parse_server(one.strip())


def explained(error: KafkaFailed) -> str:
    """What a cluster refused, with what to do where that is not in its own words."""
    text = str(error)
    if "AUTHORIZATION_FAILED" in text:
        text += (
            "; log in as a user who may do it (`pentalog --profile`), or let one "
            "who may allow it (`pentalog acl add`)"
        )
    elif "SASL_AUTHENTICATION_FAILED" in text:
        text += "; check the user, the mechanism and the password of the profile"
    elif "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in text:
        text += (
            "; log in by a password or a certificate (`pentalog profile add`): tokens are theirs"
        )
    elif "DELEGATION_TOKEN_AUTH_DISABLED" in text:
        text += "; start the broker with PENTALOG_DELEGATION_TOKEN_SECRET set to have tokens"
    elif "broke off" in text:
        text += _WANTED
    return text


class Connection:
    """One connection to one broker; what goes wrong with it is said for a command line."""

    def __init__(self, host: str, port: int, *, timeout_ms: int) -> None:
        options = client_options(timeout_ms, _CLIENT_ID)
        try:
            self._connection = kafka.Connection(host, port, options)
        except Unreachable as error:
            reason = str(error).partition(";")[0]
            raise Refused(
                f"{reason}; start a broker with `pentalog start` or name another one with "
                f"--server HOST:PORT{_WANTED if 'broke off' in reason else ''}"
            ) from error
        except KafkaFailed as error:
            raise Refused(explained(error)) from error

    def close(self) -> None:
        self._connection.close()

    def ask(self, key: int, fields: Mapping[str, Any], *, silent: bool = False) -> Any:
        """Send a request made of plain values and give back the decoded answer."""
        try:
            return self._connection.ask(key, fields, silent=silent)
        except KafkaFailed as error:
            raise Refused(explained(error)) from error


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A broker's refusal of one part of a request."""

    code: ErrorCode
    text: str

    def __str__(self) -> str:
        name = self.code.name.upper()
        return f"{name}: {self.text}" if self.text else name


def refuse(doing: str, results: Iterable[Any]) -> None:
    """Raise for the first part of an answer that is a refusal."""
    for result in results:
        if result.error_code:
            failure = Failure(result.error_code, getattr(result, "error_message", None) or "")
            raise Refused(explained(KafkaFailed(f"{doing} was refused: {failure}")))


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

    def all_topics(self) -> list[Any]:
        """As `topics`, and those whose names Kafka's own tools are not told of."""
        listed = self.topics()
        try:
            others = unlisted(self._first.ask, [topic.name for topic in listed])
        except Refused:
            return listed  # an older Kafka
        return listed + (self.topics(others) if others else [])

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
                raise Refused(explained(KafkaFailed(f"topic {name!r}: {code.name.upper()}")))
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
                "replica_id": -1,
                "isolation_level": 0,
                "session_id": 0,
                "session_epoch": -1,
                "rack_id": "",
                "max_wait": _ms(wait_ms if len(by_leader) == 1 else min(wait_ms, 50)),
                "min_bytes": 1,
                "max_bytes": bytes_max,
                "topics": [
                    {
                        "topic": topic,
                        "partitions": [
                            {
                                "partition": partition,
                                "current_leader_epoch": -1,
                                "log_start_offset": -1,
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
        answer = self._control().ask(DESCRIBE_CONFIGS, settings_of(topic))
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
                        "resource_type": TOPIC,
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
                raise Refused(explained(KafkaFailed(f"{doing} was refused: {failure}")))
            time.sleep(0.1)
            self.topic(topic)


def _failure(code: ErrorCode, text: str | None) -> Failure | None:
    return Failure(code, text or "") if code else None


def _refuse(doing: str, results: Iterable[Any]) -> None:
    for result in results:
        if result.error_code:
            failure = Failure(result.error_code, getattr(result, "error_message", None) or "")
            raise Refused(explained(KafkaFailed(f"{doing} was refused: {failure}")))
