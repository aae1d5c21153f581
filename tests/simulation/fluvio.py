"""Fluvio clients: producers and readers at both isolations, streams, consumer offsets, topics.

Fluvio has two acknowledgement levels: written, like acks=1, and durable.  It has no idempotence.
Its records have keys and no headers, so a value is its own identity.  A reader that asks for
uncommitted records may see some that a power cut takes back.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation import contents, crossing, fluvio_pipeline, fluvio_wire, pipelining
from tests.simulation.crossing import low
from tests.simulation.fluvio_admin import GONE_CODES, Administrator
from tests.simulation.fluvio_wire import Error, Part, Written
from tests.simulation.judge import Item, Sent, TopicLife
from tests.simulation.protocol import ProtocolClients
from tests.simulation.register import Register
from tests.simulation.violation import Violation
from tests.simulation.wire import Connection

if TYPE_CHECKING:
    from tests.simulation.world import World

_STORAGE_CODES: Final = (fluvio_wire.STORAGE, fluvio_wire.FLUSH_FAILED, fluvio_wire.OTHER)
"""What may be answered while the disk fails."""
_CLIENTS: Final = {
    "fluvio produce": "producer*",
    "fluvio pipeline": "pipeliner*",
    "fluvio fetch": "consumer*",
    "fluvio stream": "streamer*",
    "fluvio commit": "streamer*",
    "fluvio forget": "streamer*",
    "fluvio end": "observer",
    "fluvio create": "admin",
    "fluvio delete": "admin",
    "fluvio recreate": "admin",
    "fluvio grow": "admin",
}
"""Which client does what; one with a star is one of two.  Each does one thing at a time."""
Entries = list[tuple[int, list[tuple[Sent, bytes]]]]
"""Of a Produce: the index of a partition, and batches for it."""
_OUT_OF_TIME: Final = "with timestamps outside"
"""What a batch is refused for if the clock is set back far enough behind the time it was sent."""
_PATIENCE_MS: Final = 20_000
"""How long a stream may take to push what is there."""


class Stream:
    """A stream that one client has open, on a connection of its own."""

    def __init__(
        self, connection: Connection, life: TopicLife, index: int, offset: int, committed: bool
    ) -> None:
        self.connection = connection
        self.life = life
        self.index = index
        self.offset = offset
        """The next offset that the client wants."""
        self.committed = committed
        self.number = 0
        """Of the request that opened it."""
        self.stream_id = 1
        """The first stream of a connection has this id."""
        self.ended = False
        self.floor = life.model(index).floor
        """The start that had been acknowledged when the next frame was asked for."""


class FluvioClients(ProtocolClients):
    protocol = "fluvio"
    roles = _CLIENTS

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._streams: dict[str, Stream] = {}
        self._number = 0
        self._admin = Administrator(self)

    def disconnect(self) -> None:
        super().disconnect()
        self._streams.clear()

    def endpoint(self, client: str) -> str:
        return "fluvio-sc" if client == "admin" else "fluvio-spu"

    async def ask(self, client: str, key: int, body: bytes) -> bytes:
        version = fluvio_wire.SC_VERSION if client == "admin" else fluvio_wire.SPU_VERSION
        connection = self.connection(client)
        number = self._send(connection, key, body, version)
        frame = await connection.next_frame()
        if fluvio_wire.answer_number(frame) != number:
            raise Violation("wrong answer", f"an answer to request {number} was expected")
        return frame

    def _send(self, connection: Connection, key: int, body: bytes, version: int) -> int:
        number = self.next_number()
        connection.send_frame(fluvio_wire.request(key, body, version, number))
        return number

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def refused(self, what: str, error: Error, *allowed: int) -> None:
        """Check an error: without a fault only those of the situation itself are right."""
        self.world.tell(f"{what}: error {error.code}, {error.text[:80]}")
        if error.code in allowed or (self.world.had_fault and error.code in _STORAGE_CODES):
            return
        raise Violation("error", f"{what} was refused: {error.code}, {error.text}")

    # Producing

    def produce(self, client: str, random: Random) -> Any:
        life = self.topic(random)
        if life is None:
            return None
        durable = random.random() < 0.5
        indexes = random.sample(range(life.partitions), min(life.partitions, random.choice((1, 2))))
        entries = [
            (index, [self.batch(life, index, durable, random) for _ in range(count)])
            for index in indexes
            for count in (random.choice((1, 1, 1, 2)),)
        ]
        numbers = [str(sent.number) for _, sents in entries for sent, _ in sents]
        return (
            f"produce {', '.join(numbers)} to {life.label}, {'durable' if durable else 'written'}",
            self._produce_all(client, life, entries, durable, random),
        )

    def batch(
        self,
        life: TopicLife,
        index: int,
        durable: bool,
        random: Random,
        *,
        oversized: bool = False,
    ) -> tuple[Sent, bytes]:
        items = []
        next_offset = life.required_end(index)
        for number in range(1 if oversized else random.choice((1, 1, 1, 2, 3, 8))):
            self.last_value += 1
            value = contents.value(
                random,
                b"<f%d>" % self.last_value,
                self.world.disk,
                self.world.settings,
                next_offset + number,
            )
            if oversized:
                value = pipelining.oversized(random, b"<f%d>" % self.last_value)
            keyed = life.compact or random.random() < 0.3
            items.append(Item(value, b"k%d" % random.randint(0, 4) if keyed else None, value))
        now_ms = self.world.clock.now_ms()
        # Imitations are to lie in the files as they are.
        codec = 0 if self.world.settings.hostile else random.choice((0, 0, 0, 1, 3))
        codec = codec if life.codec is None else life.codec
        sent = self.world.judge.send(life, index, items, acks=-1 if durable else 1, now_ms=now_ms)
        pairs = [(item.key, item.value or b"") for item in items]
        return sent, fluvio_wire.batch(pairs, now_ms, codec)

    async def _produce_all(
        self,
        client: str,
        life: TopicLife,
        entries: Entries,
        durable: bool,
        random: Random,
    ) -> None:
        self.lose_some_answers(self.connection(client), random)
        timeout_ms = random.choice((0, 1, 1_500, 30_000, 30_000))
        sets = [(index, b"".join(data for _, data in sents)) for index, sents in entries]
        body = fluvio_wire.produce(life.name, sets, durable=durable, timeout_ms=timeout_ms)
        answer = fluvio_wire.produced(await self.ask(client, fluvio_wire.PRODUCE, body))
        self.written(life, entries, answer, timeout_ms)
        self.crash_sometimes(random)

    def written(
        self, life: TopicLife, entries: Entries, answer: list[Written], timeout_ms: int
    ) -> None:
        """Check the answer to a Produce."""
        for written, (index, sents) in zip(answer, entries, strict=True):
            if written.partition != index:
                raise Violation("wrong answer", f"partition {written.partition} instead of {index}")
            if written.error.code:
                whole = self.is_current(life) and not any(sent.loose for sent, _ in sents)
                allowed = () if whole else GONE_CODES
                if timeout_ms < 30_000:  # a topic may want a sync for every write as well
                    allowed += (fluvio_wire.TIMED_OUT,)
                judge = self.world.judge
                returned = judge.ever_lossy and len(judge.topics[life.name]) > 1
                namesakes = judge.created[life.name]
                doubtful = life.unsure or not whole or returned
                # It met another topic of this name, created meanwhile or brought back by a cut
                # without syncs: only one that exists with such settings refuses it for them.
                if doubtful and any(other.compact for other in namesakes):
                    allowed += (fluvio_wire.OTHER,)
                if doubtful and any(other.codec != life.codec for other in namesakes):
                    allowed += (fluvio_wire.COMPRESSION,)
                if self.world.clock.was_set_back and _OUT_OF_TIME in written.error.text:
                    allowed += (fluvio_wire.OTHER,)
                self.refused(f"batch {sents[0][0].number}", written.error, *allowed)
                continue
            offset = written.base_offset
            for sent, _ in sents:
                self.world.tell(f"batch {sent.number} acknowledged at {offset}")
                self.world.judge.acknowledge(sent, offset)
                offset += len(sent.items)

    def pipeline(self, client: str, random: Random) -> Any:
        return fluvio_pipeline.start(self, client, random)

    # Fetching

    def fetch(self, client: str, random: Random) -> Any:
        life = self.topic(random)
        if life is None:
            return None
        index = random.randrange(life.partitions)
        committed = random.random() < 0.5
        return (
            f"fetch from {life.label}-{index}, {'' if committed else 'un'}committed",
            self._read(client, life, index, committed, random),
        )

    async def _read(
        self, client: str, life: TopicLife, index: int, committed: bool, random: Random
    ) -> None:
        start = self._place(life, index, random)
        promised, floor = life.required_end(index), life.model(index).floor
        body = fluvio_wire.fetch(
            life.name,
            index,
            start,
            committed=committed,
            bytes_max=random.choice((1, 1000, 1 << 20)),
            wait_ms=random.choice((0, 0, 50, 500)),
        )
        found = fluvio_wire.fetched(await self.ask(client, fluvio_wire.FETCH, body), start)
        if found.error.code:
            self._refused_read(life, index, start, found.error)
            return
        self._check(life, index, start, floor, committed, found)
        if not found.records and start < promised and self.is_current(life):
            crossing.check_progress(self.world, life, index, start, found.next_offset, promised)

    def _place(self, life: TopicLife, index: int, random: Random) -> int:
        """Somewhere to read from."""
        first = low(life, index)
        sents = life.model(index).sents
        known = [sent.offset for sent in sents if sent.required and sent.offset is not None]
        known = [offset for offset in known if offset >= first]
        return random.choice((first, max(first, life.required_end(index)), *known))

    def _refused_read(self, life: TopicLife, index: int, start: int, error: Error) -> None:
        allowed = () if self.is_current(life) else GONE_CODES
        if self.world.judge.may_start_behind(life, index, start):
            allowed += (fluvio_wire.EVICTED,)
        beyond = start > max(life.required_end(index), life.model(index).floor)
        if self.world.judge.ever_lossy or beyond or not self.is_current(life):
            allowed += (fluvio_wire.OTHER,)  # it may end before `start` now
        self.refused(f"read at {start} of {life.label}-{index}", error, *allowed)

    def _check(
        self,
        life: TopicLife,
        index: int,
        start: int,
        floor: int,
        committed: bool,
        found: Part,
    ) -> None:
        if not self.is_current(life):
            return
        judge, end = self.world.judge, found.next_offset
        if committed:
            crossing.observe_committed(
                judge, life, index, found.records, start=start, end=end, floor=floor
            )
        else:
            crossing.check_uncommitted(judge, life, index, found.records, start=start, end=end)

    # Streams

    def stream(self, client: str, random: Random) -> Any:
        stream = self._streams.get(client)
        if stream is None or stream.ended or stream.connection.ended or random.random() < 0.2:
            stream = self._open(client, random)
        if stream is None:
            return None
        return f"stream of {stream.life.label}-{stream.index} at {stream.offset}", self._follow(
            stream, random
        )

    def _open(self, client: str, random: Random) -> Stream | None:
        """Open a stream on a connection of its own, and leave the client's last one."""
        life = self.topic(random)
        if life is None:
            return None
        before = self._streams.get(client)
        if before is not None:
            before.connection.close()
        index = random.randrange(life.partitions)
        connection = self.world.connect("fluvio-spu")
        start = self._place(life, index, random)
        stream = Stream(connection, life, index, start, random.random() < 0.5)
        body = fluvio_wire.stream_fetch(
            life.name,
            index,
            start,
            committed=stream.committed,
            bytes_max=random.choice((1, 1000, 1 << 20)),
            consumer_id=_consumer(client),
        )
        stream.number = self._send(
            connection, fluvio_wire.STREAM_FETCH, body, fluvio_wire.SPU_VERSION
        )
        self._streams[client] = stream
        return stream

    async def _follow(self, stream: Stream, random: Random) -> None:
        """Take some frames; what was acknowledged before must come within a time."""
        for _ in range(random.choice((1, 2, 5))):
            promised = stream.life.required_end(stream.index)
            expected = stream.offset < promised
            frame = await self._frame(stream, _PATIENCE_MS if expected else 100)
            if frame is None:
                if expected and self.is_current(stream.life) and not self.world.had_fault:
                    crossing.check_progress(
                        self.world,
                        stream.life,
                        stream.index,
                        stream.offset,
                        stream.offset,
                        promised,
                    )
                return
            if fluvio_wire.answer_number(frame) != stream.number:
                continue  # the answer to an acknowledgement
            found = fluvio_wire.streamed(frame, stream.offset)
            if found.error.code:
                stream.ended = True
                self._refused_read(stream.life, stream.index, stream.offset, found.error)
                return
            self._check(
                stream.life, stream.index, stream.offset, stream.floor, stream.committed, found
            )
            stream.stream_id, stream.offset = found.stream_id, found.next_offset
            stream.floor = stream.life.model(stream.index).floor
            body = fluvio_wire.acknowledge(found.stream_id, found.next_offset)
            self._send(stream.connection, fluvio_wire.UPDATE_OFFSETS, body, 0)

    async def _frame(self, stream: Stream, patience_ms: int) -> bytes | None:
        """The next frame, if there is one within a time."""
        waited_ms, pause_ms = 0, 1
        while not stream.connection.has_frame:
            if waited_ms >= patience_ms:
                return None
            await self.world.wait(pause_ms)
            waited_ms += pause_ms
            pause_ms = min(2 * pause_ms, 1_000)
        return await stream.connection.next_frame()

    # Consumer offsets

    def _register(self, client: str, life: TopicLife, index: int) -> Register:
        key = (_consumer(client), life.name, life.number, index)
        name = f"offset of {_consumer(client)} in {life.label}-{index}"
        return self.world.judge.register(key, name)

    def commit(self, client: str, random: Random) -> Any:
        stream = self._streams.get(client)
        if stream is None or stream.ended or stream.connection.ended:
            stream = self._open(client, random)
        if stream is None:
            return None
        return f"commit in {stream.life.label}-{stream.index}", self._commit_offset(
            client, stream, random
        )

    async def _commit_offset(self, client: str, stream: Stream, random: Random) -> None:
        """Commit through the stream, also if its topic is not there any more."""
        self.last_commit += 1
        offset = self.last_commit
        life = stream.life
        register = self._register(client, life, stream.index)
        number = register.attempt(offset)
        current = self.world.judge.current(life.name)
        if current is not None and current is not life:
            self._register(client, current, stream.index)  # it must not get this commit
        # Fluvio keeps the last offset processed, groups the next one to read.
        body = fluvio_wire.update_consumer_offset(stream.stream_id, offset - 1)
        sent = self._send(
            stream.connection,
            fluvio_wire.UPDATE_CONSUMER_OFFSET,
            body,
            fluvio_wire.SPU_VERSION,
        )
        self.lose_some_answers(stream.connection, random)
        while True:
            frame = await stream.connection.next_frame()
            if fluvio_wire.answer_number(frame) == sent:
                break
            if fluvio_wire.answer_number(frame) == stream.number:
                self._take_aside(stream, frame)
        error = fluvio_wire.updated(frame)
        if error.code:
            gone = stream.ended or not self.is_current(life)
            self.refused("commit", error, *(GONE_CODES if gone else ()))
            return
        if self.is_current(life):
            register.confirm(number)
            self.world.tell(f"{register.name} is {offset}")
            self.crash_sometimes(random)

    def _take_aside(self, stream: Stream, frame: bytes) -> None:
        """A frame of the stream arrived before another answer: check it, do not ask for more."""
        found = fluvio_wire.streamed(frame, stream.offset)
        stream.ended = True
        if found.error.code:
            self._refused_read(stream.life, stream.index, stream.offset, found.error)
        else:
            self._check(
                stream.life, stream.index, stream.offset, stream.floor, stream.committed, found
            )

    def forget(self, client: str, random: Random) -> Any:
        life = self.topic(random)
        if life is None:
            return None
        index = random.randrange(life.partitions)
        return f"look at offsets of {client}", self._look(client, life, index, random)

    async def _look(self, client: str, life: TopicLife, index: int, random: Random) -> None:
        """Fetch the client's own offset, and perhaps delete it: nothing else changes it."""
        register = self._register(client, life, index)
        since = register.certain
        name = _consumer(client)
        body = fluvio_wire.fetch_consumer_offsets(name)
        frame = await self.ask(client, fluvio_wire.FETCH_CONSUMER_OFFSETS, body)
        error, offsets = fluvio_wire.consumer_offsets(frame)
        found = offsets.get((life.name, index))
        if error.code:
            self.refused("FetchConsumerOffsets", error)
        elif self.is_current(life):
            register.observe(-1 if found is None else found + 1, since)
        if random.random() < 0.5:
            return
        number = register.attempt(-1)
        body = fluvio_wire.delete_consumer_offset(name, life.name, index)
        frame = await self.ask(client, fluvio_wire.DELETE_CONSUMER_OFFSET, body)
        error = fluvio_wire.deleted(frame)
        if error.code:
            self.refused("deletion of an offset", error)
            return
        register.confirm(number)
        self.world.tell(f"{register.name} is deleted")

    # Ends

    def end(self, client: str, random: Random) -> Any:
        life = self.topic(random)
        if life is None:
            return None
        return f"ends of {life.label}", self._ask_ends(client, life, random)

    async def _ask_ends(self, client: str, life: TopicLife, random: Random) -> None:
        indexes = range(life.partitions)
        if random.random() < 0.5:
            await self.write_through_kafka(life, random.choice(indexes), random, acks=1)
        promised = [life.required_end(index) for index in indexes]
        body = fluvio_wire.fetch_offsets(life.name, indexes)
        frame = await self.ask(client, fluvio_wire.FETCH_OFFSETS, body)
        for index, code, _, end in fluvio_wire.offsets(frame):
            if code:
                allowed = () if self.is_current(life) else GONE_CODES
                self.refused(f"ends of {life.label}", Error(code), *allowed)
            elif self.is_current(life):
                self.ends.show(life, index, end, promised[index])
        self.crash_sometimes(random)

    # Topics

    def create(self, client: str, random: Random) -> Any:
        return self._admin.create(random)

    def delete(self, client: str, random: Random) -> Any:
        return self._admin.delete(random)

    def recreate(self, client: str, random: Random) -> Any:
        return self._admin.recreate(random)

    def grow(self, client: str, random: Random) -> Any:
        return self._admin.grow(random)

    # After a restart, and before one

    def audit(self, *, restart: bool) -> None:
        self.world.call("fluvio: audit", self._audit(self.world.random))

    async def _audit(self, random: Random) -> None:
        for life in self.world.judge.alive():
            body = fluvio_wire.fetch_offsets(life.name, range(life.partitions))
            frame = await self.ask("audit", fluvio_wire.FETCH_OFFSETS, body)
            starts = {}
            for index, code, start, end in fluvio_wire.offsets(frame):
                if code:
                    self.refused(f"ends of {life.label}", Error(code))
                    return
                starts[index] = start
                self.ends.check(life, index, end)
            index = random.randrange(life.partitions)
            await self._audit_partition(life, index, starts[index], random.random() < 0.7)

    async def _audit_partition(
        self, life: TopicLife, index: int, start: int, committed: bool
    ) -> None:
        """Read one partition from its start to its end."""
        floor = life.model(index).floor
        while True:
            body = fluvio_wire.fetch(
                life.name, index, start, committed=committed, bytes_max=1 << 20, wait_ms=0
            )
            frame = await self.ask("audit", fluvio_wire.FETCH, body)
            found = fluvio_wire.fetched(frame, start)
            if found.error.code:
                self._refused_read(life, index, start, found.error)
                return
            self._check(life, index, start, floor, committed, found)
            if found.next_offset <= start:
                return
            start = found.next_offset


def _consumer(client: str) -> str:
    return f"consumer {client}"
