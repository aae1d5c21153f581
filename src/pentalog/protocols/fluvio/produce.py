"""Produce: batches in, one answer entry for each request entry, in their order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from pentalog import kernels
from pentalog.broker.port import Admitted, Broker, Topic
from pentalog.broker.transformation import Chain, Section, Transformed
from pentalog.kernels import Facts
from pentalog.model import compression
from pentalog.model.buffers import join_buffers
from pentalog.model.errors import (
    BatchCorrupt,
    BrokerError,
    PartitionNotFound,
    RecordTooLarge,
    TopicNotFound,
)
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import Ack, Appended, Partition
from pentalog.protocols.fluvio import errors, messages, records, rights, transforms
from pentalog.protocols.fluvio.codec import Undecodable, Writer
from pentalog.protocols.fluvio.errors import WireError
from pentalog.protocols.fluvio.messages import Produce
from pentalog.protocols.fluvio.session import Answer, Call, raise_error
from pentalog.protocols.fluvio.transforms import INLINE_BYTES_MAX, LANE, TRANSLATED_BYTES_MAX
from pentalog.runtime import Timer

Translate: TypeAlias = Callable[[memoryview, int], list[bytearray]]
"""The log's batches of what lies in a buffer, within so many bytes once opened."""
Sections: TypeAlias = list[tuple[Section, bytes]]
"""The batches of one entry as SmartModules are shown them, each with the headers of its records."""

_log: Final = logging.getLogger(__name__)
SEVERAL_BYTES_MAX: Final = 32 << 20
"""A request for several partitions: as much as a producer sends at once, and little to copy."""
_ENTRIES_AT_ONCE: Final = 4
"""Partitions that are served without a pause."""


class Entry:
    """One partition of a request, and what became of its batches."""

    __slots__ = ("appended", "at", "error", "left", "pending", "refusal", "written")

    def __init__(self, at: Partition) -> None:
        self.at = at
        self.appended: Appended | None = None
        self.error = errors.FINE
        self.left = 0
        """Batches the log has not settled."""
        self.written: list[tuple[int, Appended]] = []
        """Those it has, each with the number of its first record in the request."""
        self.refusal: BrokerError | None = None
        """Of the first batch that was refused."""
        self.pending = False

    def refuse(self, refusal: BrokerError) -> None:
        if isinstance(refusal, TopicNotFound | PartitionNotFound):
            self.error = WireError(errors.NOT_LEADER)
        else:
            self.error = errors.error_of(refusal)

    def conclude(self) -> None:
        """Every batch is written or refused; whoever wrote a part shall know which."""
        if self.refusal is None:
            return
        self.refuse(self.refusal)
        if self.written:
            parts = ", ".join(
                f"records {first}..{first + there.next_offset - there.base_offset - 1} at offset "
                f"{there.base_offset}"
                for first, there in sorted(self.written)
            )
            self.error = errors.other(
                f"only a part was written: {parts}; the rest was refused ({self.refusal}): send "
                "that again"
            )


