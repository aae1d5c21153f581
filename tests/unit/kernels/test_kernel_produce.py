"""Produce requests and replies of every version, against kio."""

from __future__ import annotations

import importlib
import io
import struct
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_samples import (
    TOPIC_ID,
    VERSIONS,
    batch,
    framed,
    patched,
    produce_frame,
)
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i32, i64

from pentalog.kernels import Facts, Frames, ProduceRun

LIMIT = 1 << 20
FETCH = framed(struct.pack(">hhi", 1, 4, 99) + b"whatever")


def split(twin: SimpleNamespace, data: bytearray, **options: int) -> Frames:
    frames = twin.split_produce(data, 0, len(data), frame_bytes_max=LIMIT, **options)
    assert isinstance(frames, Frames)
    return frames


def run_of(frames: Frames) -> ProduceRun:
    (run,) = frames.items
    assert isinstance(run, ProduceRun)
    assert isinstance(run.facts, Facts)
    return run


def requests_of(run: ProduceRun) -> list[tuple[int, int]]:
    return list(struct.iter_unpack("=ii", run.requests))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client_id", ["test", "", None])
def test_a_plain_request(twin: SimpleNamespace, version: int, client_id: str | None) -> None:
    records = batch(3)
    data = bytearray(
        produce_frame(
            version,
            bytes(records),
            correlation=-7,
            partition=12,
            acks=-1,
            client_id=client_id,
        )
    )
    frames = split(twin, data)
    run = run_of(frames)
    assert (frames.used, frames.wanted, frames.refused) == (len(data), 0, 0)
    assert (run.version, run.acks, run.partition) == (version, -1, 12)
    assert run.topic == (TOPIC_ID.bytes if version >= 13 else b"orders")
    assert data[run.start : run.end] == records
    assert requests_of(run) == [(-7, 3)]
    assert run.facts == twin.check_batches(data, run.start, run.end)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("producer", [-1, 4000])
def test_neighbours_are_joined(twin: SimpleNamespace, version: int, producer: int) -> None:
    batches, sequence = [], 0
    for count in (3, 1, 2):
        epoch, first = (-1, -1) if producer < 0 else (0, sequence)
        batches.append(batch(count, producer_id=producer, epoch=epoch, sequence=first))
        sequence += count
    frames = [
        produce_frame(version, bytes(one), correlation=10 + index)
        for index, one in enumerate(batches)
    ]
    data = bytearray(b"".join(frames))
    run = run_of(split(twin, data))
    assert data[run.start : run.end] == b"".join(batches)
    assert requests_of(run) == [(10, 3), (11, 1), (12, 2)]
    assert run.facts == twin.check_batches(data, run.start, run.end)
    assert run.facts.chained


def variants(version: int) -> dict[str, bytes]:
    """Requests that must not join one of partition 0 of `orders` with acks 1."""
    records = bytes(batch())
    return {
        "another partition": produce_frame(version, records, partition=1),
        "another topic": produce_frame(version, records, topic="Orders"),
        "other acks": produce_frame(version, records, acks=0),
        "another version": produce_frame(version - 1, records),
        "a producer": produce_frame(version, bytes(batch(producer_id=1, epoch=0, sequence=0))),
        "large": produce_frame(version, bytes(batch(value_bytes=20_000))),
    }


@pytest.mark.parametrize("version", [4, 8, 10, 12])
@pytest.mark.parametrize("name", variants(4))
def test_strangers_are_not_joined(twin: SimpleNamespace, version: int, name: str) -> None:
    first = produce_frame(version, bytes(batch()))
    second = variants(version)[name]
    frames = split(twin, bytearray(first + second))
    assert [type(item) for item in frames.items] == [ProduceRun] * 2


def test_join_limit_is_exact(twin: SimpleNamespace) -> None:
    records = batch()
    frame = produce_frame(9, bytes(records))
    for limit, runs in ((len(records), 1), (len(records) - 1, 2)):
        frames = split(twin, bytearray(frame + frame), join_bytes_max=limit)
        assert len(frames.items) == runs


