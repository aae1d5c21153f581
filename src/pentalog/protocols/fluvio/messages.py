"""The SPU's requests, read; Produce in the layout of the wire and in that of its document.

The document leaves out the length before a record set.  Which of the two a request has is found by
reading all of it: a layout that fits to the last byte is the right one.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pentalog.broker.transformation import Link
from pentalog.protocols.fluvio.codec import Reader, Undecodable

BATCH_HEADER_BYTES: Final = 57
_FRAMING_BYTES: Final = 12
_LENGTH_MIN: Final = BATCH_HEADER_BYTES - _FRAMING_BYTES
_MAGIC: Final = 2
_LENGTH: Final = struct.Struct(">i")
LINKS_MAX: Final = 16
BATCHES_MAX: Final = 10_000
"""Of one Produce."""


class PartitionData(NamedTuple):
    """Where the batches for one partition lie in the buffer."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of this
    batches: list[tuple[int, int]]


class TopicData(NamedTuple):
    name: str
    partitions: list[PartitionData]


class Produce(NamedTuple):
    committed: bool
    """The answer waits for the disk."""
    timeout_ms: int
    topics: list[TopicData]
    links: list[Link]
    documented: bool
    """It has the document's layout, whose clients know no fields behind error codes."""


class StreamFetch(NamedTuple):
    topic: str
    partition: int
    offset: int
    bytes_max: int
    committed: bool
    links: list[Link]
    consumer_id: str | None


class PartitionFetch(NamedTuple):
    topic: str
    partition: int
    offset: int
    bytes_max: int


class Fetch(NamedTuple):
    wait_ms: int
    bytes_min: int
    bytes_max: int
    committed: bool
    topics: list[tuple[str, list[PartitionFetch]]]


def read_produce(reader: Reader) -> Produce:
    start = reader.at
    try:
        return _read_produce(reader, documented=False)
    except Undecodable as flaw:
        reader.at = start
        try:
            return _read_produce(reader, documented=True)
        except Undecodable:
            raise flaw from None


def _read_produce(reader: Reader, *, documented: bool) -> Produce:
    reader.option(reader.text)
    isolation, timeout_ms = reader.i16(), reader.i32()
    if timeout_ms < 0:
        raise Undecodable(f"a timeout of {timeout_ms} ms; accepted is 0 or more")

    batches_left = BATCHES_MAX

    def partition() -> PartitionData:
        nonlocal batches_left
        index = reader.u32()
        if documented:
            return PartitionData(index, [_read_batch(reader, reader.end)])
        end = _size(reader) + reader.at
        batches: list[tuple[int, int]] = []
        while reader.at < end:
            batches.append(_read_batch(reader, end))
            if len(batches) > batches_left:
                raise Undecodable(f"more than {BATCHES_MAX} batches in one request: send several")
        batches_left -= len(batches)
        return PartitionData(index, batches)

    topics = reader.many(lambda: TopicData(reader.text(), reader.many(partition)))
    links = read_links(reader) if reader.left else []
    reader.finish()
    return Produce(isolation < 0, timeout_ms, topics, links, documented)


def _size(reader: Reader) -> int:
    """The size of a record set."""
    size = reader.i32()
    if not 0 <= size <= reader.left:
        raise Undecodable(f"a record set of {size} bytes, {reader.left} are there")
    return size


def _read_batch(reader: Reader, end: int) -> tuple[int, int]:
    start = reader.at
    if end - start < BATCH_HEADER_BYTES:
        raise Undecodable(f"{end - start} bytes; a batch has at least {BATCH_HEADER_BYTES}")
    (length,) = _LENGTH.unpack_from(reader.data, start + 8)
    if (
        not _LENGTH_MIN <= length <= end - start - _FRAMING_BYTES
        or reader.data[start + 16] != _MAGIC
    ):
        raise Undecodable(f"no batch of format 2 at byte {start}")
    reader.skip(length + _FRAMING_BYTES)
    return start, reader.at


def read_links(reader: Reader) -> list[Link]:
    """The SmartModules of a request."""
    links = reader.many(lambda: _read_link(reader))
    if len(links) > LINKS_MAX:
        raise Undecodable(f"{len(links)} SmartModules; accepted are up to {LINKS_MAX}")
    return links


def _read_link(reader: Reader) -> Link:
    tag = reader.u8()
    if tag > 1:
        raise Undecodable(f"SmartModule source {tag}; accepted are 0 and 1")
    module: str | bytes = reader.bytes_() if tag else reader.text()
    accumulator = _read_kind(reader)
    parameters = reader.texts()
    records, age_ms = 0, None
    if reader.version >= 20 and reader.boolean():
        records = reader.u64()
        age_ms = reader.option(reader.duration_ms) if reader.version >= 21 else None
    if reader.version >= 25:
        reader.option(reader.text)
    return Link(module, parameters, accumulator, records, age_ms)


def _read_kind(reader: Reader) -> bytes:
    """Only the accumulator matters: what a module does is seen from what it exports."""
    kind = reader.u8()
    if kind == 7:
        kind = {0: 0, 1: 3, 2: 5, 3: 6}.get(reader.u8(), 8)
    if kind == 3:
        return reader.bytes_()
    if kind in (5, 6):
        raise Undecodable("a SmartModule that joins topics; those are not run here")
    if kind > 6:
        raise Undecodable(f"SmartModule kind {kind}; accepted are 0..4 and 7")
    return b""


def read_stream_fetch(reader: Reader) -> StreamFetch:
    version = reader.version
    topic, partition, offset = reader.text(), reader.u32(), reader.i64()
    bytes_max, committed = reader.i32(), _read_isolation(reader)
    links: list[Link] = []
    if 11 <= version <= 18:
        wasm = reader.bytes_()
        links = [Link(wasm)] if wasm else []
    if 16 <= version <= 18:
        one = reader.option(lambda: _read_link(reader))
        links = links if one is None else [one]
        if reader.boolean():
            raise Undecodable("a derived stream; those are not kept here")
    if version >= 18:
        links = read_links(reader) or links
    consumer_id = reader.option(reader.text) if version >= 23 else None
    reader.finish()
    return StreamFetch(topic, partition, offset, bytes_max, committed, links, consumer_id)


def _read_isolation(reader: Reader) -> bool:
    isolation = reader.u8()
    if isolation > 1:
        raise Undecodable(f"isolation {isolation}; accepted are 0 and 1")
    return isolation == 1


def read_fetch(reader: Reader) -> Fetch:
    version = reader.version
    wait_ms, bytes_min = reader.i32(), reader.i32()
    bytes_max = reader.i32() if version >= 3 else (1 << 31) - 1
    committed = _read_isolation(reader) if version >= 4 else False

    def partition(topic: str) -> PartitionFetch:
        index = reader.u32()
        if version >= 9:
            reader.i32()
        offset = reader.i64()
        if version >= 5:
            reader.i64()
        return PartitionFetch(topic, index, offset, reader.i32())

    def one_topic() -> tuple[str, list[PartitionFetch]]:
        name = reader.text()
        return name, reader.many(lambda: partition(name))

    topics = reader.many(one_topic)
    if version >= 7:
        reader.many(lambda: (reader.text(), reader.many(reader.i32)))
    reader.finish()
    return Fetch(wait_ms, bytes_min, bytes_max, committed, topics)
