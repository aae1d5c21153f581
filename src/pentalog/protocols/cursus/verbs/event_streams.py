"""Event sourcing: events of one key, numbered without a gap, and a snapshot of where they led."""

from __future__ import annotations

import json
import struct
from functools import partial
from typing import Final

from pentalog.broker.port import Opened
from pentalog.broker.sourcing import Conflict, Extent, Snapshot
from pentalog.kernels import Facts, cursus_page, fnv1a_64
from pentalog.kernels.cursus_facts import CURSUS_MESSAGES_MAX
from pentalog.model.settings import LogSettings
from pentalog.model.types import Ack, Appended, Horizon, Offset
from pentalog.protocols.cursus import records
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.door import Route
from pentalog.protocols.cursus.errors import Refused, plain, quoted, shown
from pentalog.protocols.cursus.frames import REPLY_BYTES_MAX, framed
from pentalog.protocols.cursus.messages import encoded, key_of
from pentalog.protocols.cursus.publishing import (
    Sequencing,
    admission_of,
    check_sizes,
    check_writable,
    record_batches,
)
from pentalog.protocols.cursus.storing import LARGE_BYTES

_CHUNK_BYTES: Final = 1 << 20
_VERSION_MAX: Final = 10**18 - 1
"""The index reads versions of up to 18 digits from the log."""


def append_stream(call: Call) -> None:
    command = call.command
    route, key = _aggregate(call)
    check_writable(call, route)
    version = _version(call)
    payload = command.payload
    schema = 1
    if "schema_version" in command.parameters:
        reason = "invalid_schema_version command=APPEND_STREAM"
        schema = command.number("schema_version", reason, most=(1 << 32) - 1)
    data, read = records.single(
        producer=encoded(command.get("producerId")),
        key=key,
        payload=payload,
        event_type=encoded(command.get("event_type")),
        schema=schema,
        aggregate=version,
        metadata=encoded(command.get("metadata")),
    )
    check_sizes(route, read, Ack.DURABLE)

    def done(outcome: Appended | Conflict) -> None:
        if isinstance(outcome, Conflict):
            raise Refused(f"version_conflict current={outcome.version} expected={version}")
        call.reply(f"OK version={version} offset={outcome.base_offset} partition={route.at.index}")

    def write(batches: bytearray, facts: Facts) -> None:
        admission = admission_of(call, route, batches, facts)
        if admission is None:
            append(memoryview(batches), facts)
        else:
            call.hold_until(admission, lambda admitted: append(*admitted))

    def append(batches: memoryview, facts: Facts, opened: LogSettings | None = None) -> None:
        aggregates = call.broker.sourcing.aggregates
        owner = call.session.context.access.owner if version == 1 else ""
        written = aggregates.append(
            route.at, key, version, batches, facts, owner=owner, opened=opened
        )
        call.after(written, done)

    def build() -> None:
        start, end = read.messages_start, len(data)
        built = record_batches(call, route, data, start, end, 1, Sequencing())
        if large:
            call.later(partial(write, *built))
        else:
            write(*built)

    large = len(data) > LARGE_BYTES
    if large:
        # Encoded in one turn, made a batch in the next, written in a third.
        call.later(build)
    else:
        build()


def stream_version(call: Call) -> None:
    route, key = _aggregate(call)
    later = call.broker.sourcing.aggregates.extent(route.at, key)
    call.after(later, lambda extent: call.reply(f"OK version={extent.version}"))


def save_snapshot(call: Call) -> None:
    route, key = _aggregate(call)
    check_writable(call, route)
    version = _version(call)
    payload = call.command.payload
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise Refused('invalid_payload reason="a snapshot must be UTF-8 text"') from None

    def known(extent: Extent) -> None:
        if version > extent.version:
            raise Refused(
                f"snapshot_version_exceeds_stream version={version} current={extent.version}"
            )
        saved = call.broker.sourcing.aggregates.save_snapshot(
            route.at.topic, key, Snapshot(version, bytes(payload))
        )
        done = f"OK version={version} partition={route.at.index}"
        # One at a time: thousands that wait would fill the memory, and keep the changes of others
        # waiting, which are written in the same order.
        call.hold_until(saved, lambda _: call.reply(done))

    call.after(call.broker.sourcing.aggregates.extent(route.at, key), known)


def read_snapshot(call: Call) -> None:
    route, key = _aggregate(call)
    aggregates = call.broker.sourcing.aggregates

    def found(snapshot: Snapshot | None) -> None:
        call.reply(f"OK snapshot={json.dumps(_told(snapshot), separators=(',', ':'))}")

    def read() -> None:
        call.after(aggregates.snapshot(route.at.topic, key), found)

    call.session.reads.enter(call)
    call.shed()
    call.session.reads.take_turn(call, REPLY_BYTES_MAX, read)


def stream_refused(text: str) -> bytes:
    """What READ_STREAM answers instead of a line of text."""
    return json.dumps({"error": plain(text), "status": "ERROR"}, separators=(",", ":")).encode()


