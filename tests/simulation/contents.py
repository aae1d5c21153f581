"""Keys and values of simulated records: random ones, and imitations of the broker's own files."""

from __future__ import annotations

from random import Random

from tests.simulation.disk import Disk
from tests.simulation.plan import Settings

from pentalog.kernels import crc32c
from pentalog.log import journal
from pentalog.model import batch
from pentalog.model.types import Record

_SMALL = (0, 1, 10, 61, 100)
_SIZES = (0, 1, 10, 61, 100, 500, 511, 512, 513, 1000, 4000, 4095, 4096, 4097)


def value(
    random: Random, identity: bytes, disk: Disk, settings: Settings, next_offset: int
) -> bytes:
    """A value that ends with its record's identity, so it is like no other."""
    if random.random() < settings.hostile:
        return imitation(random, disk, next_offset) + identity
    size = random.choice(_SMALL if settings.small else _SIZES)
    body = (
        bytes([random.getrandbits(8)]) * size if random.random() < 0.5 else random.randbytes(size)
    )
    return body + identity


def imitation(random: Random, disk: Disk, next_offset: int) -> bytes:
    """Something the broker could take for its own."""
    kind = random.choice(("batch", "batch", "batches", "journal", "segment"))
    if kind == "batch":
        # Often in a later sector or page than the head of the batch around it.
        return bytes(random.choice((0, 0, 500, 1000, 3800))) + forged_batch(random, next_offset)
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
    """An entry as it lies in the real journal, or as the next one would look, aligned perhaps."""
    headers = [journal._read_header(content, at) for at in (0, 4096)]
    tokens = [header[2] for header in headers if header is not None]
    at = content.find(random.choice(tokens), 8192) if tokens else -1
    if at < 0:
        return content[8192:8400]
    places = []
    while at >= 0:
        places.append(at)
        at = content.find(content[places[0] : places[0] + 16], at + 16)
    entry = _forged_entry(random, content, random.choice(places))
    # In front of the value are an entry's head, a batch's head, and a few bytes of the record;
    # with this filler the forged entry often begins where one may begin.
    before = journal._ENTRY.size + 61 + random.choice((8, 8, 10))
    return bytes(-before % 64) + entry


def _forged_entry(random: Random, content: bytes, at: int) -> bytes:
    head = journal._ENTRY.unpack_from(content, at)
    token, _, length, number, topic_id, partition, _, base, segment_base, position = head
    base = max(base, 0)  # this may itself be an imitation, out of a value in the journal
    start = at + journal._ENTRY.size
    payload = content[start : start + length]
    number += random.randint(0, 4)
    base = max(base, 0)  # what looks like an entry may be a torn one
    # A large one would not pass through the journal.
    if length > 600 or random.random() < 0.7:
        payload = base.to_bytes(8, "big") + forged_batch(random, base)[8:]
    body = journal._ENTRY_BODY.pack(
        len(payload), number, topic_id, partition, 0, base, segment_base, position
    )
    checksum = crc32c(body + payload).to_bytes(4, "little")
    return bytes(token + checksum + body + payload)


def forged_batch(random: Random, next_offset: int) -> bytes:
    """A sound batch that no client sent, with an offset that fits the place it will lie at."""
    number = random.getrandbits(64)
    records = [
        Record(b"forged %d" % number, b"k%d" % random.randint(0, 3)),
        Record(b"forged too %d" % number),
    ]
    data = batch.build(records[: random.randint(1, 2)], timestamp_ms=1_700_000_000_000)
    offset = next_offset + random.choice((0, 0, 1, 2, 3, 5))
    data[0:8] = offset.to_bytes(8, "big")
    return bytes(data)
