"""Batches built from records and opened again, against the readers and builders of clients."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords

from pentalog.kernels import FLAW_NONE, batch_header, check_batches, stamp, stamp_append_time
from pentalog.model.batch import build, control_type, payload_of, rebuild, records_of
from pentalog.model.errors import BatchCorrupt, InvalidRecord, RecordTooLarge
from pentalog.model.types import Record

LIMIT = 1 << 20
RECORDS = [
    Record(b"value", b"key", (("name", b"text"), ("none", None)), 1_000),
    Record(None, b"key", (), 2_000),
    Record(b"x" * 5_000, None, (), 1_500),
]
codecs = pytest.mark.parametrize("codec", range(5))


@codecs
def test_there_and_back(codec: int) -> None:
    data = build(RECORDS, timestamp_ms=5, codec=codec)
    facts = check_batches(data, 0, len(data))
    assert (facts.flaw, facts.records, facts.codecs) == (FLAW_NONE, 3, 1 << codec)
    assert facts.timestamp_max == 2_000
    assert records_of(data, 0, bytes_max=LIMIT) == list(enumerate(RECORDS))


@codecs
def test_clients_read_it(codec: int) -> None:
    data = build(RECORDS, timestamp_ms=5, codec=codec)
    batch = DefaultRecordBatch(bytes(data))
    assert batch.validate_crc()
    read = [Record(one.value, one.key, tuple(one.headers), one.timestamp) for one in batch]
    assert read == RECORDS


def test_another_client_reads_it() -> None:
    data = build(RECORDS, timestamp_ms=5)
    batch = MemoryRecords(bytes(data)).next_batch()
    read = [Record(one.value, one.key, tuple(one.headers), one.timestamp) for one in batch]
    assert read == RECORDS


@pytest.mark.parametrize(
    ("builder", "codec"),
    [
        *((DefaultRecordBatchBuilder, codec) for codec in range(5)),
        (KafkaPythonBuilder, 0),
        (KafkaPythonBuilder, 1),
    ],
)
def test_it_reads_what_clients_build(builder: type, codec: int) -> None:
    maker = builder(2, codec, False, -1, -1, -1, LIMIT)
    for index, record in enumerate(RECORDS):
        maker.append(index, record.timestamp_ms, record.key, record.value, list(record.headers))
    data = b"before" + bytes(maker.build())
    assert records_of(data, 6, bytes_max=LIMIT) == list(enumerate(RECORDS))


def test_fields_of_a_built_batch() -> None:
    data = build(
        [Record(b"a"), Record(b"b", timestamp_ms=9)],
        timestamp_ms=7,
        producer_id=5,
        producer_epoch=1,
        base_sequence=40,
        transactional=True,
    )
    header = batch_header(data, 0)
    assert (header.base_offset, header.size, header.magic) == (0, len(data), 2)
    assert (header.base_timestamp, header.max_timestamp) == (7, 9)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 40)
    assert header.attributes == 0x10
    assert (header.last_offset_delta, header.records) == (1, 2)


def test_no_records_are_refused() -> None:
    with pytest.raises(InvalidRecord):
        build([], timestamp_ms=1)


def test_offsets_and_append_time_are_seen() -> None:
    data = build(RECORDS, timestamp_ms=5, codec=4)
    stamp(data, 0, len(data), 70, 1)
    stamp_append_time(data, 0, len(data), 123)
    read = records_of(data, 0, bytes_max=LIMIT)
    assert [offset for offset, _ in read] == [70, 71, 72]
    assert {record.timestamp_ms for _, record in read} == {123}


@codecs
def test_rebuild_keeps_the_place(codec: int) -> None:
    data = build(RECORDS, timestamp_ms=5, codec=2, producer_id=3, producer_epoch=0, base_sequence=8)
    stamp(data, 0, len(data), 500, 4)
    payload, header = payload_of(data, 0, bytes_max=LIMIT)
    again = rebuild(header, payload, count=3, codec=codec)
    assert records_of(again, 0, bytes_max=LIMIT) == records_of(data, 0, bytes_max=LIMIT)
    assert check_batches(again, 0, len(again)).flaw == FLAW_NONE
    changed = {"size", "crc", "attributes"}
    old, new = header._asdict(), batch_header(again, 0)._asdict()
    assert {name for name in old if old[name] != new[name]} <= changed
    assert new["attributes"] == codec


def test_rebuild_with_fewer_records_keeps_its_offsets() -> None:
    data = build(RECORDS, timestamp_ms=5)
    payload, header = payload_of(data, 0, bytes_max=LIMIT)
    first = bytes(payload)[: 1 + payload[0] // 2]
    kept = rebuild(header, first, count=1, codec=0, max_timestamp=1_000)
    after = batch_header(kept, 0)
    assert (after.last_offset_delta, after.records, after.max_timestamp) == (2, 1, 1_000)
    assert records_of(kept, 0, bytes_max=LIMIT) == [(0, RECORDS[0])]
    assert DefaultRecordBatch(bytes(kept)).validate_crc()


def test_too_much_inside_is_refused() -> None:
    data = build([Record(bytes(100_000))], timestamp_ms=1, codec=1)
    with pytest.raises(RecordTooLarge):
        records_of(data, 0, bytes_max=50_000)


@pytest.mark.parametrize("position", [-1, 1, 30, 1 << 40])
def test_no_batch_there(position: int) -> None:
    data = build(RECORDS, timestamp_ms=5)
    with pytest.raises(BatchCorrupt):
        records_of(data, position, bytes_max=LIMIT)
    with pytest.raises(BatchCorrupt):
        records_of(data[:-1], 0, bytes_max=LIMIT)


def test_malformed_records_are_corrupt() -> None:
    data = build(RECORDS, timestamp_ms=5)
    struct.pack_into(">i", data, 57, 4)
    with pytest.raises(BatchCorrupt, match="offset 0"):
        records_of(data, 0, bytes_max=LIMIT)


def control(key: bytes | None) -> bytearray:
    data = build([Record(bytes(6), key)], timestamp_ms=1, producer_id=1, transactional=True)
    struct.pack_into(">h", data, 21, 0x30)
    return data


def test_control_types() -> None:
    assert control_type(control(struct.pack(">hh", 0, 0)), 0) == "abort"
    assert control_type(b"ab" + control(struct.pack(">hh", 0, 1)), 2) == "commit"
    for key in (None, b"", b"\x00\x00\x00", struct.pack(">hh", 0, 2)):
        with pytest.raises(BatchCorrupt):
            control_type(control(key), 0)
