"""What a reader of the log gets at a time, whether from files or from a connection."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from pentalog.kernels import Buffer, attributes_in, batch_header, crc32c
from pentalog.model import batch, compression
from pentalog.model.errors import BrokerError
from pentalog.model.types import Offset

OPENED_BYTES_MAX: Final = 256 << 20
"""What one compressed batch may hold once opened."""

_TRIPLE: Final = struct.Struct("=qqq")
_FOREVER: Final = (1 << 63) - 1


class Piece(NamedTuple):
    """Whole batches, one behind the other; the first may begin before the offset asked for."""

    data: memoryview
    """Valid until the next piece is asked for."""
    next_offset: Offset
    """Behind everything in it."""
    aborted: bytes
    """Transactions to hide, as the kernel `decode_columns` takes them."""


class Gone(Exception):
    """Records that should be there are not; the reader that raised this goes on behind them."""

    def __init__(self, first: Offset, behind: Offset, why: str) -> None:
        super().__init__(f"offsets {first}..{behind - 1} are lost: {why}")
        self.first = first
        self.behind = behind
        self.why = why


class Feed(Protocol):
    """Reads one range of one partition, forward, once."""

    def read(self) -> Piece | None:
        """The next piece; None behind the last.  Raises `Gone`, and may then be asked again."""

    def close(self) -> None: ...


def pack_aborted(ranges: Iterable[tuple[int, Offset, Offset]]) -> bytes:
    """Transactions (producer id, first offset, last offset) as the kernel takes them."""
    return b"".join(_TRIPLE.pack(*one) for one in sorted(set(ranges)))


def aborted_in(data: Buffer, begun: Iterable[tuple[int, Offset]]) -> bytes:
    """Transactions told as (producer id, first offset), each ended by its marker in `data`."""
    coming = sorted(begun, key=lambda entry: entry[1])
    if not coming:
        return b""
    ranges: list[tuple[int, Offset, Offset]] = []
    still_open: dict[int, Offset] = {}
    position, following = 0, 0
    view = memoryview(data)
    while position + batch.HEADER_BYTES <= len(view):
        header = batch_header(view, position)
        if header.magic != 2 or header.size > len(view) - position:
            break
        last_offset = header.base_offset + header.last_offset_delta
        while following < len(coming) and coming[following][1] <= last_offset:
            still_open[coming[following][0]] = coming[following][1]
            following += 1
        if header.attributes & batch.CONTROL and header.producer_id in still_open:
            ranges.append((header.producer_id, still_open.pop(header.producer_id), last_offset))
        position += header.size
    ranges += [(producer_id, first, _FOREVER) for producer_id, first in still_open.items()]
    return pack_aborted(ranges)


def opened(data: memoryview) -> Buffer:
    """The same batches without compression; as they are if none has any."""
    attributes, end = attributes_in(data, 0, len(data))
    if end == len(data) and not attributes & batch.CODEC_MASK:
        return data
    out = bytearray()
    position = 0
    while position + batch.HEADER_BYTES <= len(data):
        header = batch_header(data, position)
        if header.magic != 2 or not batch.HEADER_BYTES <= header.size <= len(data) - position:
            break
        whole = data[position : position + header.size]
        position += header.size
        if not header.attributes & batch.CODEC_MASK or crc32c(whole[21:]) != header.crc:
            out += whole
            continue
        try:
            payload, _ = batch.payload_of(whole, 0, bytes_max=OPENED_BYTES_MAX)
        except BrokerError:
            out += whole  # the decoder names it: a batch it cannot open is as good as lost
            continue
        out += batch.rebuild(header, payload, count=header.records, codec=compression.NONE)
    return out