def read_stream(call: Call) -> None:
    """Two frames, an envelope and a batch; one if it is refused."""
    route, key = _aggregate(call)
    version = 1
    if "from_version" in call.command.parameters:
        version = call.command.number(
            "from_version", "invalid_from_version command=READ_STREAM", least=1, most=_VERSION_MAX
        )
    aggregates = call.broker.sourcing.aggregates

    def known(snapshot: Snapshot | None, extent: Extent) -> None:
        _Events(call, route, key, version, snapshot, extent).read()

    def found(snapshot: Snapshot | None) -> None:
        call.after(aggregates.extent(route.at, key), partial(known, snapshot))

    def read() -> None:
        call.after(aggregates.snapshot(route.at.topic, key), found)

    call.session.reads.enter(call)
    call.shed()
    call.session.reads.take_turn(call, REPLY_BYTES_MAX, read)


class _Events:
    """The events of one aggregate, gathered piece by piece into one batch."""

    def __init__(
        self,
        call: Call,
        route: Route,
        key: bytes,
        version: int,
        snapshot: Snapshot | None,
        extent: Extent,
    ) -> None:
        self._call = call
        self._route = route
        self._key = key
        self._snapshot = snapshot if snapshot and snapshot.version >= version else None
        self._version = self._snapshot.version + 1 if self._snapshot else version
        self._offset: Offset = extent.first_offset
        self._end = extent.next_offset if extent.version >= self._version else 0
        self._head = records.head(encoded(route.at.topic), route.at.index, document=False)
        self._messages: list[memoryview] = []
        self._messages_bytes = 0
        self._count = 0
        # In a cluster the attributes of a batch are not ours to rely on.
        self._door = records.DOOR if call.broker.knowledge.current else -1

    def read(self) -> None:
        start = self._call.broker.log.marks(self._route.at).start
        self._offset = max(self._offset, start)
        if self._offset >= self._end:
            self._finish()
            return
        # Where others keep them, events are written in transactions, which may not have ended.
        horizon = Horizon.END if self._call.broker.knowledge.current else Horizon.STABLE
        later = self._call.broker.log.open(
            self._route.at, self._offset, bytes_max=_CHUNK_BYTES, horizon=horizon
        )
        self._call.after(later, self._opened)

    def _opened(self, opened: Opened) -> None:
        page = cursus_page(
            opened.batches,
            0,
            len(opened.batches),
            self._head,
            offset=self._offset,
            messages_max=CURSUS_MESSAGES_MAX - self._count,
            bytes_max=REPLY_BYTES_MAX - self._messages_bytes,
            frame_bytes_max=REPLY_BYTES_MAX - self._messages_bytes,
            key=self._key,
            version_from=self._version,
            door=self._door,
        )
        if page.next_offset >= 0:
            reason = quoted("more than one frame can hold; save a snapshot, or read from a version")
            raise Refused(f"stream_too_large from_version={self._version} reason={reason}")
        if page.records:
            start = 4 + len(self._head) + records.COUNTS_BYTES
            self._messages.append(memoryview(page.frame)[start:])
            self._messages_bytes += len(page.frame) - start
            self._count += page.records
        if opened.next_offset <= self._offset:
            self._end = self._offset
        self._offset = opened.next_offset
        # In a later turn: a long partition must not hold up the others.
        self._call.step_later(self.read)

    def _finish(self) -> None:
        envelope = {
            "status": "OK",
            "topic": self._route.at.topic,
            "key": self._key.decode("utf-8", "replace"),
            "partition": self._route.at.index,
            "count": self._count,
        }
        if self._snapshot is not None:
            envelope["snapshot"] = _told(self._snapshot)
        counts = struct.pack(">QQi", 0, 0, self._count)
        head = self._head + counts
        size = struct.pack(">I", len(head) + self._messages_bytes)
        text = json.dumps(envelope, separators=(",", ":"), ensure_ascii=False)
        self._call.send(framed(encoded(text)), size + head, *self._messages)


def _told(snapshot: Snapshot | None) -> dict[str, object] | None:
    if snapshot is None:
        return None
    return {"version": snapshot.version, "payload": snapshot.payload.decode()}


def _aggregate(call: Call) -> tuple[Route, bytes]:
    """The partition and the key of an aggregate; raises refusals."""
    command = call.command
    topic = command.need("topic")
    route = call.door.route(encoded(topic), 0)
    command.need("key")
    key = key_of(command)
    if not route.options.event_sourcing:
        raise Refused(f"event_sourcing_not_enabled topic={shown(topic)}")
    count = route.options.stream_partitions or route.topic.partitions
    return call.door.route(encoded(topic), fnv1a_64(key) % count), key


def _version(call: Call) -> int:
    call.command.need("version")
    return call.command.number(
        "version", f"invalid_version command={call.command.verb}", most=_VERSION_MAX
    )
