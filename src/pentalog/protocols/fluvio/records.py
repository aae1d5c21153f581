"""Fluvio's record sets to batches of the log and back; kernels do it by whole batches.

A record set is batches one behind another.  What is compressed is opened, translated and compressed
again with the same codec, for the number of records lies inside the compressed part here and
outside of it in the log.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import cramjam

from pentalog import kernels
from pentalog.broker.port import Broker, Opened
from pentalog.broker.transformation import Section
from pentalog.kernels import Buffer, Malformed
from pentalog.kernels.pure.fluvio import SCHEMA_HEADER
from pentalog.model import batch, compression
from pentalog.model.errors import BatchCorrupt, RecordTooLarge, UnsupportedFormat
from pentalog.model.types import Horizon, Partition
from pentalog.protocols.fluvio.messages import BATCH_HEADER_BYTES

DOOR: Final = batch.DOORS.index("fluvio") << batch.DOOR_SHIFT
SCHEMA: Final = 0x10
"""Attribute bit: a schema id lies before the records."""

NO_HEADERS: Final = b"\0"
"""No headers, encoded."""
_FRAMED_SNAPPY: Final = b"\xff\x06\x00\x00sNaPpY"
_ROOM_BYTES_MIN: Final = 64 << 10
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_TIMESTAMP: Final = struct.Struct(">q")


def to_log(
    data: memoryview,
    batches: list[tuple[int, int]],
    *,
    bytes_max: int,
    compression_type: str,
    joined_bytes_max: int = 0,
) -> list[bytearray]:
    """The log's batches, one for each of Fluvio's that has records.

    Refused once what was compressed holds more than `bytes_max` in all.  With `joined_bytes_max`
    they are joined as long as they take no more than that, uncompressed.
    """
    found: list[bytearray] = []
    waiting = Waiting(bytearray(), compression.NONE)
    for start, end in batches:
        theirs, codec = _open_batch(
            data, start, end, bytes_max=bytes_max, compression_type=compression_type
        )
        if codec != compression.NONE:
            bytes_max -= theirs.end - theirs.start
        built = _translate(data, start, theirs, bare_allowed=codec == compression.NONE)
        held = len(waiting.batches)
        # The first one is not copied: mostly it is the only one.
        if not held or waiting.codec != codec or held + len(built) > joined_bytes_max:
            found += waiting.taken(joined_bytes_max)
            waiting = Waiting(built, codec)
        else:
            waiting.batches.extend(built)
    return found + waiting.taken(joined_bytes_max)


class Waiting(NamedTuple):
    """Batches of the log, uncompressed, one behind another; how they shall be compressed."""

    batches: bytearray
    codec: int

    def taken(self, joined_bytes_max: int) -> list[bytearray]:
        return [_compressed(built, self.codec) for built in joined(self.batches, joined_bytes_max)]


def joined(batches: bytearray, bytes_max: int) -> list[bytearray]:
    """The same records in as few batches of at most so many bytes as can be."""
    if batches and kernels.batch_header(batches, 0).size == len(batches):
        return [batches]
    found: list[bytearray] = []
    position = 0
    while position < len(batches):
        built, position = kernels.join_batches(batches, position, len(batches), bytes_max)
        found.append(built)
    return found


def _compressed(built: bytearray, codec: int) -> bytearray:
    if codec == compression.NONE:
        return built
    header = kernels.batch_header(built, 0)
    payload = memoryview(built)[batch.HEADER_BYTES :]
    return batch.rebuild(header, payload, count=header.records, codec=codec)


class Theirs(NamedTuple):
    """A batch of Fluvio's, opened: where its records are, and the headers each shall get."""

    section: Buffer
    start: int
    end: int
    headers: bytes


def _open_batch(
    data: memoryview, start: int, end: int, *, bytes_max: int, compression_type: str
) -> tuple[Theirs, int]:
    """(the batch, its codec)."""
    _check_sum(data, start, end)
    (attributes,) = _ATTRIBUTES.unpack_from(data, start + 21)
    codec = attributes & batch.CODEC_MASK
    if codec >= len(compression.CODECS):
        raise UnsupportedFormat(f"compression codec {codec} is unknown; accepted are 0..4")
    name = compression.CODECS[codec]
    if compression_type not in ("producer", name):
        raise UnsupportedFormat(
            f"a batch compressed as {name!r}; this topic takes {compression_type!r} only"
        )
    position = start + BATCH_HEADER_BYTES
    headers = NO_HEADERS
    if attributes & SCHEMA:
        position += _CRC.size
        if position > end:
            raise BatchCorrupt("the batch ends before its schema id")
        headers = _schema_headers(_CRC.unpack_from(data, position - _CRC.size)[0])
    if codec == compression.NONE:
        return Theirs(data, position, end, headers), codec
    opened = open_section(codec, data[position:end], bytes_max=max(1, bytes_max))
    return Theirs(opened, 0, len(opened), headers), codec


