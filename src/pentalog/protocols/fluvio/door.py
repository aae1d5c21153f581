"""What all Fluvio connections of one broker share: who watches which objects, and their changes.

A change is told to everybody who watches partitions before it is told to those who watch topics:
clients use a topic as soon as they see it, and look up its partitions then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from pentalog.broker.council import Council
from pentalog.broker.knowledge import Knowledge
from pentalog.broker.port import Broker, Log, Topic, Topics
from pentalog.broker.transformation import SmartModule, SmartModules
from pentalog.model.errors import BrokerError, UnsupportedVersion
from pentalog.model.types import Marks, Partition
from pentalog.protocols.fluvio import objects
from pentalog.protocols.fluvio.codec import Writer, is_told
from pentalog.protocols.fluvio.spus import Spu, Spus

Objects = Mapping[str, Any]
"""Topics, SmartModules or SPUs by name.  Never changed in place: a newer one takes its place."""

_UPDATE: Final = 0
_DELETE: Final = 1


class Watcher(Protocol):
    """Somebody who is told of changes."""

    label: str

    def tell(self) -> None:
        """There is something new."""


class _Told(NamedTuple):
    """A difference as it was last encoded: most watchers want the same one."""

    seen: Objects
    current: Objects
    version: int
    summary: bool
    body: bytearray


class Door:
    def __init__(
        self,
        log: Log,
        topics: Topics,
        smart_modules: SmartModules,
        council: Council,
        knowledge: Knowledge,
    ) -> None:
        self._log = log
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
        topics.watch(self._topics_changed)
        smart_modules.watch(self._modules_changed)
        council.watch(self._spus_changed)

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

    def snapshot(self, label: str, seen: Objects, version: int, *, summary: bool) -> bytearray:
        """An update that says everything."""
        epoch = self._epochs[label] if label == objects.SPU else self._epoch
        body = Writer(version).i64(epoch).u32(0)
        self.write_all(body, label, seen, summary=summary)
        return body.out

    def difference(
        self, label: str, seen: Objects, current: Objects, version: int, *, summary: bool
    ) -> bytearray | None:
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
            body = self._encode_difference(label, seen, current, version, summary=summary)
            told = self._told[label] = _Told(seen, current, version, summary, body)
        return told.body

    def write_all(
        self, writer: Writer, label: str, chosen: Objects, *, summary: bool, system: bool = True
    ) -> None:
        """Every object, counted; with `system` also the system topic's."""
        entries: list[tuple[object, int]] = [(None, 0)] if system and label in _SPLIT else []
        for found in chosen.values():
            entries += [(found, index) for index in _indexes(label, found)]
        writer.many(entries, lambda entry: self._write(writer, label, *entry, summary=summary))

    def _encode_difference(
        self, label: str, seen: Objects, current: Objects, version: int, *, summary: bool
    ) -> bytearray:
        changes: list[tuple[int, object, int]] = []
        for name, old in seen.items():
            new = current.get(name)
            kept = range(0) if new is None else _indexes(label, new)
            changes += [
                (_DELETE, old, index) for index in _indexes(label, old) if index not in kept
            ]
        for name, new in current.items():
            old = seen.get(name)
            if old is not new and not (label == objects.SPU and old == new):
                changes += [(_UPDATE, new, index) for index in _indexes(label, new)]
        body = Writer(version).i64(self._epochs[label])

        def write(change: tuple[int, object, int]) -> None:
            kind, found, index = change
            body.u8(kind)
            self._write(body, label, found, index, summary=summary)

        body.many(changes, write).u32(0)
        return body.out

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

    def _topics_changed(self) -> None:
        before, after = self._known, _tellable(self._topics)
        for name, topic in after.items():
            if name in before and objects.alike(before[name], topic):
                after[name] = before[name]
        if after.keys() == before.keys() and all(after[name] is before[name] for name in after):
            return
        self._know(after)
        if not self._knowledge.current and self._watchers.get(objects.TOPIC):
            # Others may have made them: how they are set is told when it is known.
            for name in after.keys() - before.keys():
                self._knowledge.topic(name)

    def _know(self, topics: Objects) -> None:
        self._known = topics
        for label in _SPLIT:
            self._tell(label)

    def _modules_changed(self) -> None:
        self._modules = {module.name: module for module in self._smart_modules.all()}
        self._tell(objects.SMART_MODULE)

    def _spus_changed(self) -> None:
        if self.spus.changed():
            self._tell(objects.SPU)
            # Others lead now: as new objects, all of them are told once more.
            self._know({name: replace(topic) for name, topic in _tellable(self._topics).items()})

    def _tell(self, label: str) -> None:
        self._epoch += 1
        self._epochs[label] = self._epoch
        for watcher in list(self._watchers.get(label, ())):
            watcher.tell()
        # Kept no longer than this turn: it holds what was seen, which may be much.
        self._told.pop(label, None)


_SPLIT: Final = (objects.PARTITION, objects.TOPIC)
"""Both are made from topics, and told in this order."""
_NOTHING: Final[Objects] = {}


def _tellable(topics: Topics) -> dict[str, Topic]:
    """The topics clients can be told of; a partition's key is a text that holds the name."""
    every = topics.all()
    return {
        topic.name: topic
        for topic in every
        if topic.name and is_told(f"{topic.name}-{topic.partitions}")
    }


def _indexes(label: str, found: object) -> range:
    if label == objects.PARTITION and isinstance(found, Topic):
        return range(found.partitions)
    return range(1)


def door_of(broker: Broker) -> Door:
    """The one door of a broker, made when its first connection opens."""
    return broker.share(
        "fluvio",
        lambda: Door(
            broker.log, broker.topics, broker.smart_modules, broker.council, broker.knowledge
        ),
    )