@pytest.mark.parametrize(("sequence", "epoch", "joined"), [(3, 0, 1), (4, 0, 2), (3, 1, 2)])
def test_only_sequences_that_follow_are_joined(
    twin: SimpleNamespace, sequence: int, epoch: int, joined: int
) -> None:
    first = batch(3, producer_id=1, epoch=0, sequence=0)
    second = batch(3, producer_id=1, epoch=epoch, sequence=sequence)
    data = bytearray(produce_frame(7, bytes(first)) + produce_frame(7, bytes(second)))
    assert len(split(twin, data).items) == joined


def test_sequences_follow_over_the_wrap(twin: SimpleNamespace) -> None:
    first = batch(2, producer_id=1, epoch=0, sequence=(1 << 31) - 2)
    second = batch(2, producer_id=1, epoch=0, sequence=0)
    data = bytearray(produce_frame(7, bytes(first)) + produce_frame(7, bytes(second)))
    run = run_of(split(twin, data))
    assert (run.facts.sequence_first, run.facts.sequence_last) == ((1 << 31) - 2, 1)


def test_other_frames_part_runs_and_keep_their_place(twin: SimpleNamespace) -> None:
    produce = produce_frame(11, bytes(batch()))
    data = bytearray(produce + produce + FETCH + produce)
    frames = split(twin, data)
    assert [isinstance(item, ProduceRun) for item in frames.items] == [True, False, True]
    start = 2 * len(produce) + 4
    assert frames.items[1] == (start, start + len(FETCH) - 4)
    assert data[start - 4 : start - 4 + len(FETCH)] == FETCH


