"""Mutated Cursus frames against two equal brokers, one fed in whole streams, one in crumbs.

What must hold for any bytes: every byte is used or waited for, nothing raises, answers are whole
frames in order or the connection ends, no answer exceeds what clients read, both brokers answer the
same, and nothing grows without bound.  A failure names the seed and the round.
"""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
from tests.fuzz.twins import BYTES, DAMAGES, Twins, damage
from tests.support.cursus_world import Client, CursusBroker, Line, Message, batch, numbered

from pentalog.model import compression
from pentalog.protocols.cursus.frames import REPLY_BYTES_MAX
from pentalog.protocols.cursus.verbs import VERBS

PARTITIONS_MAX = 300
"""More than this on disk, and the brokers are made anew: mutated commands create topics."""
_COMPRESS: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: gzip.compress(data, 1, mtime=0),
    lambda data: bytes(cramjam.lz4.compress(data)),
    lambda data: bytes(cramjam.zstd.compress(data)),
    lambda data: bytes(cramjam.snappy.compress_raw(data)),
    lambda data: compression.compress(compression.SNAPPY, data),
)
_WORDS = (
    "topic=orders", "topic=es", "topic=made", "topic=o*", "group=g", "member=m", "member=m-1",
    "generation=1", "partition=0", "partition=1", "partition=-1", "offset=0", "offset=3",
    "P0:1,P1:2", "key=k", "version=1", "version=2", "seqNum=1", "seqNum=2", "epoch=0", "epoch=1",
    "producerId=p", "producerId=txn-27ca64c092a959c7", "transactional_id=tx2", "result=abort",
    "wait_ms=300", "batch=2", "isolation=read_uncommitted", "features=*", "acks=-1",
    "isIdempotent=true", "partitions=3", "event_sourcing=true", "retention_hours=3",
    "from_version=1", "message=some text", "message=\xff", "orders", "g", "0", "1", "c",
)  # fmt: skip


def commands(dice: random.Random) -> list[bytes]:
    """Sound commands of both dialects, and words thrown together."""
    fixed = [
        "CREATE orders 2", "CREATE topic=made partitions=2", "LIST", "CONSUME orders 0 0",
        "CONSUME topic=orders partition=1 offset=0 member=m", "STREAM orders 0 0",
        "STREAM topic=orders partition=0 group=g", "JOIN_GROUP orders g c",
        "JOIN_GROUP topic=orders group=g member=m", "COMMIT orders g 0 1", "SUBSCRIBE orders g",
        "HEARTBEAT orders g c m 1", "BATCH_COMMIT orders g m 1 P0:1", "LEAVE_GROUP orders g c",
        "INIT_PRODUCER_ID transactional_id=tx2", "GROUP_STATUS group=g",
        "BEGIN_TXN transactional_id=tx2 producerId=txn-27ca64c092a959c7 epoch=0",
        "TXN_PUBLISH transactional_id=tx2 producerId=txn-27ca64c092a959c7 epoch=0 topic=orders "
        "partition=0 seqNum=1 message=x",
        "END_TXN transactional_id=tx2 producerId=txn-27ca64c092a959c7 epoch=0",
        "APPEND_STREAM topic=es key=k version=1 message=x", "READ_STREAM topic=es key=k",
        "SAVE_SNAPSHOT topic=es key=k version=1 message=y", "READ_SNAPSHOT topic=es key=k",
        "PUBLISH topic=orders producerId=p message=x", "NEGOTIATE version=1 features=*",
    ]  # fmt: skip
    for verb in VERBS:
        for _ in range(3):
            words = dice.sample(_WORDS, dice.randrange(7))
            fixed.append(" ".join((verb, *words)))
    found = [text.encode("utf-8", "surrogateescape") for text in fixed]
    return found + [b"\0\0" + text for text in found] + [b"\0\5admin" + found[1]]


