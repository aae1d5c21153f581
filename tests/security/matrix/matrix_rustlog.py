"""RustLog's requests, in both dialects."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from tests.security.guarded_world import Wire
from tests.security.matrix.matrix_cells import GROUP, TOPIC, Asked

from pentalog.broker import rights
from pentalog.broker.rights import Need
from pentalog.broker.security import Kind, Operation
from pentalog.protocols.rustlog import messages

REGISTRY = {kind.__name__ for kind in messages.Request.__args__}  # type: ignore[attr-defined]
_ERROR = 0xFE
_MADE = "m-made"

_NEEDS: dict[str, tuple[Need, ...]] = {
    "Produce": (rights.write_topic(TOPIC),),
    "Fetch": (rights.read_topic(TOPIC), rights.read_group(GROUP)),
    "OffsetCommit": (rights.read_group(GROUP), rights.read_topic(TOPIC)),
    "OffsetFetch": (rights.describe_group(GROUP), rights.describe_topic(TOPIC)),
    "CreateTopic": (rights.create_topic(_MADE),),
    "ListTopics": (rights.describe_topic(TOPIC),),
    "DescribeTopic": (rights.describe_topic(TOPIC),),
    "DescribePartition": (rights.describe_topic(TOPIC),),
    "MetricsFetch": (Need(Operation.DESCRIBE, Kind.CLUSTER),),
    "Ping": (),
}
_PLACE = {"topic": TOPIC, "partition": 0}
_JSON: dict[str, dict[str, Any]] = {
    "Produce": {**_PLACE, "records": ["eA=="]},
    "Fetch": {**_PLACE, "offset": 0, "max_bytes": 100, "group_id": GROUP},
    "OffsetCommit": {"group": GROUP, **_PLACE, "offset": 0},
    "OffsetFetch": {"group": GROUP, **_PLACE},
    "CreateTopic": {"topic": _MADE, "partition_count": 1},
    "ListTopics": {},
    "DescribeTopic": {"topic": TOPIC},
    "DescribePartition": _PLACE,
    "MetricsFetch": {},
    "Ping": {},
}


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


_AT = _text(TOPIC) + bytes(4)
_PACKED: dict[str, bytes] = {
    "Produce": b"\x01" + _AT + struct.pack(">II", 1, 1) + b"x",
    "Fetch": b"\x02" + _text(GROUP) + _AT + struct.pack(">QI", 0, 100),
    "OffsetCommit": b"\x03" + _text(GROUP) + _AT + bytes(8),
    "OffsetFetch": b"\x04" + _text(GROUP) + _AT,
    "CreateTopic": b"\x05" + _text(_MADE) + struct.pack(">I", 1),
    "ListTopics": b"\x06",
    "DescribeTopic": b"\x07" + _text(TOPIC),
    "DescribePartition": b"\x08" + _AT,
    "MetricsFetch": b"\x09",
    "Ping": b"\xff",
}


def operations() -> Iterator[Asked]:
    for name, needs in _NEEDS.items():
        gone = _MADE if name == "CreateTopic" else ""
        yield Asked(f"{name}: JSON", needs, _asking_json(name), gone=gone)
        yield Asked(f"{name}: packed", needs, _asking_packed(name), gone=gone)


def _asking_json(name: str) -> Any:
    payload = json.dumps({"type": name, **_JSON[name]}).encode()

    def ask(wire: Wire) -> bool:
        answer = json.loads(wire.ask(payload))
        if answer["type"] == "Error":
            assert answer["code"] == 400, answer
            assert "may not" in answer["message"], answer
            return False
        if name == "ListTopics":
            return TOPIC in {topic["name"] for topic in answer["topics"]}
        return True

    return ask


def _asking_packed(name: str) -> Any:
    def ask(wire: Wire) -> bool:
        answer = wire.ask(_PACKED[name])
        if answer[0] == _ERROR:
            assert b"may not" in answer
            return False
        if name == "ListTopics":
            return TOPIC.encode() in answer
        return True

    return ask
