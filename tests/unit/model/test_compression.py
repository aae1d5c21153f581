"""All four codecs, against those of two clients, and under their limit."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
from collections.abc import Callable

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import codec as kafka_python_codec

from pentalog.model.compression import CODECS, compress, decompress, decompressed, opened
from pentalog.model.errors import BatchCorrupt, RecordTooLarge, UnsupportedFormat

LIMIT = 1 << 20
PAYLOADS = {
    "empty": b"",
    "small": b"event",
    "long": b"the same words again, " * 9_000,
    "noise": random.Random(1).randbytes(100_000),
}
CLIENTS = {
    1: (aiokafka_codec.gzip_encode, aiokafka_codec.gzip_decode),
    2: (aiokafka_codec.snappy_encode, aiokafka_codec.snappy_decode),
    3: (aiokafka_codec.lz4_encode, aiokafka_codec.lz4_decode),
    4: (aiokafka_codec.zstd_encode, aiokafka_codec.zstd_decode),
}
codecs = pytest.mark.parametrize("codec", [1, 2, 3, 4], ids=CODECS[1:])


@codecs
@pytest.mark.parametrize("name", PAYLOADS)
def test_there_and_back(codec: int, name: str) -> None:
    data = PAYLOADS[name]
    assert decompress(codec, compress(codec, data), bytes_max=LIMIT) == data
    view = memoryview(bytearray(compress(codec, memoryview(data))))
    assert decompress(codec, view, bytes_max=LIMIT) == data


@codecs
@pytest.mark.parametrize("name", ["small", "long", "noise"])
def test_clients_read_ours_and_we_theirs(codec: int, name: str) -> None:
    encode, decode = CLIENTS[codec]
    data = PAYLOADS[name]
    assert bytes(decode(compress(codec, data))) == data
    assert decompress(codec, bytes(encode(data)), bytes_max=LIMIT) == data


@pytest.mark.parametrize(
    ("encode", "codec"),
    [(kafka_python_codec.gzip_encode, 1), (gzip.compress, 1), (cramjam.snappy.compress_raw, 2)],
)
def test_other_writers(encode: Callable[[bytes], bytes], codec: int) -> None:
    for data in PAYLOADS.values():
        assert decompress(codec, bytes(encode(data)), bytes_max=LIMIT) == data


def test_lz4_blocks_stand_alone() -> None:
    # Bit 5 of the descriptor; Apache Kafka reads no frame without it.
    assert compress(3, PAYLOADS["long"])[4] & 0x20


def test_zstd_frame_without_its_size() -> None:
    compressor = cramjam.zstd.Compressor()
    compressor.compress(PAYLOADS["long"])
    frame = bytes(compressor.finish())
    assert frame[4] & 0xE0 == 0, "this frame must not say its size"
    assert decompress(4, frame, bytes_max=LIMIT) == PAYLOADS["long"]


@pytest.mark.parametrize(("codec", "levels"), [(1, (1, 9)), (3, (1, 12)), (4, (1, 19))])
def test_levels_are_heeded(codec: int, levels: tuple[int, int]) -> None:
    data = b"".join(b"%d, " % (n * n % 977) for n in range(9_000))
    low, high = (compress(codec, data, level) for level in levels)
    assert len(high) < len(low)


@pytest.mark.parametrize("codec", range(5))
def test_the_limit_is_exact(codec: int) -> None:
    data = PAYLOADS["long"]
    packed = compress(codec, data)
    assert decompress(codec, packed, bytes_max=len(data)) == data
    with pytest.raises(RecordTooLarge, match=str(len(data) - 1)):
        decompress(codec, packed, bytes_max=len(data) - 1)


@codecs
def test_a_bomb_is_refused(codec: int) -> None:
    bomb = compress(codec, bytes(64 << 20))
    with pytest.raises(RecordTooLarge):
        decompress(codec, bomb, bytes_max=LIMIT)


@codecs
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damage_gives_bytes_or_a_refusal(codec: int, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, PAYLOADS["long"][:2_000]))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(packed)))
    with contextlib.suppress(BatchCorrupt, RecordTooLarge):
        assert len(decompress(codec, packed[:cut], bytes_max=10_000)) <= 10_000


@codecs
def test_cut_data_is_corrupt(codec: int) -> None:
    packed = compress(codec, PAYLOADS["noise"])
    with pytest.raises(BatchCorrupt, match=CODECS[codec]):
        decompress(codec, packed[:-20], bytes_max=LIMIT)


@pytest.mark.parametrize(
    "blocks",
    [b"", b"\x00", struct.pack(">i", -1), struct.pack(">i", 5) + b"abc", bytes(4)],
)
def test_bad_snappy_blocks(blocks: bytes) -> None:
    start = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    if not blocks:
        assert decompress(2, start, bytes_max=10) == b""
        start = start[:-1]
    with pytest.raises(BatchCorrupt):
        decompress(2, start + blocks, bytes_max=10)


@pytest.mark.parametrize("codec", [5, 7, -1])
def test_unknown_codecs_are_named(codec: int) -> None:
    with pytest.raises(UnsupportedFormat, match=f"codec {codec} .*zstd"):
        decompress(codec, b"", bytes_max=10)
    with pytest.raises(UnsupportedFormat, match=f"codec {codec} .*zstd"):
        compress(codec, b"")


@pytest.mark.parametrize("size", [0, 1, 255, 256, 300, 65_791, 65_792, 70_000, 1 << 20])
def test_zstd_frames_say_what_they_hold(size: int) -> None:
    zstd = CODECS.index("zstd")
    packed = compress(zstd, bytes(size))
    assert decompress(zstd, packed, bytes_max=max(1, size)) == bytes(size)
    if size:
        with pytest.raises(RecordTooLarge):
            decompress(zstd, packed, bytes_max=size - 1)
    streamed = cramjam.zstd.Compressor()
    streamed.compress(bytes(size))
    unsaid = bytes(streamed.finish())
    assert decompress(zstd, unsaid, bytes_max=1 << 21) == bytes(size)
    twice = packed + unsaid
    assert decompress(zstd, twice, bytes_max=1 << 22) == bytes(2 * size)


@pytest.mark.parametrize("codec", range(1, 5))
def test_what_is_open_at_a_time_is_in_memory_of_its_own(codec: int) -> None:
    one, two = compress(codec, b"1" * 1000), compress(codec, b"2" * 1000)
    with (
        opened(codec, one, bytes_max=LIMIT) as first,
        opened(codec, two, bytes_max=LIMIT) as second,
    ):
        assert bytes(first) == b"1" * 1000
        assert bytes(second) == b"2" * 1000
    kept = decompressed(codec, one, bytes_max=LIMIT)
    assert decompress(codec, two, bytes_max=LIMIT) == b"2" * 1000
    assert bytes(kept) == b"1" * 1000


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_memory_that_is_used_again_cannot_be_read_afterwards(codec: int) -> None:
    with opened(codec, compress(codec, b"secret"), bytes_max=LIMIT) as content:
        assert bytes(content) == b"secret"
    with pytest.raises(ValueError, match="released"):
        bytes(content)
