"""Produce requests, version 7, written and read by hand: batches go as they are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from pentalog.cluster.answers import read_partitions
from pentalog.cluster.wire import Bytes
from pentalog.kernels import batch_header, crc32c
from pentalog.model.errors import BatchCorrupt
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.types import Identity, Offset, Partition

KEY: Final = 0
VERSION: Final = 7
SEQUENCE_MAX: Final = 0x7FFFFFFF

_HEAD: Final = struct.Struct(">hii")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_PART: Final = struct.Struct(">ii")
_ANSWER: Final = struct.Struct(">ihqqq")
_PRODUCER: Final = struct.Struct(">qhi")
_CRC: Final = struct.Struct(">I")
_NO_TRANSACTION: Final = -1
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_PRODUCER_AT: Final = 43


class Answer(NamedTuple):
    """What became of the batch for one partition."""

    at: Partition
    code: ErrorCode
    base_offset: Offset
    timestamp_ms: int
    start_offset: Offset


def stamp(batch: bytearray, who: Identity, sequence: int) -> int:
    """Write a producer and its sequence into a batch; the sequence of the next one."""
    header = batch_header(batch, 0)
    _PRODUCER.pack_into(batch, _PRODUCER_AT, who.producer_id, who.epoch, sequence)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))
    return (sequence + header.last_offset_delta + 1) & SEQUENCE_MAX


def request_body(
    batches: Sequence[tuple[Partition, Bytes]],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> Sequence[Bytes]:
    """At most one batch for each partition: nodes take no more at once."""
    by_topic: dict[str, list[tuple[int, Bytes]]] = {}
    for at, batch in batches:
        by_topic.setdefault(at.topic, []).append((at.index, batch))
    pieces: list[Bytes] = []
    small = bytearray(_I16.pack(_NO_TRANSACTION))
    if transactional_id is not None:
        encoded = transactional_id.encode()
        small = bytearray(_I16.pack(len(encoded)) + encoded)
    small += _HEAD.pack(acks, timeout_ms, len(by_topic))
    for topic, parts in by_topic.items():
        name = topic.encode()
        small += _I16.pack(len(name)) + name + _I32.pack(len(parts))
        for index, batch in parts:
            small += _PART.pack(index, len(batch))
            pieces += (small, batch)
            small = bytearray()
    return pieces


def read_answer(data: memoryview) -> tuple[list[Answer], int]:
    """The answer's partitions, and for how long the node wants to be left alone."""
    try:
        answers, position = read_partitions(data, 0, _ANSWER)
        (throttle_ms,) = _I32.unpack_from(data, position)
        found = [
            Answer(Partition(topic, index), ErrorCode(code), *rest)
            for topic, (index, code, *rest) in answers
        ]
    except (struct.error, ValueError) as flaw:
        raise BatchCorrupt(f"the cluster's answer to Produce cannot be read: {flaw}") from flaw
    return found, throttle_ms
