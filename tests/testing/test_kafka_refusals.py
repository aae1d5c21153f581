"""Every Kafka request gets an answer that says the error a test wants, and that can be read."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from tests.unit.protocols.kafka import kafka_schemas

from pentalog.protocols.kafka.api import APIS
from pentalog.testing.refusals import kafka

CASES = sorted({(api.key, version) for api in APIS.values()
                for version in (api.version_min, api.version_max)})  # fmt: skip


def errors_in(entity: Any) -> set[ErrorCode]:
    found: set[ErrorCode] = set()
    for field in fields(entity):
        value = getattr(entity, field.name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, ErrorCode):
                found.add(one)
            elif is_dataclass(one):
                found |= errors_in(one)
    return found


@pytest.mark.parametrize(("key", "version"), CASES, ids=lambda value: str(value))
def test_the_answer_says_the_error(key: int, version: int) -> None:
    found: set[ErrorCode] = set()
    for seed in range(12):  # a request that names nothing has no place for an error either
        asked, _ = kafka_schemas.sample(load_request_schema(key, version), random.Random(seed))
        found |= errors_in(refused(key, version, memoryview(kafka_schemas.frame(asked))[4:]))
    assert found - {ErrorCode.none} == {ErrorCode.unknown_server_error}


def refused(key: int, version: int, payload: memoryview) -> Any:
    sent: list[bytes] = []
    schema = load_response_schema(key, version)
    assert kafka.refuse(payload, "UNKNOWN_SERVER_ERROR", None, sent.append)
    assert len(sent[0]) == 4 + int.from_bytes(sent[0][:4], "big")
    assert sent[0][4:8] == b"\0\0\0\7"
    start = 9 if schema.__header_schema__.__flexible__ else 8
    answer, used = entity_reader(schema)(bytes(sent[0]), start)
    assert used == len(sent[0]) - start
    return answer
