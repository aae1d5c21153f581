"""Derived topics: the records of another topic as a SmartModule gives them back, exactly once.

For every partition of the source one transaction after the other holds the output and the place
in the source: after a crash both are there or neither.  A record the module fails at is
left out, and the log says so.
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
    SmartModuleNotFound,
    TopicNotFound,
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
_SEQUENCE_MASK: Final = (1 << 31) - 1
_VERSION: Final = 25
_HEADER: Final = struct.Struct(">qiibIhiqqqhi")
_PRODUCER: Final = struct.Struct(">qhi")
_CRC: Final = struct.Struct(">I")


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
        self._broker.log.open(
            self._source, self._offset, bytes_max=READ_BYTES_MAX, horizon=Horizon.STABLE
        ).then(self._opened)

    def _opened(self, later: Later[Opened]) -> None:
        def step() -> None:
            opened = later.value
            if opened.next_offset <= self._offset:
                self._wait()
                return
            sections = _sections(opened, self._offset)
            if sections and self._chain is not None:
                self._chain.run(sections).then(partial(self._transformed, opened.next_offset))
            else:
                self._offset = opened.next_offset
                # In a later turn: much may have to be stepped over.
                self._runtime.soon(lambda: self._try(self._read))

        self._try(step)

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

    def _transformed(self, next_offset: Offset, later: Later[Transformed]) -> None:
        def step() -> None:
            done = later.value
            reached = next_offset
            if done.failure is not None:
                reached = min(max(done.failure.offset, self._offset) + 1, next_offset)
                _log.warning(
                    "%s: record %d of %s is left out, the SmartModule %s fails at it: %s",
                    self._target,
                    reached - 1,
                    self._source,
                    self._link.module,
                    done.failure.hint,
                )
            self._write(done.sections, reached)

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
        appended = self._broker.log.append(self._target, memoryview(built))
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


def _sections(opened: Opened, offset: Offset) -> list[Section]:
    """The records from `offset` on as modules are shown them."""
    if not opened.batches:
        return []
    try:
        record_set, _ = kernels.log_to_fluvio(opened.batches, 0, len(opened.batches), offset)
    except Malformed as flaw:
        raise BatchCorrupt(f"a batch of the log: {flaw}; check the disk") from flaw
    found: list[Section] = []
    position = 0
    view = memoryview(record_set)
    while position < len(view):
        fields = _HEADER.unpack_from(view, position)
        end = position + fields[1] + 12
        start = position + _HEADER.size + (_CRC.size if fields[5] & 0x10 else 0)
        found.append(Section(fields[0], fields[7], view[start:end]))
        position = end
    return found