class Writing:
    """A request whose answer waits for the disk, for SmartModules or for its time to be up."""

    def __init__(self, call: Call, wish: Produce, size_bytes: int) -> None:
        self.call = call
        self.wish = wish
        self.size_bytes = size_bytes
        self.entries: list[list[Entry]] = []
        self.waiting = 0
        self._answer: Answer | None = None
        self._timer: Timer | None = None

    def wait(self, entry: Entry) -> None:
        entry.pending = True
        self.waiting += 1

    def arrived(self, entry: Entry) -> None:
        """An entry that was waited for is there, with what `entry` says by now."""
        if not entry.pending:
            return
        entry.pending = False
        self.waiting -= 1
        if self._answer is not None and not self.waiting:
            self._finish()

    def append(self, entry: Entry, batches: Sequence[bytearray]) -> Later[Admitted] | None:
        """Put the batches of an entry into the log; answered when they are safe enough.

        Returns what the log waits for before it takes them, if it does.  An engine that takes
        one batch at a time may put others' records between them.
        """
        log = self.call.context.broker.log
        _check_sizes(_topic_of(self.call.context.broker, entry.at), batches)
        if len(batches) > 1 and self.call.context.broker.knowledge.current:
            batches = [bytearray(b"").join(batches)]
        if len(batches) == 1:
            view = memoryview(batches[0])
            facts = kernels.check_batches(view, 0, len(view))
            admission = log.admission(entry.at, view, facts)
            if admission is None:
                self._write(entry, [(view, facts, None)])
            elif admission.ready:
                self._write(entry, [admission.value])
            else:
                if not entry.pending:
                    self.wait(entry)
                admission.then(partial(self._admitted, entry))
                return admission
            return None
        self._write(entry, [(memoryview(built), None, None) for built in batches])
        return None

    def _admitted(self, entry: Entry, later: Later[Admitted]) -> None:
        if not entry.pending:
            return
        try:
            self._write(entry, [later.value])
        except BrokerError as refusal:
            entry.refuse(refusal)
            self.arrived(entry)

    def _write(
        self,
        entry: Entry,
        batches: Sequence[tuple[memoryview, Facts | None, LogSettings | None]],
    ) -> None:
        log = self.call.context.broker.log
        ack = Ack.DURABLE if self.wish.committed else Ack.WRITTEN
        entry.left = len(batches)
        first = 0
        for number, (built, facts, opened) in enumerate(batches):
            try:
                appended = log.append(entry.at, built, facts, given=True, opened=opened)
            except BrokerError as refusal:
                if not number:
                    raise
                entry.refusal = entry.refusal or refusal
                entry.left -= len(batches) - number
                if not entry.left:
                    entry.conclude()
                    self.arrived(entry)
                return
            entry.appended = entry.appended or appended
            settled = log.settle(appended, ack)
            if not (settled.ready or entry.pending):
                self.wait(entry)
            settled.then(partial(self._settled, entry, first))
            if len(batches) > 1:
                first += kernels.batch_header(built, 0).records

    def _settled(self, entry: Entry, first: int, settled: Later[Appended]) -> None:
        try:
            appended = settled.value
        except BrokerError as refusal:
            entry.refusal = entry.refusal or refusal
        else:
            entry.written.append((first, appended))
            if entry.appended is None or entry.appended.base_offset < 0:
                entry.appended = appended
        entry.left -= 1
        if not entry.left:
            entry.conclude()
            self.arrived(entry)

    def conclude(self) -> None:
        """Everything has been started: answer, now or when it is there."""
        if not self.waiting:
            self.call.answer(self._body())
            return
        self._answer = self.call.place()
        self._timer = self.call.context.runtime.after(self.wish.timeout_ms, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        for entry in (entry for topic in self.entries for entry in topic if entry.pending):
            entry.pending = False
            entry.error = errors.timed_out(self.wish.timeout_ms)
        self.waiting = 0
        self._finish()

    def _finish(self) -> None:
        answer, self._answer = self._answer, None
        if self._timer is not None:
            self._timer.cancel()
        if answer is not None:
            answer.fill(self._body())

    def _body(self) -> Writer:
        body = self.call.writer()
        body.u32(len(self.entries))
        for topic, entries in zip(self.wish.topics, self.entries, strict=True):
            body.text(topic.name).u32(len(entries))
            for entry in entries:
                self._write_entry(body, entry)
        if body.version >= 1:
            body.i32(self.call.context.usage.write_delay_ms(self.size_bytes))
        return body

    def _write_entry(self, body: Writer, entry: Entry) -> None:
        appended = entry.appended
        body.u32(entry.at.index)
        (entry.error.bare if self.wish.documented else entry.error).write(body)
        body.i64(0 if appended is None else appended.base_offset)
        if body.version >= 2:
            body.i64(-1 if appended is None else appended.timestamp_ms)
        if body.version >= 5:
            body.i64(0 if appended is None else appended.start_offset)


def serve(call: Call) -> None:
    size_bytes = call.reader.end - call.reader.at
    wish = messages.read_produce(call.reader)
    at = [(topic.name, part.index) for topic in wish.topics for part in topic.partitions]
    call.know(lambda known: [known.topic(*where) for where in at])
    writing = Writing(call, wish, size_bytes)
    if wish.links:
        Transforming(writing).start()
        writing.conclude()
        return
    if len(at) > _ENTRIES_AT_ONCE and size_bytes > SEVERAL_BYTES_MAX:
        raise Undecodable(
            f"{size_bytes} bytes for {len(at)} partitions; accepted are {SEVERAL_BYTES_MAX} for "
            f"more than {_ENTRIES_AT_ONCE}: send several requests"
        )
    Taking(writing).start()
    writing.conclude()


class Taking:
    """The entries of a request, translated and appended in order.

    What takes long is done on a lane; later requests of the connection wait meanwhile.
    """

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._data = writing.call.reader.data
        self._left: list[tuple[Entry, list[tuple[int, int]]]] = []
        self._let_go: Callable[[], None] | None = None

    def start(self) -> None:
        for topic in self._writing.wish.topics:
            entries = []
            for part in topic.partitions:
                entry = Entry(Partition(topic.name, part.index))
                entries.append(entry)
                self._left.append((entry, part.batches))
            self._writing.entries.append(entries)
        self._left.reverse()
        if len(self._left) > _ENTRIES_AT_ONCE:
            self._detach()
        self._serve()

    def _serve(self) -> None:
        """Serve the entries in one go, or in slices if the request was detached."""
        if self._let_go is None:
            for _ in self._steps():
                pass
        else:
            slices = self._writing.call.context.slices
            slices.run(self._steps(), raise_error, unconditional=True)

    def _steps(self) -> Iterator[None]:
        while self._left:
            entry, batches = self._left[-1]
            try:
                rights.check(self._writing.call, rights.SPU, entry.at.topic)
                translate = self._translation(entry.at, batches)
                size_bytes = sum(end - at for at, end in batches)
                bytes_max = compression.opened_bytes_max(size_bytes)
                if size_bytes > TRANSLATED_BYTES_MAX:
                    self._offload(translate, bytes_max)
                    return
                try:
                    translated = translate(self._data, min(INLINE_BYTES_MAX, bytes_max))
                except RecordTooLarge:
                    self._offload(translate, bytes_max)
                    return
                waited = self._append(entry, translated)
            except BrokerError as refusal:
                entry.refuse(refusal)
                self._writing.arrived(entry)
                waited = None
            self._left.pop()
            if waited is not None:
                if self._let_go is None:
                    self._detach()
                waited.then(lambda _: self._serve())
                return
            yield
        if self._let_go is not None:
            self._let_go()

    def _translation(self, at: Partition, batches: list[tuple[int, int]]) -> Translate:
        broker = self._writing.call.context.broker
        topic = _topic_of(broker, at)

        def translate(data: memoryview, bytes_max: int) -> list[bytearray]:
            return records.to_log(
                data,
                batches,
                bytes_max=bytes_max,
                compression_type=topic.settings.compression,
                joined_bytes_max=_joined_bytes_max(broker, topic),
            )

        return translate

    def _offload(self, translate: Translate, bytes_max: int) -> None:
        """Translate elsewhere, from a copy: the receive buffer is not kept."""
        if self._let_go is None:
            self._detach()
        work = partial(translate, self._data, bytes_max)
        self._writing.call.context.runtime.offload(LANE, work, self._translated)

    def _detach(self) -> None:
        """Let the request outlive this turn: copy it, and let later requests wait."""
        self._let_go = self._writing.call.session.replies.hold()
        if self._left:
            self._data = memoryview(join_buffers(self._data))
        for entry, _ in self._left:
            self._writing.wait(entry)

    def _translated(self, translated: list[bytearray] | None, error: BaseException | None) -> None:
        entry, _ = self._left.pop()
        try:
            if isinstance(error, BrokerError):
                raise error
            if translated is None:
                _log.error("a batch for %s could not be translated", entry.at, exc_info=error)
                raise BatchCorrupt("the batch could not be opened")
            waited = self._append(entry, translated) if entry.pending else None
        except BrokerError as refusal:
            entry.refuse(refusal)
            self._writing.arrived(entry)
            waited = None
        if waited is None:
            self._serve()
        else:
            waited.then(lambda _: self._serve())

    def _append(self, entry: Entry, translated: list[bytearray]) -> Later[Admitted] | None:
        if translated:
            return self._writing.append(entry, translated)
        self._writing.call.context.broker.log.marks(entry.at)
        self._writing.arrived(entry)
        return None


class Transforming:
    """A request whose batches pass through SmartModules, one entry after the other.

    Later requests of the connection wait until all of them are appended or refused.
    """

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._call = writing.call
        self._left: list[tuple[Entry, Sections]] = []
        self._chain: Chain | None = None
        self._let_go = self._call.session.replies.hold()

    def start(self) -> None:
        """Open the batches: here if they are small, else on a lane."""
        waiting: list[Entry] = []
        wanted: list[_Wanted] = []
        for topic in self._writing.wish.topics:
            entries = []
            for part in topic.partitions:
                entry = Entry(Partition(topic.name, part.index))
                entries.append(entry)
                try:
                    wanted.append(self._wanted(entry.at, part.batches))
                except BrokerError as refusal:
                    entry.refuse(refusal)
                else:
                    waiting.append(entry)
                    self._writing.wait(entry)
            self._writing.entries.append(entries)
        data, size_bytes = self._call.reader.data, self._writing.size_bytes
        if size_bytes <= INLINE_BYTES_MAX:
            found = _open_entries(data, wanted, INLINE_BYTES_MAX)
            if not any(isinstance(each, RecordTooLarge) for each in found):
                self._opened(waiting, found, None)
                return
        bytes_max = compression.opened_bytes_max(size_bytes)
        kept = memoryview(join_buffers(data[: self._call.reader.end]))
        work = partial(_open_entries, kept, wanted, bytes_max)
        self._call.context.runtime.offload(LANE, work, partial(self._opened, waiting))

    def _wanted(self, at: Partition, batches: list[tuple[int, int]]) -> _Wanted:
        rights.check(self._call, rights.SPU, at.topic)
        topic = _topic_of(self._call.context.broker, at)
        return _Wanted(batches, topic.settings.compression)

    def _opened(
        self,
        waiting: list[Entry],
        found: list[Sections | BrokerError] | None,
        error: BaseException | None,
    ) -> None:
        if found is None:
            _log.error("batches for SmartModules could not be opened", exc_info=error)
            found = [BatchCorrupt("the batches could not be opened")] * len(waiting)
        for entry, sections in zip(waiting, found, strict=True):
            if isinstance(sections, BrokerError):
                entry.refuse(sections)
            elif any(headers != sections[0][1] for _, headers in sections):
                text = "batches of several schemas in one entry; send each in an entry of its own"
                entry.error = errors.other(text)
            elif sections:
                self._left.append((entry, sections))
                continue
            self._writing.arrived(entry)
        if self._left:
            self._begin()
        else:
            self._next()

    def _begin(self) -> None:
        modules = self._call.context.broker.smart_modules
        try:
            chain = modules.chain(
                self._writing.wish.links,
                version=self._call.version,
                owner=self._call.context.access.owner,
            )
        except BrokerError as refusal:
            self._refuse_all(transforms.chain_error(refusal))
            self._next()
        else:
            chain.then(self._started)

    def _refuse_all(self, error: WireError) -> None:
        for entry, _ in self._left:
            entry.error = error
            self._writing.arrived(entry)
        self._left.clear()

    def _started(self, later: Later[Chain]) -> None:
        try:
            self._chain = later.value
            at = self._left[0][0].at
            looked = transforms.looked_back(
                self._call.context, at, self._chain, self._writing.wish.links
            )
        except BrokerError as refusal:
            self._refuse_all(transforms.chain_error(refusal))
            self._next()
        else:
            looked.then(self._looked)

    def _looked(self, later: Later[None]) -> None:
        try:
            _ = later.value
        except BrokerError as refusal:
            self._refuse_all(transforms.chain_error(refusal))
        self._next()

    def _next(self) -> None:
        if not self._left:
            if self._chain is not None:
                self._chain.close()
            self._let_go()
            return
        assert self._chain is not None, "without one, all entries are refused"
        entry, found = self._left[0]
        run = self._chain.run([section for section, _ in found])
        run.then(partial(self._transformed, entry, found[0][1]))

    def _transformed(self, entry: Entry, headers: bytes, later: Later[Transformed]) -> None:
        self._left.pop(0)
        try:
            done = later.value
        except BrokerError as refusal:
            entry.refuse(refusal)
        else:
            if done.failure is not None:
                entry.error = transforms.runtime_error(done.failure)
            elif done.sections and entry.pending:
                self._build(entry, done.sections, headers)
                return
        self._writing.arrived(entry)
        self._next()

    def _build(self, entry: Entry, sections: Sequence[Section], headers: bytes) -> None:
        """Make batches of what modules gave back: here if it is little, else on a lane."""
        work = partial(transforms.log_batches_of, sections, headers)
        built = partial(self._built, entry)
        if transforms.size_of(sections) > INLINE_BYTES_MAX:
            self._call.context.runtime.offload(LANE, work, built)
            return
        try:
            batches = work()
        except BatchCorrupt as refusal:
            built(None, refusal)
        else:
            built(batches, None)

    def _built(
        self, entry: Entry, batches: list[bytearray] | None, error: BaseException | None
    ) -> None:
        waited = None
        try:
            if isinstance(error, BrokerError):
                raise error
            if batches is None:
                _log.error("no batches could be made for %s", entry.at, exc_info=error)
                raise BatchCorrupt("what the SmartModule gave back could not be put into batches")
            if entry.pending:
                batches = _joined(self._call.context.broker, entry.at, batches)
                waited = self._writing.append(entry, batches)
        except BrokerError as refusal:
            entry.refuse(refusal)
            self._writing.arrived(entry)
        if waited is None:
            self._next()
        else:
            waited.then(lambda _: self._next())


class _Wanted(NamedTuple):
    """The batches of one entry, and how the topic lets them be compressed."""

    batches: list[tuple[int, int]]
    compression_type: str


def _open_entries(
    data: memoryview, wanted: Sequence[_Wanted], bytes_max: int
) -> list[Sections | BrokerError]:
    """Return the sections of each entry, or why it is refused; runs on any thread."""
    found: list[Sections | BrokerError] = []
    for batches, compression_type in wanted:
        try:
            sections = records.sections(
                data, batches, bytes_max=bytes_max, compression_type=compression_type
            )
        except BrokerError as refusal:
            found.append(refusal)
        else:
            bytes_max -= sum(len(section.records) for section, _ in sections)
            found.append(sections)
    return found


def _joined(broker: Broker, at: Partition, batches: list[bytearray]) -> list[bytearray]:
    bytes_max = _joined_bytes_max(broker, _topic_of(broker, at))
    return records.joined(bytearray(b"").join(batches), bytes_max) if bytes_max else batches


def _check_sizes(topic: Topic, batches: Sequence[bytearray]) -> None:
    """Refuse all of them before one is written, if one cannot be."""
    bytes_max = topic.settings.message_bytes_max
    size = max(map(len, batches))
    if size > bytes_max:
        raise RecordTooLarge(
            f"a batch of {size} bytes; accepted are {bytes_max} (max.message.bytes of {topic.name})"
        )


def _joined_bytes_max(broker: Broker, topic: Topic) -> int:
    """An engine of others takes one batch at a time; 0: ours takes all of them at once."""
    return 0 if broker.knowledge.current else topic.settings.message_bytes_max


def _topic_of(broker: Broker, at: Partition) -> Topic:
    topic = broker.topics.get(at.topic)
    if at.index >= topic.partitions:
        raise PartitionNotFound(f"partition {at.index}; it has 0..{topic.partitions - 1}")
    return topic
