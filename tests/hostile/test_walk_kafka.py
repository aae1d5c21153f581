"""Every Kafka API with its largest legal request and the first illegal one: no turn is long.

The newest version of each API gets as many elements as a request may have, those before it a tenth:
what they cost differs by their encoding only.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader
from tests.hostile.kafka_walk import Row, Shape, World, frame, has_arrays, shapes
from tests.hostile.longest_turn import TimedBroker, Turn

from pentalog.model import batch
from pentalog.model.types import Record
from pentalog.protocols.kafka.api import APIS
from pentalog.protocols.kafka.entities import ELEMENTS_MAX

TOPICS: Final = 400
PARTITIONS: Final = 400
"""Of one more topic."""
INVALID_REQUEST: Final = 42
_RECORDS: Final = bytes(batch.build([Record(value=b"v")], timestamp_ms=1))

ROWS: Final = {
    0: Row({"acks": 1, "records": _RECORDS, "transactional_id": None}),
    1: Row({"replica_id": -1, "session_epoch": -1, "max_bytes": 1 << 20,
            "forgotten_topics_data": ()}),
    2: Row({"replica_id": -1, "timestamp": -1, "current_leader_epoch": -1}),
    3: Row({"allow_auto_topic_creation": False}),
    8: Row({"group_id": "commits", "generation_id_or_member_epoch": -1, "member_id": ""}),
    9: Row({"group_id": "commits", "member_id": None, "member_epoch": -1}),
    10: Row({"key_type": 0}),
    11: Row({"member_id": "nobody", "group_id": "joins", "protocol_type": "consumer"}),
    12: Row({"group_id": "joins"}),
    13: Row({"group_id": "joins"}),
    14: Row({"group_id": "joins"}),
    15: Row(),
    16: Row(),
    17: Row(),
    18: Row({"client_software_name": "walk", "client_software_version": "1"}),
    19: Row({"validate_only": True, "num_partitions": 1, "replication_factor": 1,
             "assignments": ()}),
    20: Row({"name": None}),
    21: Row(),
    22: Row({"transactional_id": None, "producer_id": -1, "producer_epoch": -1}),
    23: Row({"replica_id": -1, "current_leader_epoch": -1}),
    24: Row(),
    25: Row(),
    26: Row(),
    27: Row({"producer_id": 1 << 40, "transaction_result": True}),
    28: Row({"member_id": "", "generation_id": -1}),
    29: Row({"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1,
             "permission_type": 1, "resource_name_filter": None, "principal_filter": None,
             "host_filter": None}),
    30: Row({"resource_type": 2, "resource_pattern_type": 3, "operation": 3,
             "permission_type": 3, "principal": "User:walk", "host": "*"}),
    31: Row({"resource_type_filter": 2, "pattern_type_filter": 3, "operation": 1,
             "permission_type": 1, "principal_filter": None, "host_filter": None},
            elements_max=500),
    32: Row({"resource_type": 2, "configuration_keys": None}),
    33: Row({"resource_type": 2, "validate_only": True, "value": "1000"}),
    34: Row(),
    35: Row(),
    36: Row(),
    37: Row({"validate_only": True, "count": 500, "assignments": None}),
    38: Row({"owner_principal_type": "", "owner_principal_name": ""}),
    39: Row(),
    40: Row(),
    41: Row(),
    42: Row(),
    43: Row(),
    44: Row({"resource_type": 2, "validate_only": True, "config_operation": 0, "value": "1000"}),
    45: Row(),
    46: Row(),
    47: Row({"group_id": "commits"}),
    48: Row({"strict": False}),
    49: Row({"validate_only": True}),
    50: Row(),
    51: Row({"upsertions": ()}),
    57: Row(),
    60: Row({"endpoint_type": 1}),
    61: Row(),
    65: Row(),
    66: Row({"transactional_id_pattern": None}),
    68: Row({"group_id": "plans", "member_epoch": 0, "subscribed_topic_regex": None}),
    69: Row(),
    74: Row(),
    75: Row({"cursor": None, "response_partition_limit": 2000}),
}  # fmt: skip
"""One for each API that is served."""


class Broker:
    """A broker that times the turns of its loop, with topics for requests to name."""

    def __init__(self, timed: TimedBroker) -> None:
        self.timed = timed
        names = [f"topic-{number}" for number in range(TOPICS)]
        self._create([(name, 1) for name in names] + [("large", PARTITIONS)])
        listed = {topic.name: topic.topic_id for topic in self._metadata().topics}
        names = ["large", *names]
        self.world = World(names, [listed[name] for name in names])

    def walk(
        self, request: bytes, prepare: Callable[[], object] | None = None
    ) -> tuple[bytes | None, Turn]:
        """Send one request; returns its answer and the longest turn."""
        answer: bytes | None = None

        def act() -> None:
            nonlocal answer
            answer = self.ask(request)

        turn = self.timed.measure(act) if prepare is None else self.timed.measure(act, prepare)
        return answer, turn

    def ask(self, request: bytes) -> bytes | None:
        """Send one request; returns its answer, or None if the connection was closed."""
        with self.timed.connect() as client, contextlib.suppress(ConnectionError):
            client.sendall(request)
            size = _read(client, 4)
            if size is not None:
                return _read(client, int.from_bytes(size, "big"))
        return None

    def _create(self, topics: list[tuple[str, int]]) -> None:
        body = struct.pack(">i", len(topics))
        for name, partitions in topics:
            body += struct.pack(">h", len(name)) + name.encode()
            body += struct.pack(">ihii", partitions, 1, 0, 0)
        body += struct.pack(">ib", 60_000, 0)
        assert self.ask(struct.pack(">ihhih", 10 + len(body), 19, 2, 1, -1) + body) is not None

    def _metadata(self) -> Any:
        answer = self.ask(struct.pack(">ihhih6B", 16, 3, 10, 1, -1, 0, 0, 0, 0, 0, 0))
        assert answer is not None
        return entity_reader(load_response_schema(3, 10))(answer, 5)[0]


def _read(client: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = client.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return bytes(data)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("walk") / "data"
    arguments = (
        "--super-users", "User:ANONYMOUS", "--auto-create-topics", "false", "--log-level", "error"
    )  # fmt: skip
    with TimedBroker(data, arguments=arguments) as timed:
        yield Broker(timed)
        assert timed.is_running


def test_every_api_has_a_row() -> None:
    assert ROWS.keys() == APIS.keys()


@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_no_request_takes_a_long_turn(broker: Broker, key: int) -> None:
    api, row = APIS[key], ROWS[key]
    long: dict[str, str] = {}
    for version in range(api.version_min, api.version_max + 1):
        newest = version == api.version_max
        for shape in shapes(key, version) if newest else [Shape.WIDE]:
            most = row.elements_max or ELEMENTS_MAX
            if not newest:
                most = min(most, ELEMENTS_MAX // 10)
            request, _ = frame(key, version, most, shape, broker.world, row)
            answer, turn = broker.walk(request)
            assert (answer is not None) == row.answers, f"version {version}, {shape}"
            print(f"{api.name} {version} {shape.value} {len(request)} {turn}")
            if not turn.short:
                long[f"version {version}, {shape.value}"] = str(turn)
    assert long == {}


@pytest.mark.parametrize("key", [29, 31], ids=lambda key: APIS[key].name)
def test_many_rules_take_no_long_turn(broker: Broker, key: int) -> None:
    made, _ = frame(30, APIS[30].version_max, ELEMENTS_MAX, Shape.WIDE, broker.world, ROWS[30])
    every = Row({**ROWS[29].fields, "resource_name_filter": None})
    request, _ = frame(key, APIS[key].version_max, 1, Shape.WIDE, broker.world, every)

    def make() -> None:
        assert broker.ask(made) is not None

    answer, turn = broker.walk(request, make)
    assert answer is not None
    assert len(answer) > 20 * ELEMENTS_MAX
    print(APIS[key].name, turn)
    assert turn.short, turn


@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_one_element_too_many_is_refused(broker: Broker, key: int) -> None:
    version = APIS[key].version_max
    if not has_arrays(key, version):
        return  # it names nothing
    # Elements are shared out among arrays: a few more than one are needed with some of them.
    request, made = frame(key, version, ELEMENTS_MAX + 3, Shape.DEEP, broker.world, Row())
    assert made > ELEMENTS_MAX
    answer, turn = broker.walk(request)
    assert turn.short, turn
    if answer is not None:
        schema = load_response_schema(key, version)
        header = 5 if schema.__header_schema__.__flexible__ else 4
        refused = entity_reader(schema)(answer, header)[0]
        assert int(refused.error_code) == INVALID_REQUEST
    assert broker.timed.is_running
