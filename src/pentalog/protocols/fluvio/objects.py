"""The objects a Fluvio controller tells of: topics, partitions, SPUs, SmartModules.

Each is written as name, spec and status; a field exists from the version its table in the protocol
gives it.  Only what this broker can honour is read into a `TopicWish`; the rest is refused there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from pentalog.broker.port import Topic
from pentalog.broker.transformation import SmartModule
from pentalog.model.types import Marks
from pentalog.protocols.fluvio.codec import Reader, Undecodable, Writer
from pentalog.protocols.fluvio.spus import Spu

OFFSETS_TOPIC: Final = "consumer-offset"
"""The system topic a client asks for before it manages offsets; it has no records of its own."""

TOPIC: Final = "Topic"
PARTITION: Final = "Partition"
SPU: Final = "SPU"
CUSTOM_SPU: Final = "CustomSpu"
SPU_GROUP: Final = "SpuGroup"
SMART_MODULE: Final = "SmartModule"
TABLE_FORMAT: Final = "TableFormat"
MIRROR: Final = "Mirror"
LABELS: Final = frozenset(
    {TOPIC, PARTITION, SPU, CUSTOM_SPU, SPU_GROUP, SMART_MODULE, TABLE_FORMAT, MIRROR}
)
EMPTY: Final = frozenset({CUSTOM_SPU, SPU_GROUP, TABLE_FORMAT, MIRROR})
"""Kinds of which there are never any."""

_ASSIGNED, _COMPUTED, _MIRROR = range(3)
_COMPRESSIONS: Final = ("uncompressed", "gzip", "snappy", "lz4", "producer", "zstd")
"""By the number a topic has them; a batch numbers them differently."""
_PROVISIONED: Final = 4
_ONLINE: Final = 1
SIZE_UNKNOWN: Final = -2
"""What the original says of partitions whose size is not told."""
_MODULES_VERSION_VISIBLE: Final = 19
_REPLICA: Final = struct.Struct(">IIi")
"""A partition, the number of its copies, and the SPU that has the one."""


class TopicWish(NamedTuple):
    """A topic as a Fluvio client asks for it."""

    partitions: int
    replication: int
    retention_s: int | None
    segment_bytes: int | None
    partition_bytes_max: int | None
    compression: str
    deduplicated: bool
    mirrored: bool
    system: bool


class ModuleWish(NamedTuple):
    """A SmartModule as a Fluvio client uploads it."""

    wasm: bytes
    package: bytes
    """Its package metadata as it came, to be shown again; empty: none."""


def read_topic(reader: Reader) -> TopicWish:
    version = reader.version
    partitions, replication, mirrored = _read_replicas(reader)
    if mirrored:
        return TopicWish(0, 0, None, None, None, "producer", False, True, False)
    retention_s = reader.option(lambda: _read_cleanup(reader)) if version >= 3 else None
    segment_bytes = partition_bytes_max = None
    if version >= 4 and reader.boolean():
        segment_bytes = reader.option(reader.u32)
        partition_bytes_max = reader.option(reader.u64)
    tag = reader.u8() if version >= 6 else 4
    if tag >= len(_COMPRESSIONS):
        raise Undecodable(f"compression {tag} of a topic; accepted are 0..5")
    deduplicated = False
    if version >= 12 and reader.boolean():
        deduplicated = True
        reader.u64()
        reader.option(reader.duration_ms)
        reader.text()
        reader.texts()
    system = reader.boolean() if version >= 13 else False
    return TopicWish(
        partitions,
        replication,
        retention_s,
        segment_bytes,
        partition_bytes_max,
        _COMPRESSIONS[tag],
        deduplicated,
        mirrored,
        system,
    )


def _read_cleanup(reader: Reader) -> int:
    tag = reader.u8()
    if tag:
        raise Undecodable(f"cleanup policy {tag}; accepted is 0")
    return reader.u32()


def _read_replicas(reader: Reader) -> tuple[int, int, bool]:
    """(partitions, copies, is it a mirror)."""
    tag = reader.u8()
    if tag == _COMPUTED:
        partitions, replication = reader.u32(), reader.u32()
        reader.boolean()
        return partitions, replication, False
    if tag == _ASSIGNED:
        replicas = reader.many(lambda: _read_assigned(reader))
        return len(replicas), max(replicas, default=0), False
    if tag == _MIRROR:
        # What follows has no end that could be found without understanding it, and no mirror is
        # kept here: the request is refused by its tag.
        reader.skip(reader.left)
        return 0, 0, True
    raise Undecodable(f"replica spec {tag}; accepted are 0..2")


def _read_assigned(reader: Reader) -> int:
    reader.u32()
    replicas = reader.many(reader.i32)
    if reader.version >= 14 and reader.boolean():
        raise Undecodable("a partition that mirrors another; no mirrors are kept")
    return len(replicas)


def read_module(reader: Reader) -> ModuleWish:
    package = b""
    if reader.boolean():
        start = reader.at
        _skip_package(reader)
        if reader.version >= _MODULES_VERSION_VISIBLE:
            package = bytes(reader.data[start : reader.at])
    if reader.boolean():
        reader.u32()
    reader.u8()
    return ModuleWish(reader.bytes_(), package)


def _skip_package(reader: Reader) -> None:
    for _ in range(4):
        reader.text()
    reader.option(reader.text)
    reader.option(reader.text)
    if reader.version >= _MODULES_VERSION_VISIBLE:
        reader.u8()
    reader.option(reader.text)
    for _ in range(reader.counted(reader.u16())):
        reader.text()
        reader.option(reader.text)
        reader.boolean()


def write_topic(writer: Writer, topic: Topic | None, leader: Callable[[int], int]) -> None:
    """Name, spec and status; None is the system topic."""
    partitions = 1 if topic is None else topic.partitions
    writer.text(OFFSETS_TOPIC if topic is None else topic.name)
    writer.u8(_COMPUTED).u32(partitions).u32(1).boolean(topic is not None)
    _write_settings(writer, topic)
    writer.u8(_PROVISIONED).u16(partitions)
    pack = _REPLICA.pack
    writer.raw(b"".join([pack(index, 1, leader(index)) for index in range(partitions)]))
    if writer.version >= 14:
        writer.u16(0)
    writer.text("")


def alike(one: Topic, other: Topic) -> bool:
    """Is the same told of both?"""
    return (
        one.topic_id == other.topic_id
        and one.partitions == other.partitions
        and one.overrides == other.overrides
        and one.settings.compression == other.settings.compression
    )


def _write_settings(writer: Writer, topic: Topic | None) -> None:
    """What topics and partitions tell alike: cleanup, storage, compression, dedup, system."""
    overrides = {} if topic is None else topic.overrides
    retention_ms = int(overrides.get("retention.ms", -1))
    if retention_ms < 0:
        writer.u8(0)
    else:
        writer.u8(1).u8(0).u32(min(retention_ms // 1000, (1 << 32) - 1))
    segment = overrides.get("segment.bytes")
    size = int(overrides.get("retention.bytes", -1))
    if segment is None and size < 0:
        writer.u8(0)
    else:
        writer.u8(1)
        writer.u8(0) if segment is None else writer.u8(1).u32(int(segment))
        writer.u8(0) if size < 0 else writer.u8(1).u64(size)
    compression = "producer" if topic is None else topic.settings.compression
    writer.u8(_COMPRESSIONS.index(compression))
    writer.u8(0)
    writer.boolean(topic is None)


def write_partition(
    writer: Writer,
    topic: Topic | None,
    index: int,
    leader: int,
    marks: Marks | None,
    size_bytes: int,
) -> None:
    """Name, spec and status; no marks: as if it were empty."""
    writer.text(f"{OFFSETS_TOPIC if topic is None else topic.name}-{index}")
    writer.i32(leader).u32(1).i32(leader)
    _write_settings(writer, topic)
    if writer.version >= 14:
        writer.u8(0)
    start, end = (0, 0) if marks is None else (marks.start, marks.end)
    writer.u8(_ONLINE).i32(leader).i64(end).i64(end).u32(0).u32(0)
    writer.i64(size_bytes).boolean(False)
    if writer.version >= 16:
        writer.i64(start)


def write_spu(writer: Writer, spu: Spu) -> None:
    """Where this client can reach it; offline if that port is not open."""
    address = spu.address
    host, port = ("", 0) if address is None else (address.host, address.port)
    writer.text(spu.name).i32(spu.spu_id).u8(1)
    writer.u16(port).u32(1).u8(1).text(host).u8(0).u8(0)
    writer.u16(port).text(host).u8(0)
    writer.u8(0).u8(0)
    writer.u8(1 if address is None else 0)


def write_module(writer: Writer, module: SmartModule, *, summary: bool) -> None:
    """Name and spec; a module has no status.  A summary has no wasm, but its length."""
    writer.text(module.name)
    if module.package and writer.version >= _MODULES_VERSION_VISIBLE:
        writer.u8(1).raw(module.package)
    else:
        writer.u8(0)
    writer.u8(0) if not summary else writer.u8(1).u32(len(module.wasm))
    writer.u8(0).shared(b"" if summary else module.wasm)
