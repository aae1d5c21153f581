"""A derived topic: another topic as a SmartModule returns it, each record exactly once.

The module returns every record unchanged, so the derived topic must hold the committed records of
its source, in their order, and each of them once.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Final

import wasmtime
from tests.simulation import fluvio_wire, kafka_wire
from tests.simulation.judge import Outcome, Sent, TopicLife
from tests.simulation.kafka_admin import DERIVED
from tests.simulation.protocol import ProtocolClients
from tests.simulation.violation import Violation

from pentalog.broker.derived_topics import TIMEOUT_MS
from pentalog.clients.kafka.messages import ms

if TYPE_CHECKING:
    from tests.simulation.world import World

_MODULE: Final = "everything"
_INVALID_CONFIG: Final = 40
_EXISTS: Final = 36
_STORAGE: Final = 56
_CATCH_UP_MS: Final = 10_000
"""How long a derived topic may be behind its source, with nothing under way."""
_BACK_MS_MAX: Final = 3_000_000
"""Less than the hour by which records may be ahead (message.timestamp.after.max.ms)."""
_RETURNS_ALL: Final = """
(module
  (import "env" "copy_records" (func $copy (param i32 i32)))
  (memory (export "memory") 64)
  (func (export "alloc") (param i32) (result i32) (i32.const 0))
  (func (export "map") (param $at i32) (param $size i32) (param i32) (result i32)
    (local.set $at (i32.add (local.get $at) (i32.const 12)))
    (local.set $size (i32.sub (local.get $size) (i32.const 20)))
    (i32.store8 (i32.add (local.get $at) (local.get $size)) (i32.const 0))
    (call $copy (local.get $at) (i32.add (local.get $size) (i32.const 1)))
    (i32.const 1)))
"""
"""The input is an offset, the size of the records, the records and a time.

