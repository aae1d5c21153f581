"""What all Fluvio connections of one broker share: who watches which objects, and their changes.

A change is told to everybody who watches partitions before it is told to those who watch topics:
clients use a topic as soon as they see it, and look up its partitions then.  With many topics or
watchers this takes long, so it is done in slices; changes made meanwhile are told together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from pentalog.broker.council import Council
from pentalog.broker.knowledge import Knowledge
from pentalog.broker.port import Broker, Log, Topic, Topics
from pentalog.broker.transformation import SmartModule, SmartModules
from pentalog.model.errors import BrokerError, UnsupportedVersion
from pentalog.model.types import Marks, Partition
from pentalog.protocols.fluvio import objects
from pentalog.protocols.fluvio.codec import Undecodable, Writer, is_told
from pentalog.protocols.fluvio.spus import Spu, Spus
from pentalog.runtime import Slices

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in steps, with a result."""
Objects = Mapping[str, Any]
"""Topics, SmartModules or SPUs by name.  Never changed in place: a newer one takes its place."""

_UPDATE: Final = 0
_DELETE: Final = 1


class Watcher(Protocol):
    """Somebody who is told of changes."""

    label: str

    def telling(self) -> Iterator[None]:
        """Send what is new, in steps."""


class _Told(NamedTuple):
    """A difference as it was last encoded: most watchers want the same one."""

    seen: Objects
    current: Objects
    version: int
    summary: bool
    body: Writer


