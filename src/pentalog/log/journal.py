"""The journal: one file per data directory through which acknowledged writes reach the disk.

Syncing one file that never grows is many times cheaper than syncing every partition's own.  The
journal is written ahead (all its blocks exist) and overwritten in a circle; the partition files
follow in the background, and space is reused only when they have.  After a crash every entry is
written again to the place in its segment where it was written first (`replay.py`).

Records come from clients, so no record may pass for an entry.  Each life of the journal draws a
random token that opens all of its entries; a payload that holds the token is not accepted, so the
token stands in the file nowhere but at the head of an entry of this life.

File `journal`, little-endian.  Two header slots of 4096 bytes, the newer sound one holds:

    0   magic     4 bytes   "PLJH"
    4   crc       u32       CRC-32C of bytes 8..48
    8   version   u32       2
    12  unused    u32
    16  number    u64       grows with each header written
    24  token     16 bytes  of the journal's life; entries of other lives are void
    40  sequence  u64       first entry that counts

Entries from byte 8192 on, each starting at a multiple of 64:

    0   token         16 bytes
    16  crc           u32      CRC-32C of bytes 20..80 and the payload
    20  length        u32      of the payload
    24  sequence      u64      grows by one with each entry
    32  topic id      16 bytes
    48  partition     i32
    52  unused        u32
    56  base offset   i64      of the payload's first batch
    64  segment base  i64      base offset of the segment it was written to
    72  position      u64      in that segment's file
    80  payload                whole record batches

Version 1 had no token (`journal_v1.py`).
"""

from __future__ import annotations

import secrets
import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from pentalog import kernels
from pentalog.log import journal_v1
from pentalog.log.files import Files, Handle

_HEADER: Final = struct.Struct("<4sIIIQ16sQ")
_HEADER_BODY: Final = struct.Struct("<IIQ16sQ")
_ENTRY: Final = struct.Struct("<16sIIQ16siIqqQ")
_ENTRY_BODY: Final = struct.Struct("<IQ16siIqqQ")
_ENTRY_BODY_AT: Final = 20
_HEADER_MAGIC: Final = b"PLJH"
_VERSION: Final = 2
_SLOT_BYTES: Final = 4096
_START: Final = 2 * _SLOT_BYTES
_ALIGNMENT: Final = 64
_FILL_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 1 << 20
_TOKEN_END: Final = b"J"
"""Not a zero: a token that ended in zeros could be made of a payload's end and the padding."""

SIZE_MIN: Final = 64 << 10


