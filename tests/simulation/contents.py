"""Keys and values of simulated records: random ones, and imitations of the broker's own files."""

from __future__ import annotations

from random import Random

from tests.simulation.disk import Disk

from pentalog.kernels import crc32c
from pentalog.model import batch
from pentalog.model.types import Record

_SIZES = (0, 1, 10, 61, 100, 500, 511, 512, 513, 1000, 4000, 4095, 4096, 4097)


def value(random: Random, identity: bytes, disk: Disk, hostile: float, next_offset: int) -> bytes:
    """A value that ends with its record's identity, so it is like no other."""
    if random.random() < hostile:
        return imitation(random, disk, next_offset) + identity
    size = random.choice(_SIZES)
    body = (
        bytes([random.getrandbits(8)]) * size if random.random() < 0.5 else random.randbytes(size)
    )
    return body + identity


def imitation(random: Random, disk: Disk, next_offset: int) -> bytes:
    """Something the broker could take for its own."""
    kind = random.choice(("batch", "batch", "batches", "journal", "segment"))
    if kind == "batch":
        return forged_batch(random, next_offset)
    if kind == "batches":
        first = forged_batch(random, next_offset)
        return first + forged_batch(random, next_offset + 1)
    files = [
        inode
        for path, inode in disk.root.walk_files()
        if (path.endswith("/journal") if kind == "journal" else path.endswith(".log"))
    ]
    if not files:
        return forged_batch(random, next_offset)
    content = random.choice(files).cache
    if kind == "segment":
        return bytes(content[: random.choice((61, 512, 2000))])
    return journal_entries(random, bytes(content))


def journal_entries(random: Random, content: bytes) -> bytes:
    """Whole entries as they lie in the real journal, behind a filler that aligns them."""
    starts = [at for at in range(8192, len(content), 64) if content[at : at + 4] == b"PLJE"]
    if not starts:
        return content[:200]
    at = random.choice(starts)
    length = int.from_bytes(content[at + 44 : at + 48], "little")
    entry = bytearray(content[at : at + 64 + min(length, 4000)])
    if random.random() < 0.7:
        # As the next entries would look: a later number, and for another place perhaps.
        sequence = int.from_bytes(entry[16:24], "little") + random.randint(0, 3)
        entry[16:24] = sequence.to_bytes(8, "little")
        if random.random() < 0.3:
            entry[40:44] = random.choice((0, 1, 7)).to_bytes(4, "little")
        entry = _with_checksum(entry)
    # The entry is aligned to 64 bytes for some lengths of what lies before it.
    filler = bytes(random.choice((0, 1, 2, 3)) + random.randint(0, 63))
    copies = b"".join(bytes(offset) + entry for offset in (0, 1, 3, 7, 13))
    return filler + (copies if len(copies) < 6000 and random.random() < 0.3 else bytes(entry))


def _with_checksum(entry: bytearray) -> bytearray:

    entry[4:8] = crc32c(memoryview(entry)[8:]).to_bytes(4, "little")
    return entry


def forged_batch(random: Random, next_offset: int) -> bytes:
    """A sound batch that nobody sent, with an offset that fits the place it will lie at."""
    number = random.getrandbits(64)
    records = [
        Record(b"forged %d" % number, b"k%d" % random.randint(0, 3)),
        Record(b"forged too %d" % number),
    ]
    data = batch.build(records[: random.randint(1, 2)], timestamp_ms=1_700_000_000_000)
    offset = next_offset + random.choice((0, 0, 1, 2, 3, 5))
    data[0:8] = offset.to_bytes(8, "big")
    return bytes(data)
