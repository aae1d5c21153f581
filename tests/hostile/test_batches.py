"""Batches that cost their sender little, or that nobody could read, must cost others nothing."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest
from tests.hostile.hostile_world import HostileWorld, ask, string
from tests.server.broker_process import answer, request

from pentalog import kernels
from pentalog.model import batch, compression
from pentalog.model.types import Record
from pentalog.protocols.fluvio.codec import Writer
from pentalog.protocols.fluvio.messages import BATCH_HEADER_BYTES

INVALID_RECORD = 87
MESSAGE_TOO_LARGE = 10
RECORD_BYTES = 10
NOW_MS = 1_700_000_000_000


def tiny_records(count: int, *, keyed: bool = False) -> bytearray:
    """Records of the fewest bytes there can be: a batch of millions compresses to kilobytes."""
    payload = bytearray()
    key = b"\x02k" if keyed else b"\x01"
    for index in range(count):
        number = index << 1
        delta = bytearray()
        while number > 0x7F:
            delta.append(number & 0x7F | 0x80)
            number >>= 7
        delta.append(number)
        body = b"\0\0" + delta + key + b"\x01\0"
        payload.append(len(body) << 1)
        payload += body
    return payload


def packed(payload: bytes | bytearray, count: int, codec: int) -> bytearray:
    sound = batch.build([Record(b"")], timestamp_ms=NOW_MS)
    header = kernels.batch_header(sound, 0)._replace(last_offset_delta=count - 1)
    return batch.rebuild(header, payload, count=count, codec=codec)


def produce(topic: str, *batches: bytes | bytearray, acks: int = -1) -> bytes:
    """Produce 7, one partition per batch."""
    body = struct.pack(">hhiih", -1, acks, 5_000, 1, len(topic)) + topic.encode()
    body += struct.pack(">i", len(batches))
    for index, data in enumerate(batches):
        body += struct.pack(">ii", index, len(data)) + data
    return request(0, 7, 1, body)


def produced(client: socket.socket, topic: str, data: bytes | bytearray) -> int:
    """The error code of one batch."""
    found = ask(client, produce(topic, data))
    return int(struct.unpack_from(">h", found, 4 + 2 + len(topic) + 4 + 4)[0])


def create(client: socket.socket, topic: str, *, partitions: int = 1, **settings: str) -> None:
    body = struct.pack(">i", 1) + string(topic) + struct.pack(">ihi", partitions, 1, 0)
    body += struct.pack(">i", len(settings))
    for name, value in settings.items():
        body += string(name.replace("_", ".")) + string(value)
    found = ask(client, request(19, 2, 1, body + struct.pack(">i?", 5_000, False)))
    assert struct.unpack_from(">h", found, 8 + 2 + len(topic))[0] == 0, found


def list_offset(client: socket.socket, topic: str, when_ms: int) -> tuple[int, int, int]:
    """(error code, timestamp, offset) of ListOffsets 1."""
    body = struct.pack(">ii", -1, 1) + string(topic) + struct.pack(">iiq", 1, 0, when_ms)
    found = ask(client, request(2, 1, 1, body))
    error, timestamp, offset = struct.unpack_from(">hqq", found, 4 + 2 + len(topic) + 4 + 4)
    return error, timestamp, offset


@pytest.fixture
def world(tmp_path: Path) -> HostileWorld:
    return HostileWorld(tmp_path, "fluvio-sc", "fluvio-spu")


@pytest.mark.parametrize("codec", range(5))
def test_poison_is_refused_and_readers_get_past_it(tmp_path: Path, codec: int) -> None:
    with HostileWorld(tmp_path) as world, world.connect() as client:
        create(client, "t")
        assert produced(client, "t", batch.build([Record(b"a")], timestamp_ms=NOW_MS)) == 0
        garbage = packed(b"\xaa" * 300, 7, codec)
        assert produced(client, "t", garbage) == INVALID_RECORD
        endless = packed(tiny_records(3), (1 << 31) - 1, codec)
        assert produced(client, "t", endless) == INVALID_RECORD
        assert produced(client, "t", batch.build([Record(b"b")], timestamp_ms=NOW_MS)) == 0
        assert list_offset(client, "t", -1)[2] == 2


def test_pipelined_batches_that_are_opened_elsewhere_are_answered_one_by_one(
    tmp_path: Path,
) -> None:
    """No further request must be needed for the last answer to leave."""
    count = 60_000
    sound = packed(tiny_records(count), count, compression.ZSTD)
    poison = packed(tiny_records(count)[:-3] + b"\xaa" * 3, count, compression.ZSTD)
    small = packed(tiny_records(1), 1, compression.ZSTD)
    with HostileWorld(tmp_path) as world, world.connect() as client:
        create(client, "t")
        client.sendall(b"".join(produce("t", each, acks=1) for each in (sound, poison, small)))
        codes = [
            struct.unpack_from(">h", answer(client)[1], 4 + 2 + len("t") + 4 + 4)[0]
            for _ in range(3)
        ]
        assert codes == [0, INVALID_RECORD, 0]
        assert list_offset(client, "t", -1)[2] == count + 1


def test_a_search_by_time_in_a_batch_of_many_records(tmp_path: Path) -> None:
    count = 700_000
    small = packed(tiny_records(count), count, compression.ZSTD)
    assert len(small) < 1 << 20
    with HostileWorld(tmp_path) as world, world.connect() as client:
        create(client, "t")
        assert produced(client, "t", small) == 0

        def attack() -> None:
            for _ in range(10):
                assert list_offset(client, "t", NOW_MS)[2] == 0

        cost = world.measure(attack)
        print(cost)
        cost.assert_bounded(rulers=12, memory_mib=48)


def test_small_batches_that_hold_much_are_refused(tmp_path: Path) -> None:
    bomb = batch.build([Record(bytes(200 << 20), b"k")], timestamp_ms=NOW_MS, codec=4)
    assert len(bomb) < 20_000
    with HostileWorld(tmp_path) as world, world.connect() as client:
        create(client, "compacted", partitions=8, cleanup_policy="compact")

        def attack() -> None:
            assert produced(client, "compacted", bomb) == MESSAGE_TOO_LARGE
            found = ask(client, produce("compacted", *[bomb] * 8))
            assert found.count(struct.pack(">h", MESSAGE_TOO_LARGE)) >= 8

        cost = world.measure(attack)
        print(cost)
        cost.assert_bounded(rulers=12, memory_mib=128)


def test_a_compacted_topic_takes_a_batch_of_many_records(tmp_path: Path) -> None:
    count = 600_000
    data = packed(tiny_records(count, keyed=True), count, compression.ZSTD)
    with HostileWorld(tmp_path) as world, world.connect() as client:
        oldest_ms = "9" * 15
        create(
            client,
            "compacted",
            cleanup_policy="compact",
            message_timestamp_before_max_ms=oldest_ms,
        )

        def attack() -> None:
            for _ in range(5):
                assert produced(client, "compacted", data) == 0

        cost = world.measure(attack)
        print(cost)
        cost.assert_bounded(rulers=12, memory_mib=64)


def their_bomb(size: int) -> bytes:
    """A batch as a Fluvio producer sends it, compressed to almost nothing."""
    built = batch.build([Record(bytes(size))], timestamp_ms=NOW_MS)
    whole, _ = kernels.log_to_fluvio(built, 0, len(built), 0)
    data = bytearray(whole[:BATCH_HEADER_BYTES])
    data += compression.compress(compression.GZIP, bytes(whole[BATCH_HEADER_BYTES:]))
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, compression.GZIP)
    struct.pack_into(">I", data, 17, kernels.crc32c(memoryview(data)[21:]))
    return bytes(data)


def fluvio(key: int, body: bytes, correlation_id: int = 1) -> bytes:
    head = Writer(24).u16(key).i16(24).i32(correlation_id).text("t").out
    return struct.pack(">I", len(head) + len(body)) + head + body


def fluvio_answer(client: socket.socket) -> bytes:
    got = bytearray()
    while len(got) < 4 or len(got) < 4 + struct.unpack_from(">I", got)[0]:
        piece = client.recv(1 << 20)
        assert piece, "the broker hung up"
        got += piece
    return bytes(got[4:])


def test_a_fluvio_request_of_many_bombs(world: HostileWorld) -> None:
    bombs = their_bomb(60 << 20) * 2
    with world, world.connect() as kafka, world.connect("fluvio-spu") as client:
        create(kafka, "t")
        body = Writer(24).u8(0).i16(1).i32(60_000).u32(1).text("t").u32(1)
        body.u32(0).bytes_(bombs).raw(b"\0\0\0\0")

        def attack() -> None:
            client.sendall(fluvio(0, bytes(body.out)))
            fluvio_answer(client)

        cost = world.measure(attack)
        print(cost)
        cost.assert_bounded(rulers=10, memory_mib=200)


def test_a_fluvio_stream_of_a_batch_that_holds_much(world: HostileWorld) -> None:
    payload = batch.build([Record(bytes(1000))] * 7_000, timestamp_ms=NOW_MS)[batch.HEADER_BYTES :]
    with world, world.connect() as kafka, world.connect("fluvio-spu") as client:
        create(kafka, "t")
        assert produced(kafka, "t", packed(payload, 7_000, compression.ZSTD)) == 0
        body = Writer(24).text("t").u32(0).i64(0).i32(100_000).u8(0).raw(b"\0\0\0\0")
        frames: list[int] = []

        def attack() -> None:
            client.sendall(fluvio(1003, bytes(body.option_text(None).out)))
            frames.append(len(fluvio_answer(client)))

        cost = world.measure(attack)
        print(cost)
        assert frames[0] <= 110_000, "a stream's frame is as large as was asked for"
        cost.assert_bounded(rulers=3, memory_mib=40)