def corpus(dice: random.Random) -> list[bytes]:
    batches = []
    for document in (False, True):
        for acks in ("0", "1", "-1", "all", ""):
            messages = [Message(b"m%d" % n, seq=n + 1, producer=b"p", key=b"k") for n in range(3)]
            batches.append(batch(messages, acks=acks, document=document))
            batches.append(batch(messages[:1], acks=acks, document=document, partition=1))
        batches += [numbered(1, 2, document=document), numbered(2, 3, document=document)]
        batches.append(numbered(1, epoch=2, document=document))
        batches.append(batch([], document=document))
        events = [Message(b"e", key=b"k", event=b"E", schema=1, version=1, metadata=b"{}")]
        batches.append(batch(events, topic="es", document=document))
    packed = [pack(body) for body in batches[:8] for pack in _COMPRESS]
    packed.append(gzip.compress(batch([Message(bytes(3 << 20))]), mtime=0))
    return 3 * batches + packed + commands(dice)


def mutated(body: bytes, dice: random.Random, others: list[bytes]) -> bytes:
    out = bytearray(body)
    changes = dice.choice((1, 1, 2, 4)) if dice.random() < 0.4 else 0
    for _ in range(changes):
        if not out:
            break
        kind = dice.randrange(7)
        at = dice.randrange(len(out))
        if kind < DAMAGES:
            damage(out, at, kind, dice, others, values=(*BYTES, 0x20, 0x3D))
        else:
            out += out[: dice.randrange(len(out) + 1)]
    length = len(out)
    if changes and dice.random() < 0.03:
        length = dice.choice((0, 1, 1 << 20, (64 << 20) + 1, (1 << 32) - 1))
    return struct.pack(">I", length) + bytes(out)


class ReadAtOnce(Line):
    """How much of a stream is answered before the peer reads would otherwise tell the two apart."""

    queued_bytes = 0


class Fuzz(Twins[CursusBroker]):
    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self._corpus: list[bytes] = []

    def closed(self, broker: CursusBroker) -> None:
        broker.close()

    def worn_out(self) -> bool:
        return sum(topic.partitions for topic in self.pair[0].topics.all()) > PARTITIONS_MAX

    def settings(self) -> dict[str, Any]:
        return {
            "seed": self.dice.getrandbits(32),
            "flush_interval_ms": self.dice.choice((0, 100)),
            "frame_bytes_max": 1 << 20,
            "journal_bytes": 1 << 20,
        }

    def opened(self, directory: Path, settings: dict[str, Any]) -> CursusBroker:
        broker = CursusBroker(directory, **settings)
        client = broker.connect()
        client.text("CREATE topic=orders partitions=2")
        client.text("CREATE topic=es partitions=1 event_sourcing=true")
        if not self.pair:
            self._corpus = corpus(self.dice)
        return broker

    def round(self) -> None:
        dice = self.dice
        chosen = [dice.choice(self._corpus) for _ in range(dice.randrange(1, 16))]
        broken = [mutated(one, dice, self._corpus) for one in chosen]
        data = b"".join(broken)
        self.frames += len(broken)
        where = self.where
        whole, crumbs = (Client(broker, ReadAtOnce(broker.runtime)) for broker in self.pair)
        try:
            self.feed_both(whole, crumbs, data)
            for client in (whole, crumbs):
                client.broker.step()
                client.broker.advance(1_100)
        except Exception as flaw:
            raise AssertionError(f"{where}: {data.hex()}") from flaw
        self._compare(whole, crumbs, where, data)

    def _compare(self, whole: Client, crumbs: Client, where: str, data: bytes) -> None:
        assert whole.line.hung_up == crumbs.line.hung_up, f"{where}: {data.hex()}"
        left, right = whole.frames(), crumbs.frames()
        if left != right:
            differing = next(pair for pair in zip(left, right, strict=False) if len({*pair}) > 1)
            raise AssertionError(f"{where}: {differing} to {data.hex()}")
        assert all(len(answer) <= REPLY_BYTES_MAX for answer in left), where
        self.answers += len(left)
        self.hang_ups += whole.line.hung_up
        for client in (whole, crumbs):
            client.session.close()
            assert not client.session.waits, where
            assert not client.session.door.streams, where
