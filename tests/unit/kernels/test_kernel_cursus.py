"""Cursus batches both ways: exact, bounded, and the same from both twins."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentalog.kernels import Malformed
from pentalog.kernels.cursus_facts import (
    CURSUS_COUNT,
    CURSUS_MESSAGE,
    CURSUS_PARTITION,
    CURSUS_REST,
    CURSUS_SHORT,
    CURSUS_TOPIC,
)
from pentalog.kernels.pure import cursus as pure
from pentalog.kernels.pure import cursus_pages as pure_pages
from pentalog.model import batch
from pentalog.model.types import Record

compiled: Any = pytest.importorskip("pentalog.kernels.compiled.cursus")
compiled_pages: Any = pytest.importorskip("pentalog.kernels.compiled.cursus_pages")

GOLDEN = bytes.fromhex(
    "ba7c00066f7264657273000000000131000000000000000001000000000000000200000002"
    "000000000000000000000000000000010002703100026b3100000000000000050000000568656c6c6f"
    "00000000000000000000000000000000"
    "00000000000000000000000000000002000270310000000000000000000500000005776f726c64"
    "0002457600000002000000000000000900027b7d"
)
DOCUMENT = bytes.fromhex("ba7c00066f726465727300013000013100") + GOLDEN[17:]
HEAD = bytes.fromhex("ba7c00066f726465727300000000013100")
SETTINGS: dict[str, Any] = {
    "skip": 0, "timestamp_ms": 1000, "attributes": 0x200, "producer_id": -1,
    "producer_epoch": -1, "base_sequence": -1, "batch_bytes_max": 1 << 20,
}  # fmt: skip
PAGE: dict[str, Any] = {
    "offset": 0, "messages_max": 8192, "bytes_max": 8 << 20, "frame_bytes_max": 16 << 20,
}  # fmt: skip


def message(
    seq: int = 1, producer: bytes = b"p1", key: bytes = b"", epoch: int = 5,
    payload: bytes = b"x", event: bytes = b"", schema: int = 0, aggregate: int = 0,
    metadata: bytes = b"",
) -> bytes:  # fmt: skip
    def text(data: bytes) -> bytes:
        return struct.pack(">H", len(data)) + data

    return (
        struct.pack(">QQ", 0, seq) + text(producer) + text(key)
        + struct.pack(">qI", epoch, len(payload)) + payload + text(event)
        + struct.pack(">IQ", schema, aggregate) + text(metadata)
    )  # fmt: skip


def frame(*messages: bytes, head: bytes = HEAD) -> bytes:
    return head + bytes(16) + struct.pack(">i", len(messages)) + b"".join(messages)


def stored(twin: SimpleNamespace, data: bytes, **settings: Any) -> bytearray:
    read = twin.read_cursus(data, 0, len(data))
    assert read.flaw == 0
    batches, facts = twin.cursus_batches(
        data, read.messages_start, len(data), read.records, **{**SETTINGS, **settings}
    )
    assert facts == twin.check_batches(batches, 0, len(batches))
    assert isinstance(batches, bytearray)
    return batches


@pytest.mark.parametrize(("data", "document"), [(GOLDEN, False), (DOCUMENT, True)])
def test_both_dialects_are_walked(twin: SimpleNamespace, data: bytes, document: bool) -> None:
    read = twin.read_cursus(data, 0, len(data))
    assert (read.flaw, read.document, read.topic, read.partition) == (0, document, b"orders", 0)
    assert (read.acks, read.idempotent, read.records) == (b"1", False, 2)
    assert (read.producer, read.epoch, read.seq_first, read.seq_last) == (b"p1", 5, 1, 2)
    assert (read.one_producer, read.break_after, read.break_got) == (True, 0, 0)


def test_a_batch_comes_back_as_it_was(twin: SimpleNamespace) -> None:
    batches = stored(twin, GOLDEN)
    page = twin.cursus_page(batches, 0, len(batches), HEAD, **PAGE)
    back = bytearray(page.frame)
    assert struct.unpack_from(">I", back)[0] == len(GOLDEN) == len(back) - 4
    second = len(HEAD) + 24 + len(message(key=b"k1", payload=b"hello"))
    assert back[second : second + 8] == struct.pack(">Q", 1)
    back[second : second + 8] = bytes(8)
    assert bytes(back[4:]) == GOLDEN
    assert page[1:] == (2, -1, -1)


def test_own_fields_are_headers_a_kafka_reader_sees(twin: SimpleNamespace) -> None:
    ((_, first), (_, second)) = batch.records_of(stored(twin, GOLDEN), 0, bytes_max=1 << 20)
    assert (first.key, first.value) == (b"k1", b"hello")
    assert dict(first.headers) == {
        "cursus.producer_id": b"p1", "cursus.seq": b"1", "cursus.epoch": b"5",
    }  # fmt: skip
    assert second.key is None
    assert dict(second.headers)["cursus.aggregate_version"] == b"9"
    assert dict(second.headers)["cursus.schema_version"] == b"2"
    assert dict(second.headers)["cursus.metadata"] == b"{}"


@pytest.mark.parametrize(
    ("data", "flaw"),
    [
        (b"\xba\x7c", CURSUS_SHORT),
        (b"\xba\x7c\x00\x00", CURSUS_TOPIC),
        (b"\xba\x7c\x00\x05abc", CURSUS_TOPIC),
        (b"\xba\x7c\x01\x00" + bytes(300), CURSUS_TOPIC),
        (b"\xba\x7c\x00\x01a\xff\xff\xff\xff", CURSUS_PARTITION),
        (b"\xba\x7c\x00\x01a\x00\x01x\x00\x01", CURSUS_PARTITION),
        (b"\xba\x7c\x00\x01a\x00\x0b01234567890", CURSUS_PARTITION),
        (GOLDEN[:30], CURSUS_SHORT),
        (GOLDEN[:33] + struct.pack(">i", -1) + GOLDEN[37:], CURSUS_COUNT),
        (GOLDEN[:33] + struct.pack(">i", 100_001) + GOLDEN[37:], CURSUS_COUNT),
        (GOLDEN[:33] + struct.pack(">i", 3) + GOLDEN[37:], CURSUS_MESSAGE),
        (GOLDEN + b"\0", CURSUS_REST),
        (GOLDEN[:-1], CURSUS_MESSAGE),
    ],
)
def test_flawed_frames_are_named(twin: SimpleNamespace, data: bytes, flaw: int) -> None:
    assert twin.read_cursus(data, 0, len(data)).flaw == flaw


def test_breaks_in_the_sequence_are_seen(twin: SimpleNamespace) -> None:
    data = frame(message(5), message(7), message(9))
    read = twin.read_cursus(data, 0, len(data))
    assert (read.break_after, read.break_got, read.seq_last) == (5, 7, 9)
    data = frame(message(5), message(6, producer=b"other"))
    assert not twin.read_cursus(data, 0, len(data)).one_producer


def test_large_batches_are_divided_and_numbered_through(twin: SimpleNamespace) -> None:
    data = frame(*(message(n, payload=b"x" * 300) for n in range(1, 11)))
    batches = stored(
        twin, data, batch_bytes_max=1200, producer_id=7, producer_epoch=0, base_sequence=0
    )
    facts = twin.check_batches(batches, 0, len(batches))
    assert facts.batches > 2
    assert (facts.records, facts.chained, facts.batch_bytes_max <= 1200) == (10, True, True)
    assert (facts.sequence_first, facts.sequence_last, facts.attributes_any) == (0, 9, 0x200)


def test_what_was_stored_before_is_skipped(twin: SimpleNamespace) -> None:
    batches = stored(twin, frame(message(1), message(2), message(3, payload=b"three")), skip=2)
    ((_, record),) = batch.records_of(batches, 0, bytes_max=1 << 20)
    assert record.value == b"three"


def test_pages_end_where_they_are_told(twin: SimpleNamespace) -> None:
    batches = stored(twin, frame(*(message(n, payload=b"x" * 100) for n in range(1, 11))))
    page = twin.cursus_page(batches, 0, len(batches), HEAD, **{**PAGE, "messages_max": 3})
    assert (page.records, page.next_offset) == (3, 3)
    page = twin.cursus_page(
        batches, 0, len(batches), HEAD, **{**PAGE, "offset": 8, "bytes_max": 10}
    )
    assert (page.records, page.next_offset) == (1, 9), "at least one"
    page = twin.cursus_page(batches, 0, len(batches), HEAD, **{**PAGE, "offset": 10})
    assert (page.records, page.next_offset, page.unshown_offset) == (0, -1, -1)


def foreign(*headers: tuple[str, bytes | None], key: bytes | None = None) -> bytes:
    return bytes(batch.build([Record(b"v", key, headers)], timestamp_ms=1))


def metadata_of(twin: SimpleNamespace, batches: bytes) -> bytes:
    page = twin.cursus_page(batches, 0, len(batches), HEAD, **PAGE)
    assert page.records == 1
    walk = pure.Walk(memoryview(page.frame), 4 + len(HEAD) + 20, len(page.frame))
    return walk.message().metadata


def test_headers_of_others_are_shown_as_json(twin: SimpleNamespace) -> None:
    batches = foreign(("k", 'te"x\n\x01é'.encode()), ("b", b"\xff\x00"), ("k", None))
    shown = metadata_of(twin, batches)
    assert json.loads(shown) == {
        "headers": [["k", 'te"x\n\x01é'], ["b", {"base64": "/wA="}], ["k", None]]
    }
    assert metadata_of(twin, foreign(("k", b"v"), ("cursus.metadata", b"own"))) == b"own"
    assert json.loads(metadata_of(twin, foreign(("cursus.seq", b"no number"))))


@pytest.mark.parametrize(
    "batches",
    [
        foreign(("k", b"v" * 70_000)),
        foreign(("cursus.metadata", b"v" * 70_000)),
        foreign(key=b"k" * 70_000),
    ],
)
def test_what_no_message_can_hold_is_named(twin: SimpleNamespace, batches: bytes) -> None:
    page = twin.cursus_page(batches, 0, len(batches), HEAD, **PAGE)
    assert (page.records, page.next_offset, page.unshown_offset) == (0, 0, 0)
    page = twin.cursus_page(batches, 0, len(batches), HEAD, **{**PAGE, "offset": 1})
    assert page[1:] == (0, -1, -1)


def test_events_of_one_aggregate(twin: SimpleNamespace) -> None:
    data = frame(
        message(0, key=b"a", aggregate=1), message(0, key=b"b", aggregate=1),
        message(0, key=b"a", aggregate=2), message(0, key=b"a"),
    )  # fmt: skip
    batches = stored(twin, data)
    for version, count in ((1, 2), (2, 1), (3, 0)):
        page = twin.cursus_page(
            batches, 0, len(batches), HEAD, **PAGE, key=b"a", version_from=version
        )
        assert page.records == count


def test_our_mistakes_are_told(twin: SimpleNamespace) -> None:
    for start, end in ((-1, 2), (3, 2), (0, 500)):
        with pytest.raises(ValueError):
            twin.read_cursus(GOLDEN, start, end)
        with pytest.raises(ValueError):
            twin.cursus_page(GOLDEN, start, end, HEAD, **PAGE)
        with pytest.raises(ValueError):
            twin.cursus_batches(GOLDEN, start, end, 1, **SETTINGS)
    with pytest.raises(ValueError):
        twin.cursus_batches(GOLDEN, 37, len(GOLDEN), 2, **{**SETTINGS, "skip": 2})
    with pytest.raises(Malformed):
        twin.cursus_page(b"no batch at all", 0, 15, HEAD, **PAGE)
    with pytest.raises(Malformed):
        twin.cursus_batches(GOLDEN, 37, 40, 2, **SETTINGS)


def outcome(call: Any) -> Any:
    try:
        return call()
    except Malformed:
        return "malformed"


@given(
    data=st.one_of(
        st.sampled_from([GOLDEN, DOCUMENT]),
        st.lists(
            st.builds(
                message,
                seq=st.integers(0, (1 << 64) - 1),
                producer=st.binary(max_size=5),
                key=st.binary(max_size=5),
                epoch=st.integers(-(1 << 63), (1 << 63) - 1),
                payload=st.binary(max_size=40),
                event=st.binary(max_size=5),
                schema=st.integers(0, (1 << 32) - 1),
                aggregate=st.integers(0, (1 << 64) - 1),
                metadata=st.binary(max_size=5),
            ),
            max_size=5,
        ).map(lambda messages: frame(*messages)),
    ),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 20),
    skip=st.integers(0, 2),
    batch_bytes_max=st.integers(0, 400),
)
def test_twins_agree_on_frames(
    data: bytes, changes: list[tuple[int, int]], cut: int, skip: int, batch_bytes_max: int
) -> None:
    mutated = bytearray(data[: len(data) - cut] if cut < 10 else data)
    for position, value in changes:
        if position < len(mutated):
            mutated[position] = value
    end = len(mutated)
    read = compiled.read_cursus(mutated, 0, end)
    assert read == pure.read_cursus(mutated, 0, end)
    if read.flaw or read.records <= skip:
        return
    settings = {**SETTINGS, "skip": skip, "batch_bytes_max": batch_bytes_max}
    settings |= {"producer_id": 3, "producer_epoch": 1, "base_sequence": (1 << 31) - 2}
    made = compiled.cursus_batches(mutated, read.messages_start, end, read.records, **settings)
    assert made == pure.cursus_batches(mutated, read.messages_start, end, read.records, **settings)


HEADER = st.tuples(
    st.sampled_from(
        ["cursus.seq", "cursus.epoch", "cursus.schema_version", "cursus.aggregate_version",
         "cursus.producer_id", "cursus.event_type", "cursus.metadata", "cursus.x", "a", "é"]
    ),
    st.one_of(
        st.none(), st.binary(max_size=30), st.text(max_size=9).map(str.encode),
        st.integers(-(1 << 64), 1 << 65).map(lambda number: b"%d" % number),
        st.just(b"9" * 30_000),
    ),
)  # fmt: skip


@given(
    records=st.lists(
        st.builds(
            Record,
            value=st.one_of(st.none(), st.binary(max_size=20)),
            key=st.one_of(st.none(), st.sampled_from([b"", b"a"])),
            headers=st.lists(HEADER, max_size=4).map(tuple),
            timestamp_ms=st.just(5),
        ),
        min_size=1,
        max_size=4,
    ),
    changes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=2),
    offset=st.integers(0, 4),
    messages_max=st.integers(0, 4),
    bytes_max=st.integers(0, 300),
    key=st.one_of(st.none(), st.just(b"a")),
)
def test_twins_agree_on_pages(
    records: list[Record],
    changes: list[tuple[int, int]],
    offset: int,
    messages_max: int,
    bytes_max: int,
    key: bytes | None,
) -> None:
    data = batch.build(records, timestamp_ms=5)
    for position, value in changes:
        if position < len(data):
            data[position] = value
    settings = {"offset": offset, "messages_max": messages_max, "bytes_max": bytes_max}
    settings["frame_bytes_max"] = 200_000
    settings = {**settings, "key": key, "version_from": 1}
    calls = [
        lambda twin=twin: twin.cursus_page(data, 0, len(data), HEAD, **settings)
        for twin in (compiled_pages, pure_pages)
    ]
    assert outcome(calls[0]) == outcome(calls[1])


def test_frames_are_cut_between_messages(twin: SimpleNamespace) -> None:
    read = twin.read_cursus(GOLDEN, 0, len(GOLDEN))
    start, end = read.messages_start, len(GOLDEN)
    one, middle = twin.cursus_cut(GOLDEN, start, end, 2, bytes_max=1)
    assert (one, start < middle < end) == (1, True)
    assert twin.cursus_cut(GOLDEN, middle, end, 1, bytes_max=1) == (1, end)
    assert twin.cursus_cut(GOLDEN, start, end, 2, bytes_max=end) == (2, end)
    assert twin.cursus_cut(GOLDEN, start, end, 2, bytes_max=middle - start) == (1, middle)
    assert twin.cursus_cut(GOLDEN, start, end, 0, bytes_max=1) == (0, start)
    with pytest.raises(Malformed):
        twin.cursus_cut(GOLDEN, start, end - 1, 2, bytes_max=end)
    for place in ((-1, 5), (5, 4), (0, end + 1)):
        with pytest.raises(ValueError):
            twin.cursus_cut(GOLDEN, *place, 1, bytes_max=1)


def test_a_page_of_one_door(twin: SimpleNamespace) -> None:
    data = stored(twin, GOLDEN) + stored(twin, GOLDEN, attributes=0x300)
    found = [
        twin.cursus_page(data, 0, len(data), HEAD, **PAGE, door=door).records
        for door in (-1, 0, 2, 3)
    ]
    assert found == [4, 0, 2, 2]


@given(st.binary(max_size=200))
def test_keys_have_the_same_hash_in_both_twins(key: bytes) -> None:
    assert compiled.fnv1a_64(key) == pure.fnv1a_64(key)


def test_the_hash_of_a_key_is_fnv_1a() -> None:
    # Of the test vectors that the authors of the hash publish.
    vectors = {b"": 0xCBF29CE484222325, b"a": 0xAF63DC4C8601EC8C, b"foobar": 0x85944171F73967E8}
    for key, hashed in vectors.items():
        assert compiled.fnv1a_64(key) == pure.fnv1a_64(key) == hashed
