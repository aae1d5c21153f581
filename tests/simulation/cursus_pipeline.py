"""Cursus producers that send several batches in one write.

Named producers send theirs over two connections, as their clients do: one may arrive before the
one that it follows, and one may be sent twice.  Other frames are compressed, or so large that the
broker stores them in parts.
"""

from __future__ import annotations

import gzip
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulation import cursus_wire, expectations, pipelining
from tests.simulation.judge import Item, Sent, TopicLife
from tests.simulation.violation import Violation
from tests.simulation.wire import Lost, Reply
from tests.support.cursus_world import Message, batch

if TYPE_CHECKING:
    from tests.simulation.cursus import CursusClients

CURSUS_LARGE_BYTES: Final = 44_000
"""More than other clients send at once: what is stored in parts is not whole after a crash."""
_FILLER_BYTES: Final = 6_000
_COMPRESSED: Final = 0.5
"""Share of frames that are."""


class Frame(NamedTuple):
    data: bytes
    sents: list[Sent]
    """One for all its messages, or one for each if the broker may store it in parts."""


class Pipelines:
    def __init__(self, clients: CursusClients) -> None:
        self._clients = clients
        self._world = clients.world
        self._sequences: dict[tuple[str, int, int], int] = {}
        self._epochs: dict[str, int] = {}

    def start(self, client: str, random: Random) -> Any:
        topic = self._clients.topic(random)
        if topic is None:
            return None
        index = random.randrange(topic.partitions)
        named = random.random() < 0.6
        count = random.choice((2, 3, 4, 6))
        make = self._named if named else self._plain
        frames = [make(client, topic, index, random) for _ in range(count)]
        sents = [sent for frame in frames for sent in frame.sents]
        if not named:
            expectations.chain(sents)
        numbers = ", ".join(str(sent.number) for sent in sents)
        name = f"pipeline {numbers} to {topic.label}-{index}{', named' * named}"
        return name, self._send(client, topic, index, frames, named, random)

    def _named(self, client: str, topic: TopicLife, index: int, random: Random) -> Frame:
        items = self._clients.items(topic, index, random)
        place = (client, topic.number, index)
        first = self._sequences.get(place, 0) + 1
        self._sequences[place] = first + len(items) - 1
        epoch = self._epochs.get(client, 1)
        messages = [
            Message(
                item.value or b"",
                key=item.key or b"",
                seq=first + number,
                producer=f"pipelined {client}".encode(),
                epoch=epoch,
            )
            for number, item in enumerate(items)
        ]
        data = batch(messages, topic=topic.name, partition=index, acks="-1", idempotent=True)
        sent = self._clients.send(topic, index, items, -1)
        return Frame(self._maybe_compressed(data, random), [sent])

    def _plain(self, client: str, topic: TopicLife, index: int, random: Random) -> Frame:
        acks = random.choice((-1, -1, 1))
        large = self._world.settings.lanes and random.random() < 0.2
        items = self._clients.items(topic, index, random)
        if large:
            items = [self._filled(topic, index, random) for _ in range(9)]
        messages = [Message(item.value or b"", key=item.key or b"") for item in items]
        data = batch(messages, topic=topic.name, partition=index, acks=str(acks))
        if large:
            return Frame(data, [self._clients.send(topic, index, [each], acks) for each in items])
        sent = self._clients.send(topic, index, items, acks)
        return Frame(self._maybe_compressed(data, random), [sent])

    def _filled(self, topic: TopicLife, index: int, random: Random) -> Item:
        end = self._clients.next_value(topic, index, random)[-20:]
        value = b"c" + random.randbytes(_FILLER_BYTES) + end[end.rindex(b"<") :]
        return Item(value, b"k%d" % random.randint(0, 4) if topic.compact else None, value)

    def _maybe_compressed(self, data: bytes, random: Random) -> bytes:
        return gzip.compress(data, mtime=0) if random.random() < _COMPRESSED else data

    async def _send(
        self,
        client: str,
        topic: TopicLife,
        index: int,
        frames: list[Frame],
        named: bool,
        random: Random,
    ) -> None:
        lines = [self._clients.connection(f"{client} {number}") for number in range(1 + named)]
        routes: list[tuple[int, Frame]] = [
            (random.randrange(len(lines)), frame) for frame in frames
        ]
        if named and random.random() < 0.4:
            # Of the last five batches the broker knows where they are.
            number, frame = random.choice(routes[-4:])
            routes.append((1 - number, frame))
        asked: list[tuple[Frame, Reply]] = []
        certain = False
        try:
            for number, line in enumerate(lines):
                here = [frame for route, frame in routes if route == number]
                asked += [(frame, line.next_frame()) for frame in here]
                data = b"".join(len(f.data).to_bytes(4, "big") + f.data for f in here)
                if data:
                    pipelining.send_cut(line, data, random)
            if random.random() < 0.15:
                await self._world.kafka.admin.replace_topic(topic, random)
            good = [await self._answered(frame, reply) for frame, reply in asked]
            certain = all(good) and not any(s.loose for frame in frames for s in frame.sents)
        except Lost:
            if not self._world.dead:
                raise Violation("hung up", "Cursus closes a connection") from None
            raise
        finally:
            if named and not certain:
                self._start_over(client)
        pipelining.check_order(sent for frame in frames for sent in frame.sents)
        self._clients.cut_soon()

    async def _answered(self, frame: Frame, reply: Reply) -> bool:
        error, last_offset = cursus_wire.published(await reply)
        last = frame.sents[-1]
        if error:
            # While the disk fails, the one that this follows may be refused.
            follows = error.startswith("idempotency") and self._world.had_fault
            if not follows:
                self._clients.check_batch_refusal(last, error)
            return False
        self._world.tell(f"batch {last.number} acknowledged up to {last_offset}")
        self._world.judge.acknowledge(last, last_offset + 1 - len(last.items))
        for sent in frame.sents[:-1]:
            # Batches of other clients may lie between the parts of a frame.
            if not sent.loose:
                sent.acked, sent.absent = True, False
        return True

    def _start_over(self, client: str) -> None:
        """What became of some batches is not known: begin with another epoch."""
        self._epochs[client] = self._epochs.get(client, 1) + 1
        for place in [place for place in self._sequences if place[0] == client]:
            del self._sequences[place]

    def disconnect(self) -> None:
        for client in {place[0] for place in self._sequences}:
            self._start_over(client)
