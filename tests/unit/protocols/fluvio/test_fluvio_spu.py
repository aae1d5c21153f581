"""Produce, StreamFetch, Fetch, offsets: the SPU's port on a real log."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest
from fluvio_world import (
    FluvioBroker,
    create_topic,
    produce,
    read_produced,
    read_records,
    read_streamed,
    request,
    stream_fetch,
    their_batch,
    topic_spec,
    update_offsets,
)

from pentalog import kernels
from pentalog.model import batch
from pentalog.model.types import Horizon, Partition, Record
from pentalog.protocols.fluvio.codec import Reader, Writer

PRODUCE, FETCH, FETCH_OFFSETS, STREAM, ACK = 0, 1, 1002, 1003, 1005
COMMIT, FORGET, CONSUMERS = 1006, 1007, 1008


def stored(broker: FluvioBroker, topic: str = "demo", partition: int = 0) -> list[Record]:
    slice_ = broker.broker.log.read(
        Partition(topic, partition), 0, bytes_max=1 << 20, horizon=Horizon.END
    ).value
    opened = broker.broker.log.open(
        Partition(topic, partition), 0, bytes_max=1 << 24, horizon=Horizon.END
    ).value
    assert slice_.next_offset == opened.next_offset
    found: list[Record] = []
    at = 0
    while at < len(opened.batches):
        found += [r for _, r in batch.records_of(opened.batches, at, bytes_max=1 << 24)]
        at += kernels.batch_header(opened.batches, at).size
    return found


def test_records_arrive_as_they_were_sent(demo: FluvioBroker) -> None:
    spu = demo.spu()
    sent = their_batch(b"one", (b"k1", b"two"), (b"", b""), timestamp_ms=5000)
    assert read_produced(spu.ask(PRODUCE, produce("demo", sent))) == [("demo", [(0, 0, 0)])]
    assert read_produced(spu.ask(PRODUCE, produce("demo", sent))) == [("demo", [(0, 0, 3)])]
    assert stored(demo)[:3] == [
        Record(b"one", None, (), 5000),
        Record(b"two", b"k1", (), 5000),
        Record(b"", b"", (), 5000),
    ]


def test_batches_say_which_door_wrote_them(demo: FluvioBroker) -> None:
    demo.spu().ask(PRODUCE, produce("demo", their_batch(b"x")))
    at = Partition("demo", 0)
    opened = demo.broker.log.open(at, 0, bytes_max=1 << 20, horizon=Horizon.END).value
    attributes = kernels.batch_header(opened.batches, 0).attributes
    assert batch.DOORS[(attributes & batch.DOOR_MASK) >> batch.DOOR_SHIFT] == "fluvio"


Pack = Callable[[bytes], bytes]


def framed_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(data))


@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        (1, lambda data: bytes(cramjam.gzip.compress(data))),
        (2, framed_snappy),
        (3, lambda data: bytes(cramjam.lz4.compress(data))),
        (4, lambda data: bytes(cramjam.zstd.compress(data))),
    ],
    ids=["gzip", "snappy", "lz4", "zstd"],
)
def test_compressed_batches_stay_compressed(demo: FluvioBroker, codec: int, pack: Pack) -> None:
    plain = their_batch(*[b"value " * 20] * 50)
    sent = bytearray(plain[:57] + pack(plain[57:]))
    struct.pack_into(">i", sent, 8, len(sent) - 12)
    struct.pack_into(">h", sent, 21, codec)
    struct.pack_into(">I", sent, 17, kernels.crc32c(bytes(sent[21:])))
    spu = demo.spu()
    assert read_produced(spu.ask(PRODUCE, produce("demo", bytes(sent))))[0][1] == [(0, 0, 0)]
    slice_ = demo.broker.log.read(
        Partition("demo", 0), 0, bytes_max=1 << 20, horizon=Horizon.END
    ).value
    assert slice_.size_bytes < len(plain) // 4
    assert [record.value for record in stored(demo)] == [b"value " * 20] * 50
    spu.request(STREAM, stream_fetch("demo"))
    ((_, frame),) = spu.pushed()
    assert [value for _, _, value in read_streamed(frame).records] == [b"value " * 20] * 50


def test_the_schema_id_travels_as_a_header(demo: FluvioBroker) -> None:
    plain = their_batch(b"x")
    sent = bytearray(plain[:57] + struct.pack(">I", 77) + plain[57:])
    struct.pack_into(">i", sent, 8, len(sent) - 12)
    struct.pack_into(">h", sent, 21, 0x10)
    struct.pack_into(">I", sent, 17, kernels.crc32c(bytes(sent[21:])))
    spu = demo.spu()
    assert read_produced(spu.ask(PRODUCE, produce("demo", bytes(sent))))[0][1] == [(0, 0, 0)]
    assert stored(demo) == [Record(b"x", None, (("fluvio.schema_id", b"77"),), 1000)]
    spu.request(STREAM, stream_fetch("demo"))
    ((_, frame),) = spu.pushed()
    body = bytes(frame.data)
    record_set = body[body.index(struct.pack(">i", len(sent))) + 4 :]
    assert record_set == bytes(sent)


def test_other_headers_and_null_values_are_not_shown(demo: FluvioBroker) -> None:
    at = Partition("demo", 0)
    records = [Record(None, b"k"), Record(b"v", None, (("h", b"x"),)), Record(b"w", b"q")]
    demo.broker.log.append(at, memoryview(batch.build(records, timestamp_ms=1)))
    spu = demo.spu()
    spu.request(STREAM, stream_fetch("demo"))
    ((_, frame),) = spu.pushed()
    expected = [(0, b"k", b""), (1, None, b"v"), (2, b"q", b"w")]
    assert read_streamed(frame).records == expected


def test_one_answer_entry_for_each_request_entry(demo: FluvioBroker) -> None:
    demo.sc().ask(1001, create_topic("wide", topic_spec(2)))
    body = Writer(24).u8(0).i16(1).i32(1500).u32(2)
    body.text("wide").u32(3)
    body.u32(1).bytes_(their_batch(b"a") + their_batch(b"b", b"c"))
    body.u32(1).bytes_(their_batch(b"d"))
    body.u32(7).bytes_(their_batch(b"e"))
    body.text("none").u32(1).u32(0).bytes_(their_batch(b"e"))
    body.u32(0)
    answer = read_produced(demo.spu().ask(PRODUCE, bytes(body.out)))
    assert answer == [("wide", [(1, 0, 0), (1, 0, 3), (7, 6, 0)]), ("none", [(0, 6, 0)])]
    assert [record.value for record in stored(demo, "wide", 1)] == [b"a", b"b", b"c", b"d"]


def test_a_topic_without_partitions_is_answered(demo: FluvioBroker) -> None:
    body = Writer(24).u8(0).i16(1).i32(1500).u32(1).text("demo").u32(0).u32(0).out
    assert read_produced(demo.spu().ask(PRODUCE, bytes(body))) == [("demo", [])]


def test_a_committed_write_waits_for_the_disk(demo: FluvioBroker) -> None:
    spu = demo.spu()
    spu.request(PRODUCE, produce("demo", their_batch(b"x"), isolation=-1))
    assert spu.frames() == []
    ((_, answer),) = spu.pushed()
    assert read_produced(answer) == [("demo", [(0, 0, 0)])]
    assert demo.broker.log.marks(Partition("demo", 0)).durable == 1


def test_a_committed_write_in_time_or_not(demo: FluvioBroker) -> None:
    spu = demo.spu()
    held, after = demo.runtime.offload, demo.runtime.after

    def slow(*work: Any) -> None:
        after(5_000, lambda: held(*work))

    demo.runtime.offload = slow  # type: ignore[method-assign]
    spu.request(PRODUCE, produce("demo", their_batch(b"x"), isolation=-1, timeout_ms=700))
    demo.runtime.advance(800)
    ((_, answer),) = spu.pushed()
    answer.u32(), answer.text(), answer.u32(), answer.u32()
    assert (answer.i16(), answer.u64(), answer.u8()) == (7, 700, 0)
    demo.runtime.advance(20_000)


@pytest.mark.parametrize("summed", ["crc32c", "crc32"])
def test_the_documents_layout_is_accepted(demo: FluvioBroker, summed: str) -> None:
    """One batch right behind the partition, records without their number, version 7."""
    value = b"a0"
    record = bytes((2 * (6 + len(value)), 0, 0, 0, 0, 2 * len(value))) + value + b"\0"
    tail = struct.pack(">hiqqqhi", 0, 0, 5000, 5000, -1, -1, 0) + record
    crc = kernels.crc32c(tail) if summed == "crc32c" else zlib.crc32(tail)
    sent = struct.pack(">qiibI", 0, len(tail) + 9, 0, 2, crc) + tail
    body = Writer(7).u8(0).i16(1).i32(30_000).u32(1).text("demo").u32(1).u32(0).raw(sent).u32(0)
    spu = demo.spu(7)
    assert read_produced(spu.ask(PRODUCE, bytes(body.out))) == [("demo", [(0, 0, 0)])]
    assert stored(demo) == [Record(value, None, (), 5000)]
    spu.request(STREAM, stream_fetch("demo"), version=24)
    ((_, frame),) = spu.pushed()
    frame.version = 24
    assert read_streamed(frame).records == [(0, None, value)]


def test_the_documents_example_frame(broker: FluvioBroker) -> None:
    broker.sc().ask(1001, create_topic("test-produce"))
    frame = bytes.fromhex(
        "00000075 0000 0007 0000004d 0004 73656564 00 0001 00007530 00000001 000c"
        "746573742d70726f64756365 00000001 00000000 0000000000000000 00000036 00000000 02 61a2c8e7"
        "0000 00000000 0000018bcfe56800 0000018bcfe56800 ffffffffffffffff ffff 00000000"
        "10 00 00 00 00 04 6130 00 00000000"
    )
    spu = broker.spu(7)
    spu.feed(frame)
    ((number, answer),) = spu.pushed()
    assert number == 77
    assert read_produced(answer) == [("test-produce", [(0, 0, 0)])]
    assert stored(broker, "test-produce") == [Record(b"a0", None, (), 0x18BCFE56800)]


def test_a_wrong_checksum_is_refused_in_words_the_client_knows(demo: FluvioBroker) -> None:
    sent = bytearray(their_batch(b"x"))
    sent[-2] ^= 1
    answer = demo.spu().ask(PRODUCE, produce("demo", bytes(sent)))
    answer.u32(), answer.text(), answer.u32(), answer.u32()
    assert answer.i16() == 2
    assert "checksum" in answer.text()
    assert stored(demo) == []


def test_a_topics_compression_is_demanded(broker: FluvioBroker) -> None:
    broker.sc().ask(1001, create_topic("packed", topic_spec(tail=b"\0\0\1\0\0")))
    answer = read_produced(broker.spu().ask(PRODUCE, produce("packed", their_batch(b"x"))))
    assert answer == [("packed", [(0, 9000, 0)])]


def test_a_stream_keeps_to_its_window(demo: FluvioBroker) -> None:
    spu = demo.spu()
    for number in range(5):
        spu.ask(PRODUCE, produce("demo", their_batch(b"%d" % number * 100)))
    stream = spu.request(STREAM, stream_fetch("demo", bytes_max=1))
    ((number, frame),) = spu.pushed()
    first = read_streamed(frame)
    assert (number, first.stream_id, first.error, first.marks_end) == (stream, 1, 0, 5)
    assert [offset for offset, _, _ in first.records] == [0]
    demo.runtime.advance(10_000)
    assert spu.pushed() == []
    ack = spu.request(ACK, update_offsets((1, 1)), version=0)
    (acked, answer), (pushed, frame) = spu.pushed()
    assert (acked, pushed) == (ack, stream)
    answer.version = 0
    assert (answer.u32(), answer.u32(), answer.i16()) == (1, 1, 0)
    assert [offset for offset, _, _ in read_streamed(frame).records] == [1]


def test_a_stream_waits_for_records_in_silence(demo: FluvioBroker) -> None:
    reader, writer = demo.spu(), demo.spu()
    reader.request(STREAM, stream_fetch("demo"))
    assert reader.pushed() == []
    writer.ask(PRODUCE, produce("demo", their_batch(b"new")))
    ((_, frame),) = reader.pushed()
    assert read_streamed(frame).records == [(0, None, b"new")]
    reader.request(ACK, update_offsets((1, 1)), version=0)
    assert len(reader.pushed()) == 1
    writer.ask(PRODUCE, produce("demo", their_batch(b"newer")))
    ((_, frame),) = reader.pushed()
    assert read_streamed(frame).records == [(1, None, b"newer")]


def test_a_stream_begins_inside_a_batch(demo: FluvioBroker) -> None:
    spu = demo.spu()
    spu.ask(PRODUCE, produce("demo", their_batch(b"a", b"b", b"c")))
    spu.request(STREAM, stream_fetch("demo", 1))
    ((_, frame),) = spu.pushed()
    assert read_streamed(frame).records == [(1, None, b"b"), (2, None, b"c")]


def test_whoever_acknowledges_what_was_never_sent_is_told_so(demo: FluvioBroker) -> None:
    spu = demo.spu()
    spu.ask(PRODUCE, produce("demo", their_batch(b"a")))
    stream = spu.request(STREAM, stream_fetch("demo"))
    spu.pushed()
    ack = spu.request(ACK, update_offsets((99, 1)), version=0)
    (first, frame), (second, answer) = spu.pushed()
    assert (first, second) == (stream, ack)
    assert read_streamed(frame, lambda reader: _check_text(reader, "99")).error == 2
    answer.u32(), answer.u32()
    assert answer.i16() == 2
    answer = spu.ask(ACK, update_offsets((1, 1)), version=0)
    assert (answer.u32(), answer.u32(), answer.i16()) == (1, 1, 3002)
    assert not spu.line.hung_up


def _check_text(reader: Reader, part: str) -> None:
    assert part in reader.text()


def test_offsets_outside_the_log(demo: FluvioBroker) -> None:
    spu = demo.spu()
    for _ in range(4):
        spu.ask(PRODUCE, produce("demo", their_batch(b"a"), isolation=-1))
    demo.broker.topics.trim(Partition("demo", 0), 2)
    demo.broker.topics.settle()

    def evicted(reader: Reader) -> None:
        assert (reader.i64(), reader.i64()) == (1, 2)

    spu.request(STREAM, stream_fetch("demo", 1))
    ((_, frame),) = spu.pushed()
    assert read_streamed(frame, evicted).error == 71
    spu.request(STREAM, stream_fetch("demo", 9))
    ((_, frame),) = spu.pushed()
    assert read_streamed(frame, lambda reader: _check_text(reader, "9")).error == 2
    spu.request(STREAM, stream_fetch("nowhere"))
    ((_, frame),) = spu.pushed()
    streamed = read_streamed(frame)
    assert (streamed.error, streamed.stream_id) == (6, 0)


def test_streams_of_a_deleted_topic_end(demo: FluvioBroker) -> None:
    spu = demo.spu()
    stream = spu.request(STREAM, stream_fetch("demo"))
    demo.topics.delete("demo")
    demo.sc().ask(1001, create_topic("demo"))
    ((number, frame),) = spu.pushed()
    assert (number, read_streamed(frame).error) == (stream, 2007)
    spu.ask(PRODUCE, produce("demo", their_batch(b"other topic")))
    assert spu.pushed() == []


def test_gaps_split_batches() -> None:
    """What compaction leaves: offsets 0, 1 and 5 of six."""
    built = batch.build([Record(b"%d" % n, b"k") for n in range(6)], timestamp_ms=1)
    payload, header = batch.payload_of(built, 0, bytes_max=1 << 20)
    pieces = bytes(payload)
    size = len(pieces) // 6
    kept = pieces[: 2 * size] + pieces[5 * size :]
    rebuilt = batch.rebuild(header, kept, count=3, codec=0)
    record_set, count = kernels.log_to_fluvio(rebuilt, 0, len(rebuilt), 0)
    assert count == 3
    offsets = [(offset, value) for offset, _, value in read_records(bytes(record_set))]
    assert offsets == [(0, b"0"), (1, b"1"), (5, b"5")]


def test_aborted_records_are_hidden_and_offsets_stay(demo: FluvioBroker) -> None:
    log, at = demo.broker.log, Partition("demo", 0)
    names = demo.broker.transactions
    later = names.identify("t", timeout_ms=10_000)
    demo.runtime.run()
    who = later.value
    spu = demo.spu()
    spu.ask(PRODUCE, produce("demo", their_batch(b"before")))
    names.enlist("t", who, [at])
    built = batch.build(
        [Record(b"aborted")],
        timestamp_ms=1,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        base_sequence=0,
        transactional=True,
    )
    log.append(at, memoryview(built))
    names.end("t", who, commit=False, bump=False)
    demo.runtime.run()
    spu.ask(PRODUCE, produce("demo", their_batch(b"after")))
    spu.request(STREAM, stream_fetch("demo"))
    seen = []
    while len(seen) < 2:
        frame = spu.pushed()[-1][1]
        seen += read_streamed(frame).records
        spu.request(ACK, update_offsets((seen[-1][0] + 1, 1)), version=0)
    assert seen == [(0, None, b"before"), (3, None, b"after")]


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("commit_it", [True, False])
def test_a_transaction_is_shown_when_it_has_ended(
    demo: FluvioBroker, isolation: int, commit_it: bool
) -> None:
    log, at = demo.broker.log, Partition("demo", 0)
    names = demo.broker.transactions
    later = names.identify("t", timeout_ms=100_000)
    demo.runtime.run()
    who = later.value
    writer, spu = demo.spu(), demo.spu()
    writer.ask(PRODUCE, produce("demo", their_batch(b"before")))
    names.enlist("t", who, [at])
    built = batch.build(
        [Record(b"undecided")],
        timestamp_ms=1,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        base_sequence=0,
        transactional=True,
    )
    log.append(at, memoryview(built))
    writer.ask(PRODUCE, produce("demo", their_batch(b"behind"), isolation=-1))
    assert read_fetched(spu.ask(FETCH, fetch("demo", 0)))[2] == [(0, None, b"before")]
    spu.request(STREAM, stream_fetch("demo", isolation=isolation))
    ((_, frame),) = spu.pushed()
    assert read_streamed(frame).records == [(0, None, b"before")]
    spu.request(ACK, update_offsets((1, 1)), version=0)
    assert len(spu.pushed()) == 1
    names.end("t", who, commit=commit_it, bump=False)
    seen: list[tuple[int, bytes | None, bytes]] = []
    expected = [(1, None, b"undecided")] if commit_it else []
    while len(seen) < len(expected) + 1:
        seen += read_streamed(spu.pushed()[-1][1]).records
        spu.request(ACK, update_offsets((seen[-1][0] + 1, 1)), version=0)
    assert seen == [*expected, (2, None, b"behind")]


def test_a_full_connection_is_sent_nothing(demo: FluvioBroker) -> None:
    spu, other = demo.spu(), demo.spu()
    spu.request(STREAM, stream_fetch("demo"))
    spu.line.full = True
    other.ask(PRODUCE, produce("demo", their_batch(b"x")))
    assert spu.pushed() == []
    spu.line.make_room()
    assert len(spu.pushed()) == 1


def fetch_offsets(topic: str, *indexes: int) -> bytes:
    body = Writer(24).u32(1).text(topic)
    body.many(indexes, body.u32)
    return bytes(body.out)


def test_fetch_offsets(demo: FluvioBroker) -> None:
    spu = demo.spu()
    spu.ask(PRODUCE, produce("demo", their_batch(b"a", b"b")))
    answer = spu.ask(FETCH_OFFSETS, fetch_offsets("demo", 0, 5))
    assert (answer.u32(), answer.text(), answer.u32()) == (1, "demo", 2)
    assert (answer.i16(), answer.u32(), answer.i64(), answer.i64()) == (0, 0, 0, 2)
    assert (answer.i16(), answer.u32(), answer.i64(), answer.i64()) == (3001, 5, 0, 0)
    answer.finish()


def test_fetch_offsets_of_version_23_starts_where_the_consumer_is(demo: FluvioBroker) -> None:
    spu = demo.spu()
    spu.ask(PRODUCE, produce("demo", their_batch(b"a", b"b")))
    commit(demo, "c1", 0)
    body = fetch_offsets("demo", 0) + bytes(Writer(23).option_text("c1").out)
    answer = spu.ask(FETCH_OFFSETS, body, version=23)
    answer.u32(), answer.text(), answer.u32()
    assert (answer.i16(), answer.u32(), answer.i64(), answer.i64()) == (0, 0, 1, 2)


def commit(broker: FluvioBroker, consumer: str, offset: int) -> None:
    spu = broker.spu()
    spu.request(STREAM, stream_fetch("demo", consumer_id=consumer))
    spu.pushed()
    answer = spu.ask(COMMIT, bytes(Writer(24).i64(offset).u32(1).out))
    assert (answer.i64(), answer.i16()) == (offset, 0)
    answer.finish()


def consumers(broker: FluvioBroker, body: bytes = b"\0") -> list[tuple[str, str, int, int]]:
    reader = broker.spu().ask(CONSUMERS, body)
    assert reader.i16() == 0

    def entry() -> tuple[str, str, int, int]:
        found = reader.text(), reader.text(), reader.u32(), reader.i64()
        assert reader.u64() == (broker.runtime.time_ms // 1000 if broker.dates_commits else 0)
        return found

    found = reader.many(entry)
    reader.finish()
    return found


def test_managed_offsets_are_those_of_groups(demo: FluvioBroker) -> None:
    demo.spu().ask(PRODUCE, produce("demo", their_batch(b"a", b"b", b"c")))
    commit(demo, "c1", 1)
    at = Partition("demo", 0)
    assert demo.groups.offsets.committed("c1")[at].offset == 2
    assert consumers(demo) == [("c1", "demo", 0, 1)]
    chosen = bytes(Writer(24).u8(1).u8(1).text("demo").u32(0).option_text("c1").out)
    assert consumers(demo, chosen) == [("c1", "demo", 0, 1)]
    other = bytes(Writer(24).u8(1).u8(1).text("demo").u32(1).option_text("c1").out)
    assert consumers(demo, other) == []
    forget = bytes(Writer(24).text("demo").u32(0).text("c1").out)
    for _ in range(2):
        answer = demo.spu().ask(FORGET, forget)
        assert answer.i16() == 0
        answer.finish()
    assert consumers(demo) == []


def test_an_offset_without_a_next_one_is_refused(demo: FluvioBroker) -> None:
    spu = demo.spu()
    spu.request(STREAM, stream_fetch("demo", consumer_id="mine"))
    last = (1 << 63) - 1
    answer = spu.ask(COMMIT, bytes(Writer(24).i64(last).u32(1).out))
    assert (answer.i64(), answer.i16()) == (last, 2)
    assert str(last - 1) in answer.text()
    assert consumers(demo) == []
    answer = spu.ask(COMMIT, bytes(Writer(24).i64(last - 1).u32(1).out))
    assert (answer.i64(), answer.i16()) == (last - 1, 0)
    assert consumers(demo) == [("mine", "demo", 0, last - 1)]


def test_a_stream_of_a_deleted_topic_commits_nothing(demo: FluvioBroker) -> None:
    spu = demo.spu()
    spu.request(STREAM, stream_fetch("demo", consumer_id="mine"))
    demo.topics.delete("demo")
    demo.sc().ask(1001, create_topic("demo"))
    ((_, frame),) = spu.pushed()
    assert read_streamed(frame).error == 2007
    answer = spu.ask(COMMIT, bytes(Writer(24).i64(3).u32(1).out))
    assert (answer.i64(), answer.i16()) == (3, 2007)
    assert consumers(demo) == []


def test_offsets_of_nobody(demo: FluvioBroker) -> None:
    spu = demo.spu()
    answer = spu.ask(COMMIT, bytes(Writer(24).i64(3).u32(9).out))
    assert (answer.i64(), answer.i16()) == (3, 3002)
    spu.request(STREAM, stream_fetch("demo"))
    answer = spu.ask(COMMIT, bytes(Writer(24).i64(3).u32(1).out))
    assert (answer.i64(), answer.i16()) == (3, 2)
    assert "consumer id" in answer.text()


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    first = FluvioBroker(tmp_path / "data")
    first.sc().ask(1001, create_topic("demo"))
    first.spu().ask(PRODUCE, produce("demo", their_batch(b"a", b"b"), isolation=-1))
    commit(first, "c1", 0)
    first.close()
    second = FluvioBroker(tmp_path / "data")
    assert [record.value for record in stored(second)] == [b"a", b"b"]
    assert second.groups.offsets.committed("c1")[Partition("demo", 0)].offset == 1
    second.close()


def fetch(topic: str, offset: int, *, wait_ms: int = 0, version: int = 24) -> bytes:
    body = Writer(version).i32(wait_ms).i32(1).i32(1 << 20).u8(0).u32(1).text(topic).u32(1)
    return bytes(body.u32(0).i32(-1).i64(offset).i64(0).i32(1 << 20).u32(0).out)


def read_fetched(reader: Reader) -> tuple[int, int, list[tuple[int, bytes | None, bytes]]]:
    assert (reader.i32(), reader.i16(), reader.i32(), reader.u32()) == (0, 0, 0, 1)
    reader.text()
    assert (reader.u32(), reader.u32()) == (1, 0)
    error, end = reader.i16(), reader.i64()
    reader.i64(), reader.i64(), reader.u8()
    records = read_records(reader.bytes_())
    reader.finish()
    return error, end, records


def test_the_older_fetch(demo: FluvioBroker) -> None:
    spu = demo.spu()
    spu.ask(PRODUCE, produce("demo", their_batch(b"a", b"b")))
    found = read_fetched(spu.ask(FETCH, fetch("demo", 1)))
    assert found == (0, 2, [(1, None, b"b")])
    assert read_fetched(spu.ask(FETCH, fetch("demo", 2))) == (0, 2, [])


def test_the_older_fetch_waits(demo: FluvioBroker) -> None:
    spu = demo.spu()
    spu.request(FETCH, fetch("demo", 0, wait_ms=500))
    assert spu.pushed() == []
    demo.spu().ask(PRODUCE, produce("demo", their_batch(b"a")))
    ((_, answer),) = spu.pushed()
    assert read_fetched(answer) == (0, 1, [(0, None, b"a")])
    spu.request(FETCH, fetch("demo", 1, wait_ms=500))
    assert spu.pushed() == []
    demo.runtime.advance(600)
    ((_, answer),) = spu.pushed()
    assert read_fetched(answer) == (0, 1, [])


def test_versions_are_told_and_kept(demo: FluvioBroker) -> None:
    spu = demo.spu()
    names = Writer(2).text("0.15.2").text("linux").text("x86_64").out
    reader = spu.ask(18, bytes(names), version=2)
    assert reader.i16() == 0
    told = reader.many(lambda: (reader.i16(), reader.i16(), reader.i16()))
    assert told == [(0, 0, 25), (1, 0, 25), (1002, 23, 25), (1003, 0, 25), (1005, 0, 0)]
    assert reader.text() == "0.0.0"
    spu.feed(request(0, b"", 26, 5))
    assert spu.line.hung_up


@pytest.mark.parametrize(
    "frame",
    [
        b"\0\0\0\x09" + bytes(9),
        b"\x7f\xff\xff\xff",
        request(999, b"", 0, 1),
        request(0, b"\2", 24, 1),
        request(1003, b"\0\4demo", 24, 1),
    ],
    ids=["short", "long", "unknown key", "bad option", "cut body"],
)
def test_what_cannot_be_read_ends_the_connection(demo: FluvioBroker, frame: bytes) -> None:
    spu = demo.spu()
    spu.feed(frame)
    assert spu.line.hung_up
    spu.feed(request(18, bytes(6), 2, 1))
    assert spu.frames() == []
