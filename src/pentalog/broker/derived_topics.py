"""Derived topics: the records of another topic as a SmartModule gives them back, exactly once.

For every partition of the source one transaction after the other holds the output and the place
in the source: after a crash both are there or neither.  A record the module fails at is
left out, and the log says so; so is one of which comes what the derived topic refuses.  Such a
record is found by showing the module fewer at once: a client that writes to the source must not be
able to stop what is derived from it.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from pentalog import kernels
from pentalog.broker.port import Broker, Committed, Opened, Topic, Waiting
from pentalog.broker.transformation import Chain, Link, Section, Transformed
from pentalog.kernels import Malformed
from pentalog.model import batch
from pentalog.model.errors import (
    BatchCorrupt,
    BrokerError,
    InvalidConfig,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    SmartModuleInvalid,
    SmartModuleNotFound,
    TopicNotFound,
    UnsupportedFormat,
)
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Horizon, Identity, Offset, Partition
from pentalog.runtime import Runtime, Timer

_log: Final = logging.getLogger(__name__)

PREFIX: Final = "pentalog.derived."
"""Of the group that holds a derived topic's places in its source, and of its transactions."""
READ_BYTES_MAX: Final = 1 << 20
TIMEOUT_MS: Final = 60_000
RETRY_MS: Final = 1_000
_WAIT_MS: Final = 3_600_000
_RECORDS_MAX: Final = 1 << 20
"""Shown to the module at once."""
_RECORDS_AFTER_FAILURE: Final = 64
"""The same behind a record that it fails at: what follows is shown once more."""
_REPORT_MS: Final = 1_000
"""How often records that are left out are reported."""
_HINT_CHARACTERS_MAX: Final = 300
_SEQUENCE_MASK: Final = (1 << 31) - 1
_VERSION: Final = 25
_HEADER: Final = struct.Struct(">qiibIhiqqqhi")
_PRODUCER: Final = struct.Struct(">qhi")
_CRC: Final = struct.Struct(">I")


class _Part(NamedTuple):
    """Records whose offsets follow one another."""

    first: Offset
    size: int
    """How many they are."""
    section: Section

    def cut(self, passed: int, count: int) -> _Part:
        """Some of the records; the positions that they have in the section stay the same."""
        records = self.section.records
        start = kernels.fluvio_end(records, 4, len(records), passed) if passed else 4
        end = kernels.fluvio_end(records, start, len(records), count)
        chosen = count.to_bytes(4, "big") + bytes(records[start:end])
        return _Part(self.first + passed, count, self.section._replace(records=chosen))


class _Read(NamedTuple):
    """Records of the source, as they are shown to the module."""

    parts: Sequence[_Part]
    next_offset: Offset

    def behind(self, offset: Offset) -> _Read:
        """The same from `offset` on; nothing if nothing is known of that."""
        if offset >= self.next_offset:
            return _NOTHING
        left: list[_Part] = []
        for part in self.parts:
            passed = max(0, offset - part.first)
            if passed < part.size:
                left.append(part.cut(passed, part.size - passed) if passed else part)
        return self._replace(parts=left)

    def up_to(self, count: int) -> _Read:
        """The first records."""
        chosen: list[_Part] = []
        for part in self.parts:
            if count < part.size:
                if count:
                    chosen.append(part.cut(0, count))
                return _Read(chosen, part.first + count)
            chosen.append(part)
            count -= part.size
        return self._replace(parts=chosen)


_NOTHING: Final = _Read((), -1)


class _Wanted(NamedTuple):
    """What a derivation is of; another one is needed as soon as any of it differs."""

    topic: str
    topic_id: UUID
    partitions: int
    source: Partition
    source_id: UUID
    module: str
    parameters: str


def parameters_of(text: str) -> dict[str, str]:
    """`NAME=VALUE,...`; raises `InvalidConfig`."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(equals and name.strip() for name, equals, _ in pairs):
        raise InvalidConfig(f"derived.parameters {text!r}: give NAME=VALUE, separated by commas")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _settings(topic: Topic) -> tuple[str, str, str]:
    """(source, module, parameters): only a topic's own, never a default for all of them."""
    own = topic.overrides
    names = ("derived.from", "derived.smartmodule", "derived.parameters")
    source, module, parameters = (own.get(name, "") for name in names)
    return source, module, parameters


