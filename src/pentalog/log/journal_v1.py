"""Read a journal of version 1, as a crash of an older pentalog leaves it.

Its entries had no token, and a record could imitate one.  So they are followed from the header's
position, each at the place where the one before it ends, and never searched for.

Header slots of 4096 bytes, little-endian: magic "PLJH", crc u32 of what follows, version u32 (1),
unused u32, number u64, epoch u64, sequence u64 and position u64 of the first entry that counts.
Entries at multiples of 64 from byte 8192 on: magic "PLJE", crc u32 of what follows and the payload,
epoch u64, sequence u64, topic id 16 bytes, partition i32, payload length u32, base offset i64,
segment base i64, payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.log.files import Files, Handle

_HEADER: Final = struct.Struct("<4sIIIQQQQ")
_ENTRY: Final = struct.Struct("<4sIQQ16siIqq")
_SLOT_BYTES: Final = 4096
_START: Final = 2 * _SLOT_BYTES
_ALIGNMENT: Final = 64


class OldHeader(NamedTuple):
    number: int
    epoch: int
    sequence: int
    position: int


class OldEntry(NamedTuple):
    topic_id: bytes
    partition: int
    base_offset: int
    segment_base: int
    payload: bytes


def newest_header(slots: bytes) -> OldHeader | None:
    """The newer sound header of version 1, if there is one."""
    headers: list[OldHeader] = []
    for position in (0, _SLOT_BYTES):
        if len(slots) < position + _HEADER.size:
            continue
        magic, crc, version, _, *fields = _HEADER.unpack_from(slots, position)
        body = slots[position + 8 : position + _HEADER.size]
        if magic == b"PLJH" and version == 1 and kernels.crc32c(body) == crc:
            headers.append(OldHeader(*fields))
    return max(headers, default=None)


def read_entries(files: Files, file: Handle, header: OldHeader) -> Iterator[OldEntry]:
    """The entries that count, oldest first, up to the first that does not follow the others."""
    position, sequence = header.position, header.sequence
    while True:
        found = _read_entry(files, file, position, header.epoch, sequence)
        if found is None and position > _START:
            # What did not fit behind the last entry went to the start of the file.
            position = _START
            found = _read_entry(files, file, position, header.epoch, sequence)
        if found is None:
            return
        yield found
        size = _ENTRY.size + len(found.payload)
        position += (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        sequence += 1


def _read_entry(
    files: Files, file: Handle, position: int, epoch: int, sequence: int
) -> OldEntry | None:
    head = files.read(file, _ENTRY.size, position)
    if len(head) < _ENTRY.size:
        return None
    magic, crc, life, number, topic_id, partition, length, base, segment_base = _ENTRY.unpack(head)
    if (magic, life, number) != (b"PLJE", epoch, sequence):
        return None
    payload = files.read(file, min(length, files.size(file)), position + _ENTRY.size)
    if len(payload) != length or kernels.crc32c(head[8:] + payload) != crc:
        return None
    return OldEntry(topic_id, partition, base, segment_base, payload)
