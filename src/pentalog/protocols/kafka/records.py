"""What Kafka's rules say of batches a client sends, beyond their being sound."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from pentalog import kernels
from pentalog.kernels import Facts
from pentalog.model.batch import DELETE_HORIZON, DOOR_MASK
from pentalog.model.errors import BatchCorrupt, InvalidRecord
from pentalog.protocols.kafka.errors import ErrorCode, Refused

TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
OWN: Final = DELETE_HORIZON | DOOR_MASK
"""Attribute bits of the broker; Kafka does not look at them either when a client sets them."""
_ZSTD: Final = 1 << 4
_ZSTD_VERSION_MIN: Final = 7
_MAGIC: Final = 16
"""Position of the format number, the same in all three formats."""
_REQUEST: Final = struct.Struct("=ii")
_ATTRIBUTES: Final = struct.Struct(">h")
_CRC: Final = struct.Struct(">I")


def judge(data: memoryview, start: int, end: int, version: int) -> Facts:
    """Facts of the one batch in a Produce request; raises what Kafka would refuse it for."""
    if end - start <= _MAGIC:
        raise InvalidRecord("Produce without a record batch; exactly one per partition is accepted")
    if data[start + _MAGIC] != 2:
        raise InvalidRecord(
            f"record batch of format {data[start + _MAGIC]}; only format 2 is accepted"
        )
    facts = kernels.check_batches(data, start, end)
    if facts.flaw:
        kind = InvalidRecord if facts.flaw in _INVALID else BatchCorrupt
        raise kind(_FLAWS.get(facts.flaw, "the record batch is damaged"))
    refusal = rules(facts, 1, version)
    if refusal is not None:
        raise refusal
    return disowned(data, start, end, facts) if facts.attributes_any & OWN else facts


def rules(facts: Facts, requests: int, version: int) -> Exception | None:
    """What stands against sound batches that came in so many requests of this version."""
    if facts.batches != requests:
        return InvalidRecord("several record batches for a partition; exactly one is accepted")
    if facts.codecs & _ZSTD and version < _ZSTD_VERSION_MIN:
        return Refused(
            ErrorCode.unsupported_compression_type,
            f"zstd in Produce {version}; it is accepted from version {_ZSTD_VERSION_MIN} on",
        )
    if facts.attributes_any & CONTROL:
        return InvalidRecord("a control batch; clients may send records only")
    if facts.producer_id >= 0 and facts.sequence_first < 0:
        return InvalidRecord(
            f"sequence {facts.sequence_first} of producer {facts.producer_id}; accepted from 0 on"
        )
    return None


def disowned(data: memoryview, start: int, end: int, facts: Facts) -> Facts:
    """Clear the broker's own bits in sound batches that a client set them in, in place."""
    position = start
    while position < end:
        header = kernels.batch_header(data, position)
        if header.attributes & OWN:
            batch = data[position : position + header.size]
            _ATTRIBUTES.pack_into(batch, 21, header.attributes & ~OWN)
            _CRC.pack_into(batch, 17, kernels.crc32c(batch[21:]))
        position += header.size
    return facts._replace(attributes_any=facts.attributes_any & ~OWN)


def requests_in(requests: bytes) -> Iterator[tuple[int, int]]:
    """Correlation id and offsets taken, of each request of a run."""
    return _REQUEST.iter_unpack(requests)


def single_requests(
    data: memoryview, start: int, requests: bytes
) -> Iterator[tuple[bytes, int, int]]:
    """The requests of a run one by one: the entry of `ProduceRun.requests`, and its bytes."""
    for correlation_id, offsets in requests_in(requests):
        end, taken = start, 0
        while taken < offsets:
            header = kernels.batch_header(data, end)
            end += header.size
            taken += header.last_offset_delta + 1
        yield _REQUEST.pack(correlation_id, offsets), start, end
        start = end


_FLAWS: Final = {
    kernels.FLAW_SHORT: "the record batch is longer than the field it came in",
    kernels.FLAW_LENGTH: "the record batch is shorter than its own header",
    kernels.FLAW_MAGIC: "a record batch of an old format; only format 2 is accepted",
    kernels.FLAW_CHECKSUM: "the record batch does not match its checksum",
    kernels.FLAW_COUNT: "the record batch holds another number of records than it says",
    kernels.FLAW_CODEC: "the record batch names an unknown compression",
    kernels.FLAW_RECORD: "a record of the batch cannot be read",
}
_INVALID: Final = frozenset({kernels.FLAW_COUNT, kernels.FLAW_RECORD})
"""Sums are right, what they cover is not: Kafka calls the records invalid, not the data corrupt."""
