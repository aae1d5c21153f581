"""Event streams and snapshots through Cursus, and the model of what they must hold.

An event that was acknowledged or read stays, under its version.  A stream has every version from 1
to its last, once.  No client is told a last version that another client saw exceeded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation import cursus_wire
from tests.simulation.judge import Being, Item, Sent, TopicLife
from tests.simulation.register import Register
from tests.simulation.violation import Violation
from tests.support.cursus_world import Message, messages_of

if TYPE_CHECKING:
    from tests.simulation.cursus import CursusClients

_KEYS: Final = ("a", "b")
_MOVED: Final = ("topic_not_found", "partition_not_found", "event_sourcing_not_enabled")


@dataclass(eq=False)
class EventStream:
    topic: TopicLife
    key: str
    attempts: dict[int, list[Sent]] = field(default_factory=dict)
    known: dict[int, bytes] = field(default_factory=dict)
    """Events that were acknowledged or read, by version."""
    last: int = 0
    """The highest version that a client was told of."""

    def __str__(self) -> str:
        return f"stream {self.key} of {self.topic.label}"

    @property
    def index(self) -> int:
        """Its partition, by the hash that Cursus documents (FNV-1a, 64 bits)."""
        value = 0xCBF29CE484222325
        for byte in self.key.encode():
            value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        return value % self.topic.partitions_first

    def learn(self, version: int, value: bytes) -> None:
        """An event has this version."""
        before = self.known.setdefault(version, value)
        if before != value:
            raise Violation(
                "double version",
                f"version {version} of {self} was {before[-40:]!r}, is {value[-40:]!r}",
            )

    def check_last(self, version: int, least: int) -> None:
        """A client was told the last version; `least` was promised when it asked."""
        if version < least:
            raise Violation("version went back", f"{self} is at {version}; it was at {least}")
        if version > max(self.attempts, default=0):
            raise Violation("phantom", f"{self} is at {version}, which no client has appended")
        self.last = max(self.last, version)


class EventStreams:
    """Clients of event streams."""

    def __init__(self, clients: CursusClients) -> None:
        self._clients = clients
        self._world = clients.world
        self.all: dict[tuple[int, str], EventStream] = {}
        self._snapshots: dict[int, bytes] = {}
        self.confirmed: set[int] = set()
        """Numbers of the topics whose creation was answered."""

    async def audit(self) -> None:
        """Read all streams and snapshots, with nothing under way."""
        for stream in self.alive():
            await self.ask_version("audit", stream)
            await self.read("audit", stream)
            await self.read_snapshot("audit", stream)

    def alive(self) -> list[EventStream]:
        if self._world.judge.ever_lossy:
            return []  # a cut without syncs may leave an index and snapshots of lost events
        return [stream for stream in self.all.values() if self._is_there(stream.topic)]

    def _is_there(self, topic: TopicLife) -> bool:
        return topic.being is Being.ALIVE and self._world.judge.current(topic.name) is topic

    def _stream(self, random: Random) -> EventStream | None:
        topics = [topic for topic in self._world.judge.alive() if topic.sourced]
        if not topics or self._world.judge.ever_lossy:
            return None
        topic, key = random.choice(topics), random.choice(_KEYS)
        found = self.all.get((topic.number, key))
        if found is None:
            found = self.all[topic.number, key] = EventStream(topic, key)
        return found

    def _check_refusal(self, stream: EventStream, what: str, code: str, *allowed: str) -> None:
        certain = self._is_there(stream.topic) and stream.topic.number in self.confirmed
        moved = () if certain else _MOVED
        if code == "event_sourcing_not_enabled" and not certain:
            stream.topic.sourced = False
        self._clients.check_refusal(f"{what} of {stream}", code, *allowed, *moved)

    # Appending

    def append(self, client: str, random: Random) -> Any:
        stream = self._stream(random)
        if stream is None:
            return None
        version = stream.last + random.choice((1, 1, 1, 1, 1, 0, 2))
        if version < 1:
            version = 1
        value = self._clients.next_value(stream.topic, stream.index, random)
        return f"append version {version} to {stream}", self._append(
            client, stream, version, value, random
        )

    async def _append(
        self, client: str, stream: EventStream, version: int, value: bytes, random: Random
    ) -> None:
        judge = self._world.judge
        item = Item(value, stream.key.encode(), value)
        sent = judge.send(
            stream.topic, stream.index, [item], acks=-1, now_ms=self._world.clock.now_ms()
        )
        stream.attempts.setdefault(version, []).append(sent)
        least = stream.last
        text = f"APPEND_STREAM topic={stream.topic.name} key={stream.key} version={version}"
        reply = self._clients.connection(client).ask(cursus_wire.command(text, value))
        if random.random() < 0.3:
            # Another client asks while the event is on its way to the disk.
            await random.choice((self.ask_version, self.read))(f"{client} beside", stream)
        answer = cursus_wire.answer(await reply)
        self._clients.cut_soon()
        if sent.loose or not self._is_there(stream.topic):
            return
        if not answer.code:
            self._world.tell(f"batch {sent.number} is version {version} of {stream}")
            stream.learn(version, value)
            stream.check_last(version, version)
            judge.acknowledge(sent, answer.number("offset"))
            return
        self._check_refusal(stream, "append", answer.code, "version_conflict")
        if answer.code == "version_conflict":
            current = answer.number("current")
            sent.absent = True
            if current == version - 1:
                raise Violation("error", f"{stream} is at {current} and refuses {version}")
            stream.check_last(current, least)

    # Reading

    def stream(self, client: str, random: Random) -> Any:
        stream = self._stream(random)
        if stream is None:
            return None
        if random.random() < 0.4:
            return f"version of {stream}", self.ask_version(client, stream)
        start = random.randint(1, stream.last) if stream.last and random.random() < 0.4 else 1
        return f"read {stream} from version {start}", self.read(client, stream, start)

    async def ask_version(self, client: str, stream: EventStream) -> None:
        least = stream.last
        text = f"STREAM_VERSION topic={stream.topic.name} key={stream.key}"
        answer = await self._clients.command(client, text)
        if not self._is_there(stream.topic):
            return
        if answer.code:
            self._check_refusal(stream, "version", answer.code)
            return
        stream.check_last(answer.number("version"), least)
        self._world.tell(f"{stream} is at version {answer.number('version')}")

    async def read(self, client: str, stream: EventStream, start: int = 1) -> None:
        least = stream.last
        snapshots = self._snapshot_register(stream)
        since = snapshots.certain
        text = f"READ_STREAM topic={stream.topic.name} key={stream.key} from_version={start}"
        envelope = json.loads(await self._clients.ask(client, cursus_wire.command(text)))
        if envelope["status"] != "OK":
            self._check_refusal(stream, "reading", envelope["error"])
            return
        events = messages_of(await self._clients.connection(client).next_frame())
        if not self._is_there(stream.topic):
            return
        snapshot = envelope.get("snapshot")
        if snapshot is not None:
            self._observe_snapshot(snapshots, snapshot, since)
            start = snapshot["version"] + 1
        versions = [event.version for event in events]
        if versions != list(range(start, start + len(versions))):
            raise Violation("version gap", f"{stream} from {start} has versions {versions}")
        for event in events:
            self._observe(stream, event)
        stream.check_last(start + len(events) - 1, least)

    def _observe(self, stream: EventStream, event: Message) -> None:
        found = [
            sent
            for sent in stream.attempts.get(event.version, ())
            if sent.items[0].value == event.payload
        ]
        if not found:
            raise Violation(
                "phantom", f"no client appended version {event.version} of {stream} as it is"
            )
        stream.learn(event.version, event.payload)
        sent = found[0]
        if sent.loose:
            return
        if sent.absent:
            raise Violation("returned", f"{stream} holds {sent}, which was not there before")
        if sent.offset is not None and sent.offset != event.offset:
            raise Violation("offset changed", f"{stream} has {sent} at {event.offset}")
        sent.offset, sent.shown = event.offset, True

    # Snapshots

    def _snapshot_register(self, stream: EventStream) -> Register:
        name = f"snapshot of {stream.key} in {stream.topic.label}"
        return self._world.judge.register(f"{name} {stream.topic.number}", name)

    def snapshot(self, client: str, random: Random) -> Any:
        known = [stream for stream in self.alive() if stream.last]
        stream = random.choice(known) if known else self._stream(random)
        if stream is None:
            return None
        if random.random() < 0.3 or not stream.last:
            return f"read the snapshot of {stream}", self.read_snapshot(client, stream)
        return f"save a snapshot of {stream}", self._save(client, stream)

    async def _save(self, client: str, stream: EventStream) -> None:
        number = len(self._snapshots) + 1
        payload = b"%d of %b" % (number, stream.key.encode())
        self._snapshots[number] = payload
        register = self._snapshot_register(stream)
        attempt = register.attempt(number)
        text = f"SAVE_SNAPSHOT topic={stream.topic.name} key={stream.key} version={stream.last}"
        answer = await self._clients.command(client, text, payload)
        if answer.code:
            self._check_refusal(stream, "snapshot", answer.code)
            return
        if self._is_there(stream.topic):
            register.confirm(attempt)
            self._world.tell(f"snapshot {number} of {stream} at version {stream.last}")

    async def read_snapshot(self, client: str, stream: EventStream) -> None:
        register = self._snapshot_register(stream)
        since = register.certain
        text = f"READ_SNAPSHOT topic={stream.topic.name} key={stream.key}"
        answer = await self._clients.command(client, text)
        if not self._is_there(stream.topic):
            return
        if answer.code:
            self._check_refusal(stream, "snapshot", answer.code)
            return
        snapshot = json.loads(answer.text.removeprefix("OK snapshot="))
        self._observe_snapshot(register, snapshot, since)

    def _observe_snapshot(
        self, register: Register, snapshot: dict[str, Any] | None, since: int
    ) -> None:
        """Check a snapshot; one that was confirmed after the question need not be in the answer."""
        if snapshot is None:
            register.observe(-1, since)
            return
        number = int(snapshot["payload"].split()[0])
        if self._snapshots.get(number) != snapshot["payload"].encode():
            raise Violation("phantom", f"no client saved {snapshot['payload'][:60]!r}")
        register.observe(number, since)
