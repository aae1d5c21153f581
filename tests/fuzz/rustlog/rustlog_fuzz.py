"""Mutated RustLog frames against two equal brokers, one fed in whole streams, one in crumbs.

What must hold for any bytes: every byte is used or waited for, nothing raises, answers are whole
frames in order and no longer than a frame may be, or the connection ends; both brokers answer the
same.  How many records a Fetch gives may depend on how requests were joined to batches, so of two
such answers one must begin like the other.  A failure names the seed and the round.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "protocols" / "rustlog"))

from rustlog_world import (
    LIST,
    METRICS,
    PING,
    RustLogConnection,
    RustLogWorld,
    commit,
    committed,
    create,
    describe,
    fetch,
    fetched,
    produce,
    text,
)
from tests.fuzz.twins import BYTES, DAMAGES, Twins, damage

from pentalog.broker.port import TopicSpec
from pentalog.model import batch
from pentalog.model.types import Ack, Partition, Record

FRAME_BYTES_MAX = 10 << 20
PARTITIONS_MAX = 300
"""More than this on disk, and the brokers are made anew: mutated requests create topics."""
DEADLY = (
    bytes.fromhex("0000000f01000464656d6f00000000ffffffff"),
    bytes.fromhex("0000000b05000464656d7000ffffff"),
    bytes.fromhex("0000000b05000464656d71ffffffff"),
    bytes.fromhex("0000001301000464656d6f0000000000000001ffffffff"),
    bytes.fromhex("00000019020000000464656d6f00000000ffffffffffffffffffffffff"),
    bytes.fromhex("0000000401ffff00"),
)
"""What ends, hangs or disables the original, and games with lengths."""
_EDGES = (0, 1, 2, 127, 128, 255, 999, 1001, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 63)
_WORDS = (b"null", b"true", b"-1", b"1.5", b"1e9", b'""', b"[]", b"{}", b'"eA=="', b"9" * 30)


def corpus(dice: random.Random) -> list[bytes]:
    """Sound frames of every request in both dialects."""
    found = [PING, LIST, METRICS, *DEADLY]
    for topic in ("demo", "other", "nope", "", "a/../\0é", "x" * 300):
        for partition in (0, 1, 9):
            sizes = dice.choices((0, 1, 20, 300), k=dice.randrange(4))
            values = [dice.randbytes(size) for size in sizes]
            found += [produce(topic, partition, *values), describe(topic, partition)]
            for limit in (0, 1, 100, 1 << 20, (1 << 32) - 1):
                found.append(fetch(topic, partition, dice.randrange(12), limit))
            found.append(fetch(topic, partition, 0, group=dice.choice("abc")))
            found += [commit("a", topic, partition, 3), committed("b", topic, partition)]
            same = {"topic": topic, "partition": partition}
            found.append(text(type="Produce", records=["eA==", "", "aGVsbG8="], **same))
            found.append(text(type="Fetch", group_id="", offset=2, max_bytes=1 << 20, **same))
            found.append(text(type="Fetch", group_id="a", offset=0, max_bytes=5, **same))
            found.append(text(type="OffsetCommit", group="b", offset=5, **same))
            found.append(text(type="OffsetFetch", group="a", **same))
            found.append(text(type="DescribePartition", **same))
        found += [create(topic, 2), describe(topic), text(type="DescribeTopic", topic=topic)]
        found.append(text(type="CreateTopic", topic=topic, partition_count=2))
    found += [text(type=name) for name in ("Ping", "ListTopics", "MetricsFetch", "Bogus")]
    return found


def mutated(data: bytes, dice: random.Random, others: list[bytes]) -> bytes:
    out = bytearray(data)
    changes = dice.choice((1, 1, 2, 4)) if dice.random() < 0.35 else 0
    for _ in range(changes):
        if len(out) < 6:
            break
        kind = dice.randrange(8)
        at = dice.randrange(4, len(out))
        if kind < DAMAGES:
            damage(out, at, kind, dice, others, edges=_EDGES, values=(*BYTES, 0x7B))
        elif kind == 6:
            out[4] = dice.choice((0, *range(1, 11), 0x20, 0x5B, 0x7B, 0xFE, 0xFF))
        else:
            colon = out.find(b":", at)
            if colon >= 0:
                end = min((p for p in (out.find(c, colon) for c in b",}") if p >= 0), default=at)
                out[colon + 1 : end] = dice.choice(_WORDS)
    if not changes or dice.random() < 0.95:
        out[:4] = (len(out) - 4).to_bytes(4, "big")
    else:
        sizes = (0, 1, 10 << 20, (10 << 20) + 1, (1 << 31) - 1, (1 << 32) - 1)
        out[:4] = dice.choice(sizes).to_bytes(4, "big")
    return bytes(out)


class Fuzz(Twins[RustLogWorld]):
    ROUNDS_PER_PAIR = 200

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self._corpus: list[bytes] = []

    def closed(self, broker: RustLogWorld) -> None:
        broker.close()

    def worn_out(self) -> bool:
        return sum(topic.partitions for topic in self.pair[0].disk.topics.all()) > PARTITIONS_MAX

    def settings(self) -> dict[str, Any]:
        return {
            "seed": self.dice.getrandbits(32),
            "flush_interval_ms": self.dice.choice((0, 100)),
            "journal_bytes": 1 << 20,
            "rustlog_strict_groups": self.dice.random() < 0.3,
        }

    def opened(self, directory: Path, settings: dict[str, Any]) -> RustLogWorld:
        world = RustLogWorld(directory, **settings)
        self._prepare(world)
        if not self.pair:
            self._corpus = corpus(self.dice)
        return world

    def _prepare(self, world: RustLogWorld) -> None:
        """A topic others have written to as well: compressed, and with records without values."""
        disk = world.disk
        with disk.seeded():
            disk.topics.create(TopicSpec(name="demo", partitions=2))
            tight = {"max.message.bytes": "200"}
            disk.topics.create(TopicSpec(name="other", partitions=2, settings=tight))
            for codec in (0, 1, 4):
                made = [Record(b"from kafka", b"k"), Record(None, b"k")]
                data = memoryview(batch.build(made, timestamp_ms=1000, codec=codec))
                log = disk.broker.log
                log.settle(log.append(Partition("demo", 0), data), Ack.DURABLE)
            disk.runtime.run()

    def round(self) -> None:
        dice = self.dice
        chosen = [dice.choice(self._corpus) for _ in range(dice.randrange(1, 16))]
        if dice.random() < 0.3:
            # A run of the same, so that the fast path meets mutations in the middle of it.
            chosen = chosen[:2] * 6
        broken = [mutated(one, dice, self._corpus) for one in chosen]
        data = b"".join(broken)
        self.frames += len(broken)
        where = self.where
        whole, crumbs = (world.connect() for world in self.pair)
        try:
            self.feed_both(whole, crumbs, data)
            for connection in (whole, crumbs):
                connection.run()
                with connection.disk.seeded():
                    connection.disk.runtime.advance(400)
        except Exception as flaw:
            raise AssertionError(f"{where}: {data.hex()}") from flaw
        self._compare(whole, crumbs, where, data)

    def _compare(
        self, whole: RustLogConnection, crumbs: RustLogConnection, where: str, data: bytes
    ) -> None:
        told = f"{where}: {data.hex()}"
        assert whole.line.hung_up == crumbs.line.hung_up, told
        left, right = whole.line.frames(), crumbs.line.frames()
        assert whole.line.waiting == crumbs.line.waiting == 0, told
        assert len(left) == len(right), told
        for first, second in zip(left, right, strict=True):
            assert len(first) <= FRAME_BYTES_MAX, told
            assert agree(first, second), f"{first.hex()} is not {second.hex()}, {told}"
        self.answers += len(left)
        self.hang_ups += whole.line.hung_up
        for connection in (whole, crumbs):
            connection.session.close()


def agree(first: bytes, second: bytes) -> bool:
    """Do two answers say the same, as far as they must?"""
    if first == second:
        return True
    if first[:1] == second[:1] == b"\x02":
        return _begins_alike(fetched(first)[0], fetched(second)[0])
    if first[:1] == second[:1] == b"\x09":
        return struct.unpack_from(">I", first, 1)[0] == len(first) - 5
    if first[:1] == second[:1] == b"{":
        left, right = json.loads(first), json.loads(second)
        if left["type"] == right["type"] == "FetchResponse":
            return _begins_alike(left["records"], right["records"])
        return bool(left["type"] == right["type"] == "MetricsFetchResponse")
    return False


def _begins_alike(left: list[object], right: list[object]) -> bool:
    both = min(len(left), len(right))
    return both > 0 and left[:both] == right[:both]
