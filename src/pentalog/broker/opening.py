"""Opens slices for protocols that look inside batches: uncompressed, and only what may be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pentalog.broker.port import Opened
from pentalog.kernels import BatchHeader, attributes_in, batch_header
from pentalog.log.admission import OPENED_BYTES_MAX
from pentalog.model import batch, compression
from pentalog.model.errors import BrokerError
from pentalog.model.types import Aborted, FilePiece, Offset, Slice

ReadPiece = Callable[[FilePiece], bytes]

_HIDDEN: Final = batch.CODEC_MASK | batch.CONTROL


def open_slice(found: Slice, *, bytes_max: int, read_piece: ReadPiece) -> Opened:
    """What a slice holds for a reader of records.

    Batches without anything to open or to hide come as they lie on disk.
    """
    data = _bytes_of(found, read_piece)
    attributes, end = attributes_in(data, 0, len(data))
    if end == len(data) and not attributes & _HIDDEN and not found.aborted:
        return Opened(data, found.marks, found.next_offset)
    return _open_each(data, found, bytes_max)


def _bytes_of(found: Slice, read_piece: ReadPiece) -> bytes | memoryview:
    parts = [read_piece(piece) if isinstance(piece, FilePiece) else piece for piece in found.pieces]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _open_each(data: bytes | memoryview, found: Slice, bytes_max: int) -> Opened:
    out = bytearray()
    next_offset: Offset | None = None
    hidden = _Hidden(found.aborted)
    for position, header in _headers(data):
        if hidden.hides(data, position, header):
            next_offset = header.base_offset + header.last_offset_delta + 1
            continue
        if out and len(out) + header.size > bytes_max:
            return Opened(out, found.marks, _started(next_offset))
        try:
            opened = _open(data, position, header)
        except BrokerError:
            if out:  # what lies before it can be read; the next read begins with it
                return Opened(out, found.marks, _started(next_offset))
            raise
        if out and len(out) + len(opened) > bytes_max:
            return Opened(out, found.marks, _started(next_offset))
        out += opened
        next_offset = header.base_offset + header.last_offset_delta + 1
    return Opened(out, found.marks, found.next_offset)


def _started(next_offset: Offset | None) -> Offset:
    assert next_offset is not None, "what was opened has an end"
    return next_offset


def _headers(data: bytes | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    position = 0
    while position + batch.HEADER_BYTES <= len(data):
        header = batch_header(data, position)
        yield position, header
        position += header.size


def _open(data: bytes | memoryview, position: int, header: BatchHeader) -> bytearray | memoryview:
    if not header.attributes & batch.CODEC_MASK:
        return memoryview(data)[position : position + header.size]
    payload, _ = batch.payload_of(data, position, bytes_max=OPENED_BYTES_MAX)
    return batch.rebuild(header, payload, count=header.records, codec=compression.NONE)


class _Hidden:
    """Tells which batches of a slice nobody may see, asked in the order of the log."""

    def __init__(self, aborted: Sequence[Aborted]) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._open: set[int] = set()

    def hides(self, data: bytes | memoryview, position: int, header: BatchHeader) -> bool:
        last_offset = header.base_offset + header.last_offset_delta
        while self._coming and self._coming[-1].first_offset <= last_offset:
            self._open.add(self._coming.pop().producer_id)
        if header.attributes & batch.CONTROL:
            if header.producer_id in self._open and batch.control_type(data, position) == "abort":
                self._open.discard(header.producer_id)
            return True
        return bool(header.attributes & batch.TRANSACTIONAL) and header.producer_id in self._open