class Door:
    def __init__(
        self,
        log: Log,
        topics: Topics,
        smart_modules: SmartModules,
        council: Council,
        knowledge: Knowledge,
        slices: Slices,
    ) -> None:
        self._log = log
        # Those of the first client's address: for all clients, so they never wait for it.
        self._run = partial(slices.run, owner=self, unconditional=True)
        self._changes: list[Callable[[], Iterator[None]]] = []
        """What has changed and is not told yet, in order."""
        self._telling = False
        self.spus = Spus(council)
        self._topics = topics
        self._smart_modules = smart_modules
        self._knowledge = knowledge
        self._watchers: dict[str, dict[Watcher, None]] = {}
        self._told: dict[str, _Told] = {}
        self._epochs = dict.fromkeys(objects.LABELS, 1)
        self._epoch = 1
        self._known: Objects = _tellable(topics)
        self._modules: Objects = {module.name: module for module in smart_modules.all()}
        topics.watch(partial(self._changed, self._topics_changed))
        smart_modules.watch(partial(self._changed, self._modules_changed))
        council.watch(partial(self._changed, self._spus_changed))

    def watch(self, watcher: Watcher) -> None:
        self._watchers.setdefault(watcher.label, {})[watcher] = None

    def forget(self, watcher: Watcher) -> None:
        self._watchers.get(watcher.label, {}).pop(watcher, None)

    def seen(self, label: str) -> Objects:
        """What there is to be seen of these objects now.

        SPUs are not among them: they look different to each client.
        """
        if label in (objects.TOPIC, objects.PARTITION):
            return self._known
        return self._modules if label == objects.SMART_MODULE else _NOTHING

    def snapshot(self, label: str, seen: Objects, version: int, *, summary: bool) -> Steps[Writer]:
        """An update that says everything."""
        epoch = self._epochs[label] if label == objects.SPU else self._epoch
        body = Writer(version).i64(epoch).u32(0)
        yield from self.write_all(body, label, seen, summary=summary)
        return body

    def difference(
        self, label: str, seen: Objects, current: Objects, version: int, *, summary: bool
    ) -> Steps[Writer | None]:
        """An update that leads from what was seen to what there is; None if that is the same."""
        if seen is current:
            return None
        told = self._told.get(label)
        if (
            told is None
            or told.seen is not seen
            or told.current is not current
            or (told.version, told.summary) != (version, summary)
        ):
            body = yield from self._encode_difference(
                label, seen, current, version, summary=summary
            )
            told = self._told[label] = _Told(seen, current, version, summary, body)
        return told.body

    def write_all(
        self, writer: Writer, label: str, chosen: Objects, *, summary: bool, system: bool = True
    ) -> Iterator[None]:
        """Every object, counted; with `system` also the system topic's."""
        is_told = system and label in _SPLIT
        count = sum(len(_indexes(label, found)) for found in chosen.values())
        writer.u32(count + is_told)
        if is_told:
            self._write(writer, label, None, 0, summary=summary)
        yield
        for found in chosen.values():
            for index in _indexes(label, found):
                self._write(writer, label, found, index, summary=summary)
                yield
            _check_size(writer)

    def _encode_difference(
        self, label: str, seen: Objects, current: Objects, version: int, *, summary: bool
    ) -> Steps[Writer]:
        changes: list[tuple[int, object, int]] = []
        for number, (name, old) in enumerate(seen.items()):
            new = current.get(name)
            if new is not old:
                kept = range(0) if new is None else _indexes(label, new)
                changes += [
                    (_DELETE, old, index) for index in _indexes(label, old) if index not in kept
                ]
            if not number % _NAMES_PER_STEP:
                yield
        for number, (name, new) in enumerate(current.items()):
            old = seen.get(name)
            if old is not new and not (label == objects.SPU and old == new):
                changes += [(_UPDATE, new, index) for index in _indexes(label, new)]
            if not number % _NAMES_PER_STEP:
                yield
        body = Writer(version).i64(self._epochs[label]).u32(len(changes))
        for kind, found, index in changes:
            body.u8(kind)
            self._write(body, label, found, index, summary=summary)
            yield
        return body.u32(0)

    def _write(
        self, writer: Writer, label: str, found: object, index: int, *, summary: bool
    ) -> None:
        if isinstance(found, SmartModule):
            objects.write_module(writer, found, summary=summary)
            return
        if isinstance(found, Spu):
            objects.write_spu(writer, found)
            return
        assert found is None or isinstance(found, Topic)
        name = objects.OFFSETS_TOPIC if found is None else found.name
        if label == objects.TOPIC:
            objects.write_topic(writer, found, partial(self.spus.leader, name))
            return
        marks, size_bytes = (None, 0) if found is None else self._state_of(found, index)
        leader = self.spus.leader(name, index)
        objects.write_partition(writer, found, index, leader, marks, size_bytes)

    def _state_of(self, topic: Topic, index: int) -> tuple[Marks | None, int]:
        at = Partition(topic.name, index)
        try:
            marks = self._log.marks(at)
        except BrokerError:  # it is being deleted
            return None, 0
        try:
            return marks, self._log.size_bytes(at)
        except UnsupportedVersion:
            return marks, objects.SIZE_UNKNOWN

    def _changed(self, update: Callable[[], Iterator[None]]) -> None:
        """Tell of a change, after those before it; at once if that does not take long."""
        if update not in self._changes:
            self._changes.append(update)
        if not self._telling:
            self._telling = True
            self._run(self._tell_changes(), self._told_changes)

    def _tell_changes(self) -> Iterator[None]:
        while self._changes:
            yield from self._changes.pop(0)()

    def _told_changes(self, error: Exception | None) -> None:
        self._telling = False
        if error is not None:
            raise error

    def tell(self, watcher: Watcher) -> None:
        """Tell one watcher, which had no room before."""
        self._run(watcher.telling(), _raise)

    def _topics_changed(self) -> Iterator[None]:
        before: Objects = self._known
        after: dict[str, Topic] = {}
        same = True
        for number, topic in enumerate(self._topics.all()):
            known = before.get(topic.name)
            if known is not None and (known is topic or objects.alike(known, topic)):
                after[topic.name] = known
            elif _is_tellable(topic):
                after[topic.name] = topic
                same = False
            if not number % _NAMES_PER_STEP:
                yield
        if same and len(after) == len(before):
            return
        yield from self._know(after)
        if not self._knowledge.current and self._watchers.get(objects.TOPIC):
            # Others may have made them: how they are set is told when it is known.
            for name in after.keys() - before.keys():
                self._knowledge.topic(name)

    def _know(self, topics: Objects) -> Iterator[None]:
        self._known = topics
        for label in _SPLIT:
            yield from self._tell(label)

    def _modules_changed(self) -> Iterator[None]:
        self._modules = {module.name: module for module in self._smart_modules.all()}
        return self._tell(objects.SMART_MODULE)

    def _spus_changed(self) -> Iterator[None]:
        if self.spus.changed():
            yield from self._tell(objects.SPU)
            # Others lead now: as new objects, all of them are told once more.
            known = {name: replace(topic) for name, topic in _tellable(self._topics).items()}
            yield from self._know(known)

    def _tell(self, label: str) -> Iterator[None]:
        self._epoch += 1
        self._epochs[label] = self._epoch
        for watcher in list(self._watchers.get(label, ())):
            yield from watcher.telling()
            yield
        # Kept no longer than this: it holds what was seen, which may be much.
        self._told.pop(label, None)


_NAMES_PER_STEP: Final = 256
ANSWER_BYTES_MAX: Final = 256 << 20
"""Objects told at once; what a client asks for beyond that is refused."""
_SPLIT: Final = (objects.PARTITION, objects.TOPIC)
"""Both are made from topics, and told in this order."""
_NOTHING: Final[Objects] = {}


def _tellable(topics: Topics) -> dict[str, Topic]:
    """The topics clients can be told of; a partition's key is a text that holds the name."""
    return {topic.name: topic for topic in topics.all() if _is_tellable(topic)}


def _is_tellable(topic: Topic) -> bool:
    return bool(topic.name) and is_told(f"{topic.name}-{topic.partitions}")


def _indexes(label: str, found: object) -> range:
    if label == objects.PARTITION and isinstance(found, Topic):
        return range(found.partitions)
    return range(1)


def _check_size(writer: Writer) -> None:
    if writer.size > ANSWER_BYTES_MAX:
        raise Undecodable(
            f"objects of more than {ANSWER_BYTES_MAX} bytes asked for at once: use filters"
        )


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def door_of(broker: Broker, slices: Slices) -> Door:
    """The one door of a broker, made when its first connection opens."""
    return broker.share(
        "fluvio",
        lambda: Door(
            broker.log,
            broker.topics,
            broker.smart_modules,
            broker.council,
            broker.knowledge,
            slices,
        ),
    )