The output is the records and a zero: there was no failure.
"""


@cache
def _wasm() -> bytes:
    return bytes(wasmtime.wat2wasm(_RETURNS_ALL))


Found = dict[tuple[int, int], tuple[Sent, int]]
"""Partition and offset to the record of the source that is there."""


class DerivedClients(ProtocolClients):
    protocol = "derived"
    roles: ClassVar = {"derived create": "admin", "derived follow": "writer"}

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._source: TopicLife | None = None
        self._partitions = 0
        """Of the derived topic; 0 until its creation is acknowledged."""
        self._seen: dict[tuple[int, int], tuple[Sent, int]] = {}
        """By partition and offset, what consumers of the derived topic got."""

    def endpoint(self, client: str) -> str:
        return "fluvio-sc" if client == "admin" else "kafka"

    def create(self, client: str, random: Random) -> Any:
        source = self.topic(random, plain=True)
        if source is None or self._source is not None:
            return None
        self._source = source
        return f"derive from {source.label}", self._create(client, source, random)

    async def _create(self, client: str, source: TopicLife, random: Random) -> None:
        body = fluvio_wire.create_module(_MODULE, _wasm())
        frame = fluvio_wire.request(fluvio_wire.CREATE, body, fluvio_wire.SC_VERSION, 1)
        error = fluvio_wire.status(await self.connection(client).ask(frame))
        if error.code:
            if error.code not in (_STORAGE, fluvio_wire.OTHER) or not self.world.had_fault:
                raise Violation("error", f"a SmartModule was refused: {error}")
            self._source = None
            return
        partitions = random.choice((1, 2))
        configs = {"derived.from": source.name, "derived.smartmodule": _MODULE}
        topic = {
            "name": DERIVED,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in configs.items()],
        }
        fields = {"topics": [topic], "timeout": ms(30_000), "validate_only": False}
        code = (await self._ask(kafka_wire.CREATE_TOPICS, fields)).topics[0].error_code
        self.world.tell(f"{DERIVED} is derived from {source.label}: {code}")
        gone = code == _INVALID_CONFIG and not self.is_current(source)
        if code and not gone and not (code in (_STORAGE, _EXISTS) and self.world.had_fault):
            raise Violation("error", f"a derived topic was refused with code {code}")
        self._partitions = 0 if code else partitions

    def follow(self, client: str, random: Random) -> Any:
        source = self._source
        if source is None or not self._partitions or not self.is_current(source):
            return None
        return f"write to {source.label}", self._write(source, random)

    async def _write(self, source: TopicLife, random: Random) -> None:
        """Write to the source, and perhaps cut the power while the record is derived."""
        index = random.randrange(source.partitions)
        watches = random.random() < 0.5
        end = await self._end(index % self._partitions) if watches else 0
        await self.write_through_kafka(source, index, random, acks=-1)
        if watches:
            # Its output is there and not committed yet, unless other output is.
            await self._look(index % self._partitions, end, wait_ms=2_000)
            self.world.crash_soon(12)

    async def _end(self, index: int) -> int:
        """Where the next output will be."""
        offset = 0
        while (reached := await self._look(index, offset)) > offset:
            offset = reached
        return offset

    async def _look(self, index: int, offset: int, *, wait_ms: int = 0) -> int:
        """How far output goes, committed or not."""
        frame = kafka_wire.fetch(
            DERIVED, index, offset, committed=False, bytes_max=1 << 20, wait_ms=wait_ms
        )
        answer = await self.connection("watcher").ask(frame)
        return kafka_wire.fetched(answer, offset).next_offset

    async def _ask(self, key: int, fields: dict[str, Any]) -> Any:
        frame = await self.connection("audit").ask(kafka_wire.request(key, fields))
        return kafka_wire.answer(key, frame)

    def audit(self, *, restart: bool) -> None:
        if self._partitions and not self.world.judge.ever_lossy:
            self.world.call("derived: audit", self._audit(restart))

    async def _audit(self, restart: bool) -> None:
        clock = self.world.clock
        # Records from the future of a clock that was set back wait until it gets there.
        back_ms = clock.wall_ms_max - clock.now_ms()
        caught_up = not restart and not self.world.had_fault and back_ms < _BACK_MS_MAX
        if caught_up:
            await self.world.wait(_CATCH_UP_MS)
        found = await self._read_all()
        if caught_up and self._missing(found):
            # A derivation that ended while the disk failed may have left a transaction open.
            await self.world.wait(TIMEOUT_MS + _CATCH_UP_MS)
            found = await self._read_all()
        lost = self._seen.keys() - found.keys()
        if lost:
            index, offset = min(lost)
            raise Violation("lost", f"offset {offset} of {DERIVED}-{index} is missing")
        changed = [place for place, entry in self._seen.items() if found[place] != entry]
        if changed:
            raise Violation("offset reused", f"{DERIVED} has another record at {min(changed)}")
        self._seen = found
        self._check(found)
        if caught_up and (missing := self._missing(found)):
            raise Violation("not derived", f"{missing} is missing")

    async def _read_all(self) -> Found:
        found: Found = {}
        for index in range(self._partitions):
            await self._read(index, found)
        return found

    async def _read(self, index: int, found: Found) -> None:
        """Everything that a read_committed consumer gets."""
        # Not 0: retention removes segments that a power cut damaged before they were durable.
        frame = kafka_wire.list_offsets(DERIVED, [index], kafka_wire.EARLIEST, committed=False)
        data = await self.connection("audit").ask(frame)
        offset = kafka_wire.answer(kafka_wire.LIST_OFFSETS, data).topics[0].partitions[0].offset
        while True:
            frame = kafka_wire.fetch(DERIVED, index, offset, committed=True, bytes_max=1 << 20)
            answer = kafka_wire.fetched(await self.connection("audit").ask(frame), offset)
            if answer.code:
                raise Violation("error", f"fetch of {DERIVED}-{index}: {answer.code}")
            for read in kafka_wire.committed_only(answer):
                value = bytes(read.record.value or b"")
                if not value:
                    continue  # a tombstone: the source was created again, to be compacted
                entry = self.world.judge.find(value)
                if entry is None:
                    place = f"offset {read.offset} of {DERIVED}-{index}"
                    raise Violation("phantom", f"no client wrote what is at {place}")
                if entry[0].items[entry[1]].key != read.record.key:
                    raise Violation("changed", f"{DERIVED}-{index} has another key of {entry[0]}")
                found[index, read.offset] = entry
            if answer.next_offset == offset:
                return
            offset = answer.next_offset

    def _check(self, found: Found) -> None:
        """Each record once, in the order of its source, and no uncommitted one."""
        where: dict[tuple[Sent, int], tuple[int, int]] = {}
        last: dict[tuple[TopicLife, int], int] = {}
        for place in sorted(found):
            sent, number = entry = found[place]
            if entry in where:
                raise Violation(
                    "derived twice", f"record {number} of {sent} is at {where[entry]} and {place}"
                )
            where[entry] = place
            transaction = sent.transaction
            open_or_aborted = (Outcome.OPEN, Outcome.ABORTED)
            if transaction is not None and transaction.outcome in open_or_aborted:
                raise Violation("uncommitted data", f"{DERIVED} has record {number} of {sent}")
            if sent.offset is None or sent.loose:
                continue
            offset, source = sent.offset + number, (sent.topic, sent.index)
            if offset <= last.get(source, -1):
                raise Violation("out of order", f"{DERIVED} has {sent} after {last[source]}")
            last[source] = offset

    def _missing(self, found: Found) -> str:
        """A record that the source still has and that is not derived, with nothing under way."""
        where = set(found.values())
        source = self._source
        assert source is not None
        current = self.world.judge.current(source.name)
        if current is None or not self.is_current(current):
            return ""
        if current.compact or current.retention or current.unsure:
            return ""
        for index in range(current.partitions):
            model = current.model(index)
            if self.world.judge.transactions_in(current, index):
                continue  # one may be open, and keep what follows it from being stable
            first = max(model.floor, model.floor_maybe)
            for sent in model.sents:
                if not sent.required or sent.offset is None or sent.offset < first:
                    continue
                for number in range(len(sent.items)):
                    if (sent, number) not in where:
                        return f"record {number} of {sent}"
        return ""