def sections(
    data: memoryview, batches: list[tuple[int, int]], *, bytes_max: int, compression_type: str
) -> list[tuple[Section, bytes]]:
    """Batches for SmartModules: copies of their records, and the headers each shall get."""
    found: list[tuple[Section, bytes]] = []
    for start, end in batches:
        if bytes_max <= 0:
            raise RecordTooLarge("the batches hold too much for SmartModules; send less at once")
        theirs, _ = _open_batch(
            data, start, end, bytes_max=bytes_max, compression_type=compression_type
        )
        bytes_max -= theirs.end - theirs.start
        built = _translate(data, start, theirs, bare_allowed=True)
        if built:
            # By way of the log's form, so that modules are shown only what is sound.
            counted, _ = kernels.log_to_fluvio(built, 0, len(built), 0)
            skipped = BATCH_HEADER_BYTES + (0 if theirs.headers == NO_HEADERS else _CRC.size)
            (timestamp,) = _TIMESTAMP.unpack_from(data, start + 27)
            found.append((Section(0, timestamp, bytes(counted[skipped:])), theirs.headers))
    return found


def _translate(data: memoryview, start: int, theirs: Theirs, *, bare_allowed: bool) -> bytearray:
    """A batch of the log; nothing if there are no records in it."""
    section, position, end, headers = theirs
    if end - position == 4 and bytes(section[position:end]) == b"\0\0\0\0":
        return bytearray()
    for counted in (True, False) if bare_allowed else (True,):
        # The document has no number before the records.
        try:
            return kernels.fluvio_to_log(
                data,
                start,
                section,
                position,
                end,
                counted=counted,
                attributes=DOOR,
                headers=headers,
            )
        except Malformed:
            continue
    raise BatchCorrupt("the records are malformed; accepted are whole ones behind their number")


def _check_sum(data: memoryview, start: int, end: int) -> None:
    """CRC-32C; or the plain CRC-32, which is what the class that the document names computes."""
    (said,) = _CRC.unpack_from(data, start + 17)
    summed = data[start + 21 : end]
    if said != kernels.crc32c(summed) and said != zlib.crc32(summed):
        raise BatchCorrupt(
            "the checksum of the batch is wrong; accepted is CRC-32C from its attributes on"
        )


def _schema_headers(schema: int) -> bytes:
    digits = str(schema).encode()
    name = bytes((2 * len(SCHEMA_HEADER),)) + SCHEMA_HEADER
    return b"\x02" + name + bytes((2 * len(digits),)) + digits


def open_section(codec: int, data: memoryview, *, bytes_max: int) -> bytes:
    """The records of a batch, uncompressed; snappy comes in frames here."""
    framed = codec == compression.SNAPPY and bytes(data[:10]) == _FRAMED_SNAPPY
    if not framed:
        return compression.decompress(codec, data, bytes_max=bytes_max)
    room = min(max(_ROOM_BYTES_MIN, 4 * len(data)), bytes_max)
    while True:
        out = bytearray(room)
        try:
            size = cramjam.snappy.decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise BatchCorrupt("the batch says snappy, but cannot be decompressed") from error
            if room == bytes_max:
                raise RecordTooLarge(
                    f"the batch holds more than {bytes_max} bytes; send smaller batches"
                ) from error
            room = min(4 * room, bytes_max)
        else:
            return bytes(memoryview(out)[:size])


def from_log(batches: Buffer, offset: int) -> tuple[bytearray, int]:
    """(record set, how many records) of the log's batches, from an offset on."""
    try:
        return kernels.log_to_fluvio(batches, 0, len(batches), offset)
    except Malformed as flaw:
        raise BatchCorrupt(f"a batch of the log: {flaw}; check the disk") from flaw


def horizon_of(broker: Broker, *, committed: bool) -> Horizon:
    """How far a client is shown records; others' log shows to nobody what may yet abort."""
    return Horizon.STABLE if committed or not broker.knowledge.current else Horizon.END


def decided(broker: Broker, at: Partition, opened: Opened, horizon: Horizon) -> Opened:
    """The same up to the first record of a transaction that has not ended: it may yet abort."""
    data = opened.batches
    if horizon is Horizon.STABLE:
        return opened
    if not kernels.attributes_in(data, 0, len(data))[0] & batch.TRANSACTIONAL:
        return opened
    limit = broker.transactions.unended(at)
    if limit is None or limit >= opened.next_offset:
        return opened
    position = 0
    while position < len(data):
        header = kernels.batch_header(data, position)
        if header.base_offset >= limit:
            break
        position += header.size
    return Opened(memoryview(data)[:position], opened.marks, limit)
