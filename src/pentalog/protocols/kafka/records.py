"""What Kafka's rules say of batches a client sends, beyond their being sound."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from pentalog import kernels
from pentalog.kernels import Facts
from pentalog.model.errors import BatchCorrupt, InvalidRecord
from pentalog.protocols.kafka.errors import ErrorCode, Refused

TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
_ZSTD: Final = 1 << 4
_ZSTD_VERSION_MIN: Final = 7
_MAGIC: Final = 16
"""Position of the format number, the same in all three formats."""
_REQUEST: Final = struct.Struct("=ii")


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
        raise BatchCorrupt(_FLAWS.get(facts.flaw, "the record batch is damaged"))
    refusal = rules(facts, 1, version)
    if refusal is not None:
        raise refusal
    return facts


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
    return None


def single_requests(
    data: memoryview, start: int, requests: bytes
) -> Iterator[tuple[bytes, int, int]]:
    """The requests of a run one by one: the entry of `ProduceRun.requests`, and its bytes."""
    for correlation_id, offsets in _REQUEST.iter_unpack(requests):
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
}
