"""Mutated Fluvio frames against two equal brokers, one fed in whole streams, one in crumbs.

What must hold for any bytes, on both ports: every byte is used or waited for, nothing raises,
answers are whole frames or the connection ends, both brokers answer the same, and nothing grows
without bound.  A failure names the seed and the round; the same seed gives the same frames.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "protocols" / "fluvio"))

from fluvio_world import (
    Client,
    FluvioBroker,
    ad_hoc,
    chain,
    create_topic,
    predefined,
    produce,
    request,
    stream_fetch,
    their_batch,
    topic_spec,
    update_offsets,
    wrapped,
)
from tests.fuzz.twins import Twins, mutated_frame
from wat_modules import module

from pentalog import kernels
from pentalog.broker.port import TopicSpec
from pentalog.broker.transformation import SmartModule
from pentalog.protocols.fluvio.codec import Writer
from pentalog.protocols.fluvio.streams import STREAMS_MAX
from pentalog.protocols.fluvio.watches import WATCHES_MAX

PARTITIONS_MAX = 200
"""More than this on disk, and the brokers are made anew: mutated requests create topics."""
_FIRST_ID = 0x51525300
"""Of the requests of one stream: no damage turns one id into another."""
LABELS = ("Topic", "Partition", "SPU", "CustomSpu", "SpuGroup", "SmartModule", "TableFormat")


def recorded() -> tuple[list[bytes], list[bytes]]:
    """(frames to the controller, frames to the SPU) of the real client."""
    found: dict[str, list[bytes]] = {"sc": [], "spu": []}
    kind = "sc"
    path = Path(__file__).parents[2] / "golden" / "fluvio" / "conversation.txt"
    for line in path.read_text().splitlines():
        if line.startswith("@ "):
            kind = line.split()[1]
        elif line.startswith("> "):
            found[kind].append(bytes.fromhex(line[2:]))
    return found["sc"], found["spu"]


def controller_corpus() -> list[bytes]:
    found = recorded()[0]
    for version in range(15, 20):
        found.append(request(1001, create_topic(f"made-{version}", topic_spec(2)), version, 7))
        for label in LABELS:
            named = Writer(version).text("Name") if label == "CustomSpu" else Writer(version)
            named.text("orders").boolean(True)
            found.append(request(1002, wrapped(label, bytes(named.out)), version, 8))
            listing = bytes(Writer(version).u32(1).text("o").boolean(True).boolean(False).out)
            found.append(request(1003, wrapped(label, listing), version, 9))
            found.append(request(1004, wrapped(label, bytes(9)), version, 10))
        grown = bytes(Writer(version).text("orders").u8(0).u32(1).out)
        found.append(request(1006, wrapped("Topic", grown), version, 11))
    body = Writer(19).text("m").boolean(False).u8(0).u8(0).u8(0).u8(0)
    for wasm in (module("filter"), b"\0asm\1\0\0\0"):
        inner = bytes(Writer(19).raw(body.out).bytes_(wasm).out)
        found.append(request(1001, wrapped("SmartModule", inner), 19, 12))
    return found


def compressed(codec: int, data: bytes) -> bytes:
    from pentalog.model import compression

    sent = bytearray(data[:57] + compression.compress(codec, data[57:]))
    struct.pack_into(">i", sent, 8, len(sent) - 12)
    struct.pack_into(">h", sent, 21, codec)
    struct.pack_into(">I", sent, 17, kernels.crc32c(bytes(sent[21:])))
    return bytes(sent)


def fetch(version: int) -> bytes:
    body = Writer(version).i32(50).i32(1)
    if version >= 3:
        body.i32(1 << 20)
    if version >= 4:
        body.u8(0)
    body.u32(1).text("orders").u32(1).u32(1)
    if version >= 9:
        body.i32(-1)
    body.i64(0)
    if version >= 5:
        body.i64(0)
    body.i32(1 << 20)
    return bytes(body.u32(0).out if version >= 7 else body.out)


def spu_corpus() -> list[bytes]:
    found = recorded()[1]
    sound = their_batch(b"a one", (b"k", b"two"), b"!three")
    links = chain(predefined("m"), ad_hoc(module("map"), parameters={"a": "b"}, lookback=2))
    for version in range(26):
        found.append(request(0, produce("orders", sound, sound), version, 20))
        found.append(request(0, produce("orders", sound, isolation=-1), version, 21))
        found.append(request(1, fetch(version), version, 22))
        body = Writer(version).text("orders").u32(0).i64(0).i32(4096).u8(version & 1)
        if 11 <= version <= 18:
            body.bytes_(b"")
        if 16 <= version <= 18:
            body.u8(0).u8(0)
        if version >= 18:
            body.u32(0)
        if version >= 23:
            body.option_text("group")
        found.append(request(1003, bytes(body.out), version, 23))
    for version in (23, 24, 25):
        found.append(request(1002, bytes(Writer(version).u32(1).text("orders").u32(1).u32(0).out)
                             + (b"\0" if version == 23 else b""), version, 24))  # fmt: skip
        found.append(request(1006, bytes(Writer(version).i64(1).u32(1).out), version, 25))
        found.append(request(1007, bytes(Writer(version).text("orders").u32(0).text("group").out),
                             version, 26))  # fmt: skip
        found.append(request(1008, b"" if version == 23 else b"\0", version, 27))
    found += [request(0, produce("orders", compressed(n, sound)), 24, 28) for n in range(1, 5)]
    found.append(request(0, produce("orders", sound, modules=links), 24, 29))
    found.append(request(1003, stream_fetch("orders", modules=links), 24, 30))
    found += [request(1005, update_offsets((n, 1), (n, 2)), 0, 31) for n in range(4)]
    return found


class Fuzz(Twins[FluvioBroker]):
    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self._corpora = (controller_corpus(), spu_corpus())

    def closed(self, broker: FluvioBroker) -> None:
        broker.close()

    def worn_out(self) -> bool:
        return sum(topic.partitions for topic in self.pair[0].topics.all()) > PARTITIONS_MAX

    def settings(self) -> dict[str, Any]:
        return {
            "seed": self.dice.getrandbits(32),
            "flush_interval_ms": self.dice.choice((0, 100)),
            "frame_bytes_max": 1 << 20,
            "journal_bytes": 1 << 20,
            "smart_module_fuel": 1_000_000,
        }

    def opened(self, directory: Path, settings: dict[str, Any]) -> FluvioBroker:
        broker = FluvioBroker(directory, **settings)
        with broker.seeded():
            broker.topics.create(TopicSpec(name="orders", partitions=2))
            broker.topics.create(TopicSpec(name="demo", partitions=1))
            broker.smart_modules.create(SmartModule("m", module("filter")))
            broker.runtime.run()
        return broker

    def round(self) -> None:
        dice = self.dice
        is_spu = dice.random() < 0.6
        corpus = self._corpora[is_spu]
        chosen = [dice.choice(corpus) for _ in range(dice.randrange(1, 20))]
        numbered = [
            one[:8] + (_FIRST_ID + number).to_bytes(4, "big") + one[12:]
            for number, one in enumerate(chosen)
        ]
        broken = [mutated_frame(one, dice, corpus, share=0.12) for one in numbered]
        data = b"".join(broken)
        self.frames += len(broken)
        where = self.where
        whole, crumbs = (broker.spu() if is_spu else broker.sc() for broker in self.pair)
        try:
            self.feed_both(whole, crumbs, data)
            for connection in (whole, crumbs):
                connection.run()
                with connection.broker.seeded():
                    connection.broker.runtime.advance(2_000)
        except Exception as flaw:
            raise AssertionError(f"{where}: {data.hex()}") from flaw
        self._compare(whole, crumbs, where, data)

    def _compare(self, whole: Client, crumbs: Client, where: str, data: bytes) -> None:
        assert whole.line.hung_up == crumbs.line.hung_up, f"{where}: {data.hex()}"
        # One answer may overtake another that waits for the disk, so ids tell them apart.
        frames, others = (
            sorted(client.frames(), key=lambda answer: answer[0]) for client in (whole, crumbs)
        )
        if frames != others:
            pairs = zip(frames, others, strict=False)
            differing = next(((a, b) for a, b in pairs if a != b), None)
            raise AssertionError(f"{where}: {differing} to {data.hex()}")
        self.answers += len(frames)
        self.hang_ups += whole.line.hung_up
        for client in (whole, crumbs):
            session = client.session
            assert len(session.streams) <= STREAMS_MAX, where
            assert len(getattr(session, "watches", ())) <= WATCHES_MAX, where
            session.close()
            assert not session.streams, where
            assert not session.waits, where
            client.run()