class Entry(NamedTuple):
    """Batches of one partition that may be nowhere else on the disk yet."""

    topic_id: UUID
    partition: int
    base_offset: int
    segment_base: int
    position: int
    """Where in the segment's file they were written; -1 if a journal of version 1 has it."""
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
        self.retired = False
        """The entries found at the start are still needed: nothing may be written over them."""
        self._files = files
        self._file: Handle | None = None
        self._found: Handle | None = None
        self._token = b""
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
        """Every entry that still counts, oldest first; nothing if there is no journal.

        Not usable for writing before `start`.
        """
        if not self._files.exists(self.path):
            return []
        file = self._files.open(self.path)
        slots = self._files.read(file, _START, 0)
        headers = [
            header for slot in (0, _SLOT_BYTES) if (header := _read_header(slots, slot)) is not None
        ]
        old = journal_v1.newest_header(slots)
        self._number = max([0, old.number if old else 0, *(header[0] for header in headers)])
        if self._files.size(file) == self.size_bytes:
            self._found = file
        if headers and (old is None or max(headers)[0] > old.number):
            _, sequence, token = max(headers)
            return [entry for _, entry in _read_entries(self._files, file, token, sequence)]
        if old is None:
            return []
        return [
            Entry(
                UUID(bytes=found.topic_id),
                found.partition,
                found.base_offset,
                found.segment_base,
                -1,
                found.payload,
            )
            for found in journal_v1.read_entries(self._files, file, old)
        ]

    def create(self) -> Handle:
        """Write the whole file ahead; slow, for a thread.  `start` makes it the journal."""
        try:
            file = self._files.open(self.path, create=True)
            self._files.truncate(file, self.size_bytes)
            zeros = bytes(_FILL_BYTES)
            for position in range(0, self.size_bytes, _FILL_BYTES):
                self._files.write(file, zeros[: self.size_bytes - position], position)
            self._files.sync(file)
            self._files.sync_directory(self.path.parent)
        except OSError:
            # A disk without room for the journal needs these blocks for records.
            self._files.remove(self.path)
            raise
        return file

    def start(self, file: Handle | None = None) -> None:
        """Begin a new life with nothing in it: what the old one held is in the partitions now."""
        file = file or self._found or self._file
        self._found = None
        self._token = secrets.token_bytes(15) + _TOKEN_END
        self._sequence = 1
        self._head = _START
        self._chunks.clear()
        self.used_bytes = 0
        if file is None:
            if self._files.exists(self.path):
                # Of another size, or without a sound header: made again when it is needed.
                self._files.remove(self.path)
            return
        data, position = self.header_after(0)
        self._files.write_synced(file, data, position)
        self._file = file

    def retire(self) -> None:
        """Keep the entries that were found for the next start; writes sync their own files."""
        self.retired = True
        self._found = None

    def close(self) -> None:
        self._file = None
        self._found = None

    # Writing

    def accepts(self, payload: bytes) -> bool:
        """False if the payload could be taken for an entry."""
        return self._token not in payload

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
                at + _ENTRY_BODY_AT,
                len(entry.payload),
                self._sequence,
                entry.topic_id.bytes,
                entry.partition,
                0,
                entry.base_offset,
                entry.segment_base,
                entry.position,
            )
            data[at + _ENTRY.size : end] = entry.payload
            crc = kernels.crc32c(memoryview(data)[at + _ENTRY_BODY_AT : end])
            struct.pack_into("<16sI", data, at, self._token, crc)
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
        self._number += 1
        body = _HEADER_BODY.pack(_VERSION, 0, self._number, self._token, sequence + 1)
        crc = struct.pack("<I", kernels.crc32c(body))
        return _HEADER_MAGIC + crc + body, self._number % 2 * _SLOT_BYTES

    def forget_header(self) -> None:
        """The newest header could not be written: the next goes to the same slot.

        The other slot holds the only header that is known to be sound.
        """
        self._number -= 1

    def release(self, sequence: int) -> None:
        """The header that gives up all entries up to `sequence` is on the disk."""
        while self._chunks and self._chunks[0][2] <= sequence:
            start, end, _ = self._chunks.popleft()
            self.used_bytes -= end - start


def _padded(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _read_header(data: bytes, position: int) -> tuple[int, int, bytes] | None:
    """(number, sequence, token), or None if the slot is not sound."""
    if len(data) < position + _HEADER.size:
        return None
    magic, crc, version, _, number, token, sequence = _HEADER.unpack_from(data, position)
    body = data[position + 8 : position + _HEADER.size]
    if magic != _HEADER_MAGIC or kernels.crc32c(body) != crc or version != _VERSION:
        return None
    return number, sequence, token


def _read_entries(
    files: Files, file: Handle, token: bytes, sequence: int
) -> list[tuple[int, Entry]]:
    """All sound entries of a life from a sequence on, in order.

    The whole file is searched rather than followed from entry to entry, so a damaged entry
    hides none of the others.  It is read, not mapped: of a map, a bad disk sends no error but a
    signal, and the search of Python 3.11.2 reads a byte beyond a map's last page.
    """
    found: list[tuple[int, Entry]] = []
    size = files.size(file)
    start = _START
    while piece := files.read(file, _PIECE_BYTES, start):
        # Only whole units of the alignment, so no token lies in two pieces.
        whole_bytes = len(piece) // _ALIGNMENT * _ALIGNMENT
        at = piece.find(token, 0, whole_bytes)
        while at >= 0:
            entry = _read_entry(files, file, start + at, size) if at % _ALIGNMENT == 0 else None
            if entry is not None and entry[0] >= sequence:
                found.append(entry)
            at = piece.find(token, at + 1, whole_bytes)
        if not whole_bytes:
            break
        start += whole_bytes
    return sorted(found, key=lambda numbered: numbered[0])


def _read_entry(files: Files, file: Handle, at: int, size: int) -> tuple[int, Entry] | None:
    head = files.read(file, _ENTRY.size, at)
    if len(head) < _ENTRY.size:
        return None
    _, crc, length, number, topic_id, partition, _, base, segment_base, position = _ENTRY.unpack(
        head
    )
    if at + _ENTRY.size + length > size:
        return None
    payload = files.read(file, length, at + _ENTRY.size)
    if kernels.crc32c(head[_ENTRY_BODY_AT:] + payload) != crc:
        return None
    return number, Entry(UUID(bytes=topic_id), partition, base, segment_base, position, payload)