def unusual(version: int) -> dict[str, bytes]:
    good = bytes(batch())
    plain = produce_frame(version, good)
    return {
        "transactional id": produce_frame(version, good, transactional_id="t"),
        "two partitions": produce_frame(version, good, partitions=2),
        "two topics": produce_frame(version, good, topics=2),
        "no topics": produce_frame(version, good, topics=0),
        "no records": produce_frame(version, None),
        "empty records": produce_frame(version, b""),
        "broken batch": produce_frame(version, good[:-1]),
        "transactional batch": produce_frame(version, bytes(batch(transactional=True))),
        "control batch": produce_frame(version, bytes(patched(batch(), 21, ">h", 0x20))),
        "bytes behind": framed(plain[4:] + b"\x00"),
        "bytes missing": framed(plain[4:-1]),
        "another request": framed(b"\x00\x01" + plain[6:]),
        "version 2": framed(plain[4:6] + b"\x00\x02" + plain[8:]),
        "version 14": framed(plain[4:6] + b"\x00\x0e" + plain[8:]),
        "nothing": framed(b""),
        "three bytes": framed(b"\x00\x00\x00"),
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_unusual_requests_are_handed_on_untouched(twin: SimpleNamespace, version: int) -> None:
    for name, frame in unusual(version).items():
        data = bytearray(frame)
        frames = split(twin, data)
        assert frames.items == [(4, len(frame))], name
        assert data == frame, name


def test_long_topic_names_are_handed_on(twin: SimpleNamespace) -> None:
    records = bytes(batch())
    assert len(split(twin, bytearray(produce_frame(9, records, topic="t" * 249))).items[0]) == 8
    frame = bytearray(produce_frame(9, records, topic="t" * 250))
    assert split(twin, frame).items == [(4, len(frame))]


def test_tagged_fields_are_handed_on(twin: SimpleNamespace) -> None:
    payload = produce_frame(9, bytes(batch()))[4:]
    assert payload.endswith(b"\x00")
    tagged = bytearray(framed(payload[:-1] + b"\x01\x00\x01x"))
    assert split(twin, tagged).items == [(4, len(tagged))]


def test_incomplete_frames_wait(twin: SimpleNamespace) -> None:
    frame = produce_frame(9, bytes(batch()))
    for cut in range(1, len(frame)):
        data = bytearray(frame + frame[:cut])
        frames = split(twin, data)
        assert len(frames.items) == 1
        assert frames.used == len(frame)
        assert frames.wanted == (len(frame) if cut >= 4 else 0)
        assert frames.refused == 0


@pytest.mark.parametrize("length", [-1, -(1 << 31), LIMIT + 1, (1 << 31) - 1])
def test_lengths_out_of_bounds_end_the_stream(twin: SimpleNamespace, length: int) -> None:
    frame = produce_frame(9, bytes(batch()))
    data = bytearray(frame + struct.pack(">i", length) + frame)
    frames = split(twin, data)
    assert (len(frames.items), frames.used, frames.refused) == (1, len(frame), length)


def test_the_range_is_respected(twin: SimpleNamespace) -> None:
    frame = produce_frame(9, bytes(batch()))
    data = bytearray(b"ab" + frame + frame)
    frames = twin.split_produce(data, 2, 2 + len(frame), frame_bytes_max=LIMIT)
    assert len(frames.items) == 1
    assert frames.used == 2 + len(frame)


def kio_reply(
    version: int, correlation: int, offset: int, *, error: int, message: str | None
) -> bytes:
    schema: Any = importlib.import_module(f"kio.schema.produce.v{version}.response")
    result: dict[str, Any] = {
        "index": i32(12),
        "error_code": ErrorCode(error),
        "base_offset": i64(offset),
        "log_append_time": datetime.fromtimestamp(1_700_000_000, UTC),
    }
    if version >= 5:
        result["log_start_offset"] = i64(3)
    if version >= 8:
        result |= {"record_errors": (), "error_message": message}
    name = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "orders"}
    topic = schema.TopicProduceResponse(
        **name, partition_responses=(schema.PartitionProduceResponse(**result),)
    )
    reply = schema.ProduceResponse(responses=(topic,))
    header = schema.ProduceResponse.__header_schema__(correlation_id=i32(correlation))
    out = io.BytesIO()
    entity_writer(type(header))(out, header)
    entity_writer(schema.ProduceResponse)(out, reply)
    return framed(out.getvalue())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("error", "message"), [(0, None), (3, "no such topic: größe"), (7, "")])
def test_replies(twin: SimpleNamespace, version: int, error: int, message: str | None) -> None:
    replies = twin.produce_replies(
        version,
        TOPIC_ID.bytes if version >= 13 else b"orders",
        12,
        struct.pack("=iiiiii", 10, 3, -5, 1, 12, 100),
        1 << 40,
        error=error,
        error_message=message,
        timestamp_ms=1_700_000_000_000,
        start_offset=3,
    )
    offsets = [-1] * 3 if error else [1 << 40, (1 << 40) + 3, (1 << 40) + 4]
    assert replies == b"".join(
        kio_reply(version, correlation, offset, error=error, message=message)
        for correlation, offset in zip((10, -5, 12), offsets, strict=True)
    )


def test_long_messages_are_cut_between_characters(twin: SimpleNamespace) -> None:
    for version in (8, 9):
        replies = twin.produce_replies(
            version,
            b"t",
            0,
            struct.pack("=ii", 1, 1),
            0,
            error=1,
            error_message="é" * 20_000,
            timestamp_ms=-1,
            start_offset=-1,
        )
        assert ("é" * 16_383).encode() in replies
        assert len(replies) < 33_000


def test_unknown_versions_are_our_mistake(twin: SimpleNamespace) -> None:
    for version in (2, 14):
        with pytest.raises(ValueError):
            twin.produce_replies(
                version,
                b"t",
                0,
                b"",
                0,
                error=0,
                error_message=None,
                timestamp_ms=-1,
                start_offset=0,
            )
