"""Every response of every version against kio's writer, every request against its reader."""

from __future__ import annotations

import dataclasses
import random

import pytest
from kafka_schemas import frame, sample, written
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from pentalog.protocols.kafka import codec, entities, frames
from pentalog.protocols.kafka.api import APIS

VERSIONS = [
    (api.key, version)
    for api in APIS.values()
    for version in range(api.version_min, api.version_max + 1)
]


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_responses_are_written_as_kio_writes_them(key: int, version: int) -> None:
    dice = random.Random(key * 100 + version)
    schema = load_response_schema(key, version)
    for _ in range(3):
        entity, plain = sample(schema, dice)
        answer = bytes(codec.encode(key, version, -5, plain))
        assert int.from_bytes(answer[:4], "big") == len(answer) - 4
        assert answer[4:8] == b"\xff\xff\xff\xfb"
        body = 9 if schema.__header_schema__.__flexible__ else 8
        assert answer[body:] == written(entity)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_defaults_may_be_left_out(key: int, version: int) -> None:
    """What has a default in the schema, no error and no throttling need not be named."""
    dice = random.Random(version)
    schema = load_response_schema(key, version)
    _, plain = sample(schema, dice)
    for name in ("throttle_time", "error_code"):
        plain.pop(name, None)
    answer = codec.encode(key, version, 1, plain)
    start = 9 if schema.__header_schema__.__flexible__ else 8
    entity, size = entity_reader(schema)(bytes(answer), start)
    assert start + size == len(answer)
    if hasattr(entity, "error_code"):
        assert entity.error_code == 0


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_requests_written_by_kio_are_read(key: int, version: int) -> None:
    dice = random.Random(key * 100 + version)
    schema = load_request_schema(key, version)
    for client_id in ("x", "", None):
        entity, _ = sample(schema, dice)
        data = memoryview(bytearray(frame(entity, correlation_id=99, client_id=client_id)))
        header = frames.read_header(data, 4, len(data))
        assert header[:4] == (key, version, 99, client_id)
        walk = frames.Walk(data, header.position, len(data))
        if frames.flexible_header(key, version):
            walk.tags()
        assert entities.decode(key, version, data[walk.position :]) == entity


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, (1 << 31) - 1])
def test_uvarint_is_read_back(value: int) -> None:
    data = memoryview(codec.uvarint(value))
    assert frames.Walk(data, 0, len(data)).uvarint() == value


def test_a_missing_field_without_default_is_our_mistake() -> None:
    with pytest.raises(KeyError, match="api_keys"):
        codec.encode(18, 0, 1, {})


@pytest.mark.parametrize("cut", [0, 1, 9, 10, 12])
def test_a_header_cut_short_is_refused(cut: int) -> None:
    data = memoryview(frame(sample(load_request_schema(3, 1), random.Random(1))[0]))[4 : 4 + cut]
    with pytest.raises(entities.Undecodable):
        frames.read_header(data, 0, len(data))


def test_an_endless_varint_is_refused() -> None:
    with pytest.raises(entities.Undecodable):
        frames.Walk(memoryview(b"\xff" * 9), 0, 9).uvarint()


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_unknown_tagged_fields_are_skipped(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    if not schema.__flexible__:
        return
    entity, _ = sample(schema, random.Random(version))
    for field in dataclasses.fields(schema):
        if "tag" in field.metadata:
            entity = dataclasses.replace(entity, **{field.name: field.default})
    body = written(entity)
    assert body.endswith(b"\0")
    more = body[:-1] + b"\2" + b"\x5a\3abc" + b"\x5b\0"
    assert entities.decode(key, version, memoryview(more)) == entity


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_any_prefix_of_a_request_is_refused(key: int, version: int) -> None:
    entity, _ = sample(load_request_schema(key, version), random.Random(key + version))
    body = written(entity)
    for end in range(0, len(body), 1 + len(body) // 50):
        with pytest.raises(entities.Undecodable):
            entities.decode(key, version, memoryview(body)[:end])


@pytest.mark.parametrize(
    "length", [b"\x7f\xff\xff\xff", b"\0\0\1\0", b"\x80\0\0\0", b"\xff\xff\xff\xfe"]
)
def test_a_length_that_cannot_be_is_refused_before_memory_is_taken(length: bytes) -> None:
    with pytest.raises(entities.Undecodable, match="claims"):
        entities.decode(3, 1, memoryview(length))


def test_null_where_an_array_must_be_is_refused() -> None:
    with pytest.raises(entities.Undecodable, match="null"):
        entities.decode(20, 1, memoryview(b"\xff\xff\xff\xff\0\0\0\0"))