class DerivedTopics:
    """Sees to it that every derived topic is being derived."""

    def __init__(self, broker: Broker, runtime: Runtime) -> None:
        self._broker = broker
        self._runtime = runtime
        self._derivations: dict[_Wanted, Derivation] = {}
        self._closed = False
        self._scheduled = False

    def start(self) -> None:
        self._broker.topics.watch(self._changed)
        self._broker.smart_modules.watch(self._changed)
        self._look()

    def check(self, topic: Topic) -> None:
        """Raise if a topic that somebody wishes could not be derived."""
        source, module, parameters = _settings(topic)
        if not source:
            if module or parameters:
                raise InvalidConfig("derived.smartmodule needs derived.from: name the source topic")
            return
        if not module:
            raise InvalidConfig("derived.from needs derived.smartmodule: name a stored SmartModule")
        if source == topic.name:
            raise InvalidConfig(f"topic {topic.name!r} cannot be derived from itself")
        parameters_of(parameters)
        try:
            self._broker.topics.get(source)
            self._broker.smart_modules.get(module)
        except TopicNotFound as refusal:
            raise InvalidConfig(f"derived.from: {refusal}") from refusal
        except SmartModuleNotFound as refusal:
            raise InvalidConfig(
                f"derived.smartmodule: there is no SmartModule {refusal}: store it first"
            ) from refusal

    def close(self) -> None:
        self._closed = True
        for derivation in self._derivations.values():
            derivation.close()
        self._derivations.clear()

    def _changed(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._runtime.soon(self._look)

    def _look(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        wanted = set(self._wanted())
        for gone in self._derivations.keys() - wanted:
            self._derivations.pop(gone).abandon()
        for new in wanted - self._derivations.keys():
            started = self._derivations[new] = Derivation(self._broker, self._runtime, new)
            started.start()

    def _wanted(self) -> list[_Wanted]:
        found: list[_Wanted] = []
        topics = {topic.name: topic for topic in self._broker.topics.all()}
        for topic in topics.values():
            name, module, parameters = _settings(topic)
            source = topics.get(name)
            if source is None or not module:
                continue
            found += [
                _Wanted(
                    topic.name,
                    topic.topic_id,
                    topic.partitions,
                    Partition(source.name, index),
                    source.topic_id,
                    module,
                    parameters,
                )
                for index in range(source.partitions)
            ]
        return found


class Derivation:
    """One partition of a source on its way into a derived topic."""

    def __init__(self, broker: Broker, runtime: Runtime, wanted: _Wanted) -> None:
        self._broker = broker
        self._runtime = runtime
        self._wanted = wanted
        self._source = wanted.source
        self._target = Partition(wanted.topic, wanted.source.index % wanted.partitions)
        self._link = Link(wanted.module, parameters_of(wanted.parameters))
        self._group = f"{PREFIX}{wanted.topic}"
        self._name = f"{PREFIX}{wanted.topic}-{wanted.source.index}"
        self._who = Identity(-1, -1)
        self._sequence = 0
        self._offset: Offset = 0
        self._chain: Chain | None = None
        self._waiting: Waiting | None = None
        self._timer: Timer | None = None
        self._closed = False
        self._writing = False
        """Its transaction is open."""
        self._ahead = _NOTHING
        """The last part that was read: some of it may have to be shown once more."""
        self._records_max = _RECORDS_MAX
        """Shown to the module at once: fewer where something among them is refused."""
        self._shown = 0
        self._refused: Offset = -1
        """A record that is left out: nothing that comes of it is accepted."""
        self._left_out = 0
        self._reported_s = -_REPORT_MS / 1000

    def start(self) -> None:
        """From the place the last transaction has left, as a new life of the producer."""
        self._timer = None
        self._drop_chain()
        self._try(
            lambda: self._broker.transactions.identify(self._name, timeout_ms=TIMEOUT_MS).then(
                self._identified
            )
        )

    def close(self) -> None:
        self._closed = True
        self._drop_chain()
        if self._waiting is not None:
            self._waiting.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def abandon(self) -> None:
        """Close it for good: nothing takes its place that would end its transaction."""
        self.close()
        if self._writing:
            # Consumers of the derived topic would wait for it until it times out.
            with contextlib.suppress(BrokerError):
                self._broker.transactions.end(self._name, self._who, commit=False, bump=False)

    def _is_over(self) -> bool:
        """Has it been closed, or is it about to be because one of its topics was deleted?

        Places and output are written by name: they must not reach the next topic of that name.
        """
        if self._closed:
            return True
        topics, wanted = self._broker.topics, self._wanted
        try:
            return (
                topics.get(wanted.source.topic).topic_id != wanted.source_id
                or topics.get(wanted.topic).topic_id != wanted.topic_id
            )
        except TopicNotFound:
            return True

    def _drop_chain(self) -> None:
        if self._chain is not None:
            self._chain.close()
            self._chain = None

    def _try(self, step: Callable[[], object]) -> None:
        """Take a step; after a refusal begin again, a little later."""
        if self._is_over():
            return
        try:
            step()
        except BrokerError as refusal:
            _log.warning("%s is not derived at the moment: %s", self._target, refusal)
            self._timer = self._runtime.after(RETRY_MS, self.start)

    def _identified(self, later: Later[Identity]) -> None:
        def step() -> None:
            self._who, self._sequence = later.value, 0
            kept = self._broker.groups.offsets.committed(self._group, [self._source])
            place = kept.get(self._source)
            if place is not None and place.metadata not in ("", str(self._wanted.topic_id)):
                place = None  # it is that of a derived topic which was deleted
            marks = self._broker.log.marks(self._source)
            self._offset = marks.start if place is None else max(place.offset, marks.start)
            modules = self._broker.smart_modules
            modules.chain([self._link], version=_VERSION).then(self._chained)

        self._try(step)

    def _chained(self, later: Later[Chain]) -> None:
        def step() -> None:
            self._chain = later.value
            if self._is_over():
                self._drop_chain()
            else:
                self._read()

        if self._is_over():
            with contextlib.suppress(BrokerError):
                step()
        else:
            self._try(step)

    def _read(self) -> None:
        ahead = self._ahead.behind(self._offset)
        if ahead.parts:
            self._show(ahead)
            return
        self._ahead = _NOTHING
        self._broker.log.open(
            self._source, self._offset, bytes_max=READ_BYTES_MAX, horizon=Horizon.STABLE
        ).then(self._opened)

    def _opened(self, later: Later[Opened]) -> None:
        def step() -> None:
            opened = later.value
            if opened.next_offset <= self._offset:
                self._wait()
                return
            read = _Read(_parts(opened, self._offset), opened.next_offset)
            if read.parts:
                self._show(read)
            else:
                self._offset = opened.next_offset
                # In a later turn: much may have to be stepped over.
                self._runtime.soon(lambda: self._try(self._read))

        self._try(step)

    def _show(self, read: _Read) -> None:
        """Show the module what was read, or the first records of it."""
        self._ahead = read
        first = read.parts[0].first
        if first == self._refused:
            self._write((), first + 1)
            return
        assert self._chain is not None
        shown = read.up_to(self._records_max)
        self._shown = sum(part.size for part in shown.parts)
        self._chain.run([part.section for part in shown.parts]).then(
            partial(self._transformed, first, shown.next_offset)
        )

    def _narrow(self, first: Offset, refusal: BrokerError) -> None:
        """Something of what was shown cannot be derived: find it, and leave it out."""
        if self._shown > 1:
            self._records_max = self._shown // 2
        else:
            self._refused = first
            self._report(first, str(refusal))
        # From the last place on, with a new life of the producer: that ends the transaction.
        self.start()

    def _report(self, offset: Offset, hint: str) -> None:
        """Say that a record is left out; of many in a row, how many."""
        self._left_out += 1
        now_s = self._runtime.monotonic()
        if now_s - self._reported_s < _REPORT_MS / 1000:
            return
        self._reported_s = now_s
        _log.warning(
            "%s: record %d of %s is left out, the SmartModule %s fails at it: %s "
            "(%d left out so far)",
            self._target,
            offset,
            self._source,
            self._link.module,
            hint[:_HINT_CHARACTERS_MAX],
            self._left_out,
        )

    def _wait(self) -> None:
        asked_s = self._runtime.monotonic()
        self._waiting = self._broker.log.wait(
            {self._source: self._offset}, bytes_min=1, horizon=Horizon.STABLE, timeout_ms=_WAIT_MS
        )

        def waited(later: Later[bool]) -> None:
            self._waiting = None
            stopping = self._runtime.monotonic() - asked_s < _WAIT_MS / 2000
            if later.value or not stopping:
                self._try(self._read)

        self._waiting.then(waited)

    def _transformed(self, first: Offset, next_offset: Offset, later: Later[Transformed]) -> None:
        def step() -> None:
            try:
                done = later.value
            except SmartModuleInvalid as refusal:
                self._narrow(first, refusal)
                return
            reached = next_offset
            if done.failure is not None:
                reached = min(max(done.failure.offset, self._offset) + 1, next_offset)
                self._records_max = _RECORDS_AFTER_FAILURE
                self._report(reached - 1, done.failure.hint)
            else:
                self._records_max = min(2 * self._records_max, _RECORDS_MAX)
            try:
                self._write(done.sections, reached)
            except _UNACCEPTABLE as refusal:
                self._narrow(first, refusal)

        self._try(step)

    def _write(self, sections: Sequence[Section], reached: Offset) -> None:
        if not sections:
            place = self._place(reached)
            self._broker.groups.offsets.commit(self._group, place).then(
                partial(self._went_on, reached)
            )
            return
        built = bytearray()
        for section in sections:
            built += self._batch(section)
        self._writing = True
        self._broker.transactions.admit(self._name, self._who, self._target, enlists=True)
        appended = self._broker.log.append(self._target, memoryview(built), relayed=True)
        # The output first: a place that is known to be reached must not outlive it.
        self._broker.log.settle(appended, Ack.DURABLE).then(partial(self._written, reached))

    def _place(self, reached: Offset) -> dict[Partition, Committed]:
        """Groups outlive topics: the id says whose place it is."""
        return {self._source: Committed(reached, metadata=str(self._wanted.topic_id))}

    def _batch(self, section: Section) -> bytearray:
        header = _HEADER.pack(0, 0, -1, 2, 0, 0, 0, section.base_timestamp, 0, -1, -1, -1)
        try:
            built = kernels.fluvio_to_log(
                header,
                0,
                section.records,
                0,
                len(section.records),
                counted=True,
                attributes=batch.TRANSACTIONAL,
                headers=b"\0",
            )
        except Malformed as flaw:
            raise BatchCorrupt(f"what the SmartModule gave back: {flaw}") from flaw
        who = self._who
        _PRODUCER.pack_into(built, 43, who.producer_id, who.epoch, self._sequence)
        _CRC.pack_into(built, 17, kernels.crc32c(memoryview(built)[21:]))
        count = kernels.batch_header(built, 0).records
        self._sequence = (self._sequence + count) & _SEQUENCE_MASK
        return built

    def _written(self, reached: Offset, later: Later[Appended]) -> None:
        def step() -> None:
            _ = later.value
            self._broker.transactions.stage(
                self._name, self._who, self._group, self._place(reached), enlists=True
            ).then(partial(self._staged, reached))

        self._try(step)

    def _staged(self, reached: Offset, later: Later[None]) -> None:
        def step() -> None:
            _ = later.value
            self._broker.transactions.end(self._name, self._who, commit=True, bump=False).then(
                partial(self._went_on, reached)
            )

        self._try(step)

    def _went_on(self, reached: Offset, later: Later[None] | Later[Identity]) -> None:
        def step() -> None:
            _ = later.value
            self._writing = False
            self._offset = reached
            self._runtime.soon(lambda: self._try(self._read))

        self._try(step)


_UNACCEPTABLE: Final = (
    BatchCorrupt,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    UnsupportedFormat,
)
"""How a log refuses records for what they are: they are refused again however often they come."""


def _parts(opened: Opened, offset: Offset) -> list[_Part]:
    """The records from `offset` on as modules are shown them."""
    if not opened.batches:
        return []
    try:
        record_set, _ = kernels.log_to_fluvio(opened.batches, 0, len(opened.batches), offset)
    except Malformed as flaw:
        raise BatchCorrupt(f"a batch of the log: {flaw}; check the disk") from flaw
    found: list[_Part] = []
    position = 0
    view = memoryview(record_set)
    while position < len(view):
        fields = _HEADER.unpack_from(view, position)
        end = position + fields[1] + 12
        start = position + _HEADER.size + (_CRC.size if fields[5] & 0x10 else 0)
        count = int.from_bytes(view[start : start + 4], "big")
        found.append(_Part(fields[0], count, Section(fields[0], fields[7], view[start:end])))
        position = end
    return found
