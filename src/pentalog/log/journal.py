"""The journal: one file per data directory through which acknowledged writes reach the disk.

Syncing one file that never grows is many times cheaper than syncing every partition's own.  The
journal is written ahead (all its blocks exist) and overwritten in a circle; the partition files
follow in the background, and space is reused only when they have.  After a crash every entry
that lies beyond the sound end of its partition is appended there again.

File `journal`, little-endian.  Two header slots of 4096 bytes, the newer sound one holds:

    0   magic     4 bytes  "PLJH"
    4   crc       u32      CRC-32C of bytes 8..48
    8   version   u32      1
    12  unused    u32
    16  number    u64      grows with each header written
    24  epoch     u64      life of the journal; entries of other lives are void
    32  sequence  u64      first entry that counts
    40  position  u64      where that entry lies, or will lie

Entries from byte 8192 on, each starting at a multiple of 64:

    0   magic         4 bytes  "PLJE"
    4   crc           u32      CRC-32C of bytes 8..64 and the payload
    8   epoch         u64
    16  sequence      u64      grows by one with each entry
    24  topic id      16 bytes
    40  partition     i32
    44  length        u32      of the payload
    48  base offset   i64      of the payload's first batch
    56  segment base  i64      base offset of the segment it was written to
    64  payload                whole record batches
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from pentalog import kernels
from pentalog.log.files import Files, Handle

_HEADER: Final = struct.Struct("<4sIIIQQQQ")
_HEADER_BODY: Final = struct.Struct("<IIQQQQ")
_ENTRY: Final = struct.Struct("<4sIQQ16siIqq")
_ENTRY_BODY: Final = struct.Struct("<QQ16siIqq")
_HEADER_MAGIC: Final = b"PLJH"
_ENTRY_MAGIC: Final = b"PLJE"
_VERSION: Final = 1
_SLOT_BYTES: Final = 4096
_START: Final = 2 * _SLOT_BYTES
_ALIGNMENT: Final = 64
_FILL_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 1 << 20

SIZE_MIN: Final = 64 << 10


class Entry(NamedTuple):
    """Batches of one partition that may be nowhere else on the disk yet."""

    topic_id: UUID
    partition: int
    base_offset: int
    segment_base: int
    payload: bytes | bytearray | memoryview


class Chunk(NamedTuple):
    """Entries that are written and synced together."""

    position: int
    data: bytearray
    sequence_last: int


class Journal:
    """Knows what is where; the writing itself is done by the flusher, on its thread."""

    def __init__(self, path: Path, files: Files, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = max(size_bytes, SIZE_MIN) // _SLOT_BYTES * _SLOT_BYTES
        self._files = files
        self._file: Handle | None = None
        self._epoch = 0
        self._sequence = 1
        self._number = 0
        self._head = _START
        self._chunks: deque[tuple[int, int, int]] = deque()
        """(start, end, last sequence) of every chunk whose space is not free."""
        self.used_bytes = 0

    @property
    def ready(self) -> bool:
        return self._file is not None

    @property
    def file(self) -> Handle:
        assert self._file is not None
        return self._file

    # Opening

    def recover(self) -> list[Entry]:
        """Every entry that still counts, oldest first; nothing if there is no journal."""
        if not self._files.exists(self.path):
            return []
        file = self._files.open(self.path)
        slots = self._files.read(file, _START, 0)
        headers = [
            header for slot in (0, _SLOT_BYTES) if (header := _read_header(slots, slot)) is not None
        ]
        if not headers:
            file.close()
            return []
        number, epoch, sequence, _ = max(headers)
        self._number, self._epoch = number, epoch
        found = _read_entries(self._files, file, epoch, sequence)
        if self._files.size(file) == self.size_bytes:
            self._file = file
        return [entry for _, entry in found]

    def create(self) -> Handle:
        """Write the whole file ahead; slow, for a thread.  `start` makes it the journal."""
        file = self._files.open(self.path, create=True)
        self._files.truncate(file, self.size_bytes)
        zeros = bytes(_FILL_BYTES)
        for position in range(0, self.size_bytes, _FILL_BYTES):
            self._files.write(file, zeros[: self.size_bytes - position], position)
        self._files.sync(file)
        self._files.sync_directory(self.path.parent)
        return file

    def start(self, file: Handle | None = None) -> None:
        """Begin a new life with nothing in it: what the old one held is in the partitions now."""
        if file is not None:
            self._file = file
        self._epoch += 1
        self._sequence = 1
        self._head = _START
        self._chunks.clear()
        self.used_bytes = 0
        if self._file is None:
            if self._files.exists(self.path):
                # Of another size, or without a sound header: made anew when it is needed.
                self._files.remove(self.path)
            return
        data, position = self.header()
        self._files.write_synced(self.file, data, position)

    def close(self) -> None:
        self._file = None

    # Writing

    def place(self, entries: Sequence[Entry]) -> Chunk | None:
        """Lay out entries to be written in one go; None if there is no room now."""
        sizes = [_padded(_ENTRY.size + len(entry.payload)) for entry in entries]
        size = sum(sizes)
        position = self._room(size)
        if position < 0:
            return None
        data = bytearray(size)
        at = 0
        for entry, entry_bytes in zip(entries, sizes, strict=True):
            end = at + _ENTRY.size + len(entry.payload)
            _ENTRY_BODY.pack_into(
                data,
                at + 8,
                self._epoch,
                self._sequence,
                entry.topic_id.bytes,
                entry.partition,
                len(entry.payload),
                entry.base_offset,
                entry.segment_base,
            )
            data[at + _ENTRY.size : end] = entry.payload
            crc = kernels.crc32c(memoryview(data)[at + 8 : end])
            struct.pack_into("<4sI", data, at, _ENTRY_MAGIC, crc)
            self._sequence += 1
            at += entry_bytes
        self._chunks.append((position, position + size, self._sequence - 1))
        self.used_bytes += size
        self._head = position + size
        return Chunk(position, data, self._sequence - 1)

    def _room(self, size: int) -> int:
        if not self._chunks:
            return _START if size <= self.size_bytes - _START else -1
        tail, head = self._chunks[0][0], self._head
        if head > tail:
            if head + size <= self.size_bytes:
                return head
            return _START if _START + size < tail else -1
        return head if head + size < tail else -1

    def header_after(self, sequence: int) -> tuple[bytes, int]:
        """The header, and where to write it, that gives up all entries up to `sequence`."""
        position = self._head
        for start, _, last in self._chunks:
            if last > sequence:
                position = start
                break
        return self._pack_header(sequence + 1, position)

    def release(self, sequence: int) -> None:
        """The header that gives up all entries up to `sequence` is on the disk."""
        while self._chunks and self._chunks[0][2] <= sequence:
            start, end, _ = self._chunks.popleft()
            self.used_bytes -= end - start

    def header(self) -> tuple[bytes, int]:
        return self._pack_header(self._sequence, self._head)

    def _pack_header(self, sequence: int, position: int) -> tuple[bytes, int]:
        self._number += 1
        body = _HEADER_BODY.pack(_VERSION, 0, self._number, self._epoch, sequence, position)
        crc = struct.pack("<I", kernels.crc32c(body))
        return _HEADER_MAGIC + crc + body, self._number % 2 * _SLOT_BYTES


def _padded(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _read_header(data: bytes, position: int) -> tuple[int, int, int, int] | None:
    """(number, epoch, sequence, position), or None if the slot is not sound."""
    if len(data) < position + _HEADER.size:
        return None
    magic, crc, version, _, number, epoch, sequence, at = _HEADER.unpack_from(data, position)
    body = data[position + 8 : position + _HEADER.size]
    if magic != _HEADER_MAGIC or kernels.crc32c(body) != crc or version != _VERSION:
        return None
    return number, epoch, sequence, at


def _read_entries(files: Files, file: Handle, epoch: int, sequence: int) -> list[tuple[int, Entry]]:
    """All sound entries of a life from a sequence on, in order.

    The whole file is searched rather than followed from entry to entry, so a damaged entry
    hides none of the others.  It is read, not mapped: of a map, a bad disk sends no error but a
    signal, and the search of Python 3.11.2 reads a byte beyond a map's last page.
    """
    found: list[tuple[int, Entry]] = []
    size = files.size(file)
    start = _START
    while piece := files.read(file, _PIECE_BYTES, start):
        # Only whole units of the alignment, so no entry's header lies in two pieces.
        whole_bytes = len(piece) // _ALIGNMENT * _ALIGNMENT
        position = start
        while (at := piece.find(_ENTRY_MAGIC, position - start, whole_bytes)) >= 0:
            position = start + at + len(_ENTRY_MAGIC)
            length = _payload_bytes(piece, at, epoch, sequence)
            end = at + _ENTRY.size + length
            if length < 0 or start + end > size:
                continue
            data = piece[at:end] if end <= len(piece) else files.read(file, end - at, start + at)
            entry = _read_entry(data)
            if entry is not None:
                found.append(entry)
                position = start + at + _padded(len(data))
        if not whole_bytes:
            break
        start = max(start + whole_bytes, position)
    return sorted(found, key=lambda numbered: numbered[0])


def _payload_bytes(piece: bytes, at: int, epoch: int, sequence: int) -> int:
    """How long the payload of an entry claims to be; -1 if there is no entry that counts."""
    if at % _ALIGNMENT:
        return -1
    _, _, life, number, _, _, length, _, _ = _ENTRY.unpack_from(piece, at)
    return length if life == epoch and number >= sequence else -1


def _read_entry(data: bytes) -> tuple[int, Entry] | None:
    _, crc, _, number, topic_id, partition, _, base, segment_base = _ENTRY.unpack_from(data)
    if kernels.crc32c(memoryview(data)[8:]) != crc:
        return None
    payload = data[_ENTRY.size :]
    return number, Entry(UUID(bytes=topic_id), partition, base, segment_base, payload)
