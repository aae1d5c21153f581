"""The four compressions a batch may have, opened under a limit.

Snappy comes raw or in blocks as the xerial library writes them: a magic of 8 bytes, two version
numbers (i32), then per block its length (i32) and its raw bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import cramjam

from pentalog.kernels import Buffer
from pentalog.model.errors import BatchCorrupt, RecordTooLarge, UnsupportedFormat

CODECS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
"""Names by codec number; the names are those of the topic setting `compression.type`."""

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

_OPENED_BYTES_MAX: Final = 64 << 20
_OPENED_BYTES_FREE: Final = 8 << 20
_OPENED_RATIO_MAX: Final = 128
_LEVELS: Final = {GZIP: 6, LZ4: 1, ZSTD: 3}
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_START: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER_BYTES_MAX: Final = 18
_I32: Final = struct.Struct(">i")
_ROOM_BYTES: Final = (1 << 20) + (64 << 10)
"""Holds what producers put into one batch by default."""
_ROOMS_MAX: Final = 4
_rooms: Final[list[bytearray]] = []
"""Memory to decompress into, used again and again: new memory costs as much as decompressing.

Threads take a room from the list and put it back; both operations of a list are atomic.
"""
_NO_ROOM: Final = "failed to write whole buffer"
"""How cramjam says that the output has not enough room, as opposed to bad input."""

_OPEN: Final[dict[int, Callable[[memoryview, memoryview], int]]] = {
    GZIP: cramjam.gzip.decompress_into,
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}


def opened_bytes_max(size: int) -> int:
    """What `size` compressed bytes of a client may hold: 8 MiB or 128 times as much, up to 64 MiB.

    A producer that sends batches of Kafka's largest default size stays within that whatever its
    records are; a few bytes that unpack to hundreds of megabytes do not.
    """
    return min(_OPENED_BYTES_MAX, max(_OPENED_BYTES_FREE, _OPENED_RATIO_MAX * size))


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` as the codec has it; `level` None is the codec's own choice."""
    if codec == NONE:
        return bytes(data)
    if codec == SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec not in _LEVELS:
        raise UnsupportedFormat(_unknown(codec))
    level = _LEVELS[codec] if level is None else level
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level=level))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=level))
    # Apache Kafka's own reader refuses blocks that depend on each other.
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=True, block_linked=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def decompress(codec: int, data: Buffer, *, bytes_max: int) -> bytes:
    """What `data` holds; refused as soon as it is more than `bytes_max`."""
    return bytes(decompressed(codec, data, bytes_max=bytes_max))


def decompressed(codec: int, data: Buffer, *, bytes_max: int) -> memoryview:
    """The same; what is not compressed is returned as it is."""
    with opened(codec, data, bytes_max=bytes_max) as content:
        return content if codec == NONE else memoryview(bytes(content))


@contextmanager
def opened(codec: int, data: Buffer, *, bytes_max: int) -> Iterator[memoryview]:
    """Decompress for as long as the block lasts: its memory is used again afterwards."""
    view = memoryview(data)
    if codec == NONE:
        if len(view) > bytes_max:
            raise RecordTooLarge(_too_large(bytes_max))
        yield view
    elif codec == SNAPPY:
        yield _open_snappy(view, bytes_max)
    elif codec not in _OPEN:
        raise UnsupportedFormat(_unknown(codec))
    else:
        try:
            room = _rooms.pop()
        except IndexError:
            room = bytearray(_ROOM_BYTES)
        try:
            with _open_growing(codec, view, room, bytes_max) as content:
                yield content
        finally:
            if len(_rooms) < _ROOMS_MAX:
                _rooms.append(room)


def _open_growing(codec: int, data: memoryview, room: bytearray, bytes_max: int) -> memoryview:
    """Try with the room that is there first: most batches are small, and the limit is not."""
    size = min(len(room), bytes_max)
    said = _zstd_content_bytes(data) if codec == ZSTD else None
    if said is not None:
        if said > bytes_max:
            raise RecordTooLarge(_too_large(bytes_max))
        size = max(1, said)
    while True:
        out = memoryview(room if size <= len(room) else bytearray(size))[:size]
        try:
            return out[: _OPEN[codec](data, out)]
        except cramjam.DecompressionError as error:
            if str(error) != _NO_ROOM:
                raise BatchCorrupt(_corrupt(codec)) from error
            if size == bytes_max:
                raise RecordTooLarge(_too_large(bytes_max)) from error
            size = min(4 * size, bytes_max)


def _zstd_content_bytes(data: memoryview) -> int | None:
    """What the first frame says it holds; None if it does not say."""
    if len(data) < _ZSTD_HEADER_BYTES_MAX or bytes(data[:4]) != _ZSTD_MAGIC:
        return None
    descriptor = data[4]
    single = descriptor >> 5 & 1
    size = (single, 2, 4, 8)[descriptor >> 6]
    start = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    if not size:
        return None
    said = int.from_bytes(data[start : start + size], "little")
    return said + 256 if size == 2 else said


def _compress_snappy(data: memoryview) -> bytes:
    out = bytearray(_XERIAL_START)
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(bytes(data[start : start + _XERIAL_BLOCK_BYTES]))
        out += _I32.pack(len(block))
        out += bytes(block)
    return bytes(out)


def _open_snappy(data: memoryview, bytes_max: int) -> memoryview:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return memoryview(_open_snappy_block(data, bytes_max, bytes_max=bytes_max))
    position = len(_XERIAL_START)
    if position > len(data):
        raise BatchCorrupt(_corrupt(SNAPPY))
    out = bytearray()
    while position < len(data):
        if len(data) - position < _I32.size:
            raise BatchCorrupt(_corrupt(SNAPPY))
        (size,) = _I32.unpack_from(data, position)
        position += _I32.size
        if not 0 < size <= len(data) - position:
            raise BatchCorrupt(_corrupt(SNAPPY))
        block = data[position : position + size]
        out += _open_snappy_block(block, bytes_max - len(out), bytes_max=bytes_max)
        position += size
    return memoryview(out)


def _open_snappy_block(block: memoryview, room: int, *, bytes_max: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(block) > room:
            raise RecordTooLarge(_too_large(bytes_max))
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise BatchCorrupt(_corrupt(SNAPPY)) from error


def _unknown(codec: int) -> str:
    known = ", ".join(f"{number} ({name})" for number, name in enumerate(CODECS))
    return f"compression codec {codec} is unknown; accepted are {known}"


def _corrupt(codec: int) -> str:
    return f"the batch says it is compressed with {CODECS[codec]}, but cannot be decompressed"


def _too_large(bytes_max: int) -> str:
    return f"the batch holds more than {bytes_max} bytes once decompressed; send smaller batches"
