"""The topics of one broker: names, ids, partition counts and settings.

Memory is the truth while the broker runs; the state file and the partitions' directories are what
the next life finds.  The two may disagree after a crash or when somebody copied a log directory
in; `open` makes them agree again.
"""

from __future__ import annotations

import errno
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pentalog.broker import settings as topic_settings
from pentalog.broker.port import Setting, Topic, TopicSpec
from pentalog.broker.sites import DIRECTORIES_PER_TURN, Sites
from pentalog.broker.state import State
from pentalog.config import Config
from pentalog.model.errors import (
    BrokerError,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    PartitionNotFound,
    StorageFailed,
    StorageFull,
    TopicExists,
    TopicNotFound,
)
from pentalog.model.ids import new_id
from pentalog.model.internal import INTERNAL
from pentalog.model.later import Later
from pentalog.model.types import Offset, Partition
from pentalog.runtime import Runtime

if TYPE_CHECKING:
    from pentalog.log.store import Store

_log: Final = logging.getLogger(__name__)

NAME_BYTES_MAX: Final = 65_535
"""What two bytes of length can tell: no protocol names a topic with more."""
SHOWN_MAX: Final = 260
"""Characters of a name that are shown in a refusal."""
RESERVED: Final = frozenset(
    {"__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state"}
)
"""Kafka's own bookkeeping: directories of these names belong to a Kafka broker."""
PARTITIONS_MAX: Final = 10_000
_STRANGERS_SHOWN: Final = 10
DELETED_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""How long deleted ids are remembered, should a power cut bring their directories back."""


def _after(first: Later[None], then: Callable[[], Later[None]]) -> Later[None]:
    """Return what is ready, or refused, after both."""
    both: Later[None] = Later()

    def second(later: Later[None]) -> None:
        try:
            _ = later.value
            next_one = then()
        except BrokerError as refusal:
            both.refuse(refusal)
        else:
            next_one.then(last)

    def last(later: Later[None]) -> None:
        try:
            both.fill(later.value)
        except BrokerError as refusal:
            both.refuse(refusal)

    first.then(second)
    return both


def name_flaw(name: str) -> str | None:
    """Why this cannot be the name of a topic, or None.

    Any text can, also an empty one; each protocol refuses, beyond that, what its own rules do.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return f"topic name {name[:SHOWN_MAX]!r} is no text that UTF-8 can write"
    if size > NAME_BYTES_MAX:
        return f"topic name {name[:30]!r}... has {size} bytes: {NAME_BYTES_MAX} are accepted"
    if name in RESERVED:
        return f"{name} is Kafka's own bookkeeping: choose another name"
    return None


class LocalTopics:
    """Implements `port.Topics` over the store and the state file."""

    def __init__(self, store: Store, state: State, runtime: Runtime, config: Config) -> None:
        self.version = 1
        self._store = store
        self._state = state
        self._runtime = runtime
        self._default_partitions = config.default_partitions
        self._defaults = dict(config.topic_defaults)
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._all: tuple[Topic, ...] | None = ()
        self._listed: tuple[Topic, ...] = ()
        self._trimmed = False
        """Starts have moved that are not on the disk yet."""
        self._sites = Sites(store, runtime, state.settle)
        self.checks: list[Callable[[Topic], None]] = []
        """Called before a topic is made or changed; may refuse."""
        self._watches: dict[object, Callable[[], None]] = {}
        self.on_deleted: list[Callable[[Topic], None]] = []
        """Called in the turn of a deletion, so that what they write is committed with it."""

    def open(self) -> None:
        """Read the state and make it agree with the directories the store found."""
        topic_settings.log_settings(self._defaults, {})
        self._check_partitions("default partitions", self._default_partitions, InvalidConfig)
        found = self._found()
        overrides: dict[str, dict[str, str]] = defaultdict(dict)
        for topic, name, value in self._state.rows("SELECT topic, name, value FROM topic_settings"):
            overrides[topic][name] = value
        rows = self._state.rows("SELECT name, topic_id, partitions FROM topics ORDER BY name")
        taken = {uuid.UUID(bytes=topic_id) for _, topic_id, _ in rows}
        for name, topic_id, partitions in rows:
            if partitions > PARTITIONS_MAX:
                raise ValueError(f"topic {name[:SHOWN_MAX]!r} with {partitions} partitions")
            known = self._known(name, uuid.UUID(bytes=topic_id), partitions, overrides[name])
            self._restore(known, found.pop(name, {}), taken)
        for name, directories in list(found.items()):
            if not self._without_unused(name, directories, 0) or self._left_over(name, directories):
                del found[name]
            else:
                self._adopt(name, directories)
        if strangers := sorted(found.keys() - INTERNAL.keys()):
            _log.warning(
                "%d topics taken over whose directories are here and whose settings are not known: "
                "%s%s",
                len(strangers),
                ", ".join(name[:SHOWN_MAX] for name in strangers[:_STRANGERS_SHOWN]),
                ", ..." if len(strangers) > _STRANGERS_SHOWN else "",
            )

    def create(self, spec: TopicSpec, *, dry_run: bool = False) -> Topic:
        if spec.name in self._topics:
            name = spec.name[:SHOWN_MAX]
            raise TopicExists(f"topic {name!r} exists already: choose another name")
        flaw = name_flaw(spec.name)
        if flaw is not None:
            raise InvalidTopic(flaw)
        count = self._default_partitions if spec.partitions is None else spec.partitions
        self._check_partitions(f"topic {spec.name[:SHOWN_MAX]!r}", count, InvalidPartitions)
        topic = self._known(spec.name, new_id(), count, topic_settings.tidy(spec.settings))
        for check in self.checks:
            check(topic)
        if not dry_run:
            self._state.check()
            made = self._sites.finish(topic, range(count))
            if made is not topic:
                self._unbury(made.topic_id)
                topic = made
            self._write_row(topic)
            self._write_overrides(topic.name, topic.overrides)
            self._set(topic)
        return topic

    def create_internal(self, name: str, topic_id: uuid.UUID) -> None:
        """Make a topic of the broker's own, of one partition."""
        if name in self._store.left_alone:
            raise StorageFailed(
                f"the data directory holds {name} of an Apache Kafka: move its directories away"
            )
        topic = self._known(name, topic_id, 1, INTERNAL[name])
        self._state.check()
        self._sites.make(topic, range(1))
        self._write_row(topic)
        self._write_overrides(name, topic.overrides)
        self._set(topic)

    def prepare(self, spec: TopicSpec) -> Later[None]:
        deletion = self._sites.deleting(spec.name)
        if deletion is not None and not deletion.ready:
            # To make the new directories moves the old ones away; a topic that a crash brings
            # back has its records, so this is not done before the deletion is on the disk.
            return _after(deletion, lambda: self.prepare(spec))
        known = self._topics.get(spec.name)
        if known is None:
            topic, start = self.create(spec, dry_run=True), 0
        else:
            count = known.partitions if spec.partitions is None else spec.partitions
            self.grow(spec.name, count, dry_run=True)
            topic, start = replace(known, partitions=count), known.partitions
        under_way = self._sites.building(spec.name)
        if under_way is not None:
            return under_way
        if topic.partitions - start <= DIRECTORIES_PER_TURN:
            return Later.now(None)
        self._state.check()
        if known is None:
            # Until it is created: should we be killed meanwhile, the next life clears it away.
            self._bury(topic.topic_id)
        return self._sites.build(topic, range(start, topic.partitions))

    def delete(self, name: str) -> None:
        topic = self.get(name)
        _check_not_internal(name)
        self._state.check()
        self._state.write("DELETE FROM topics WHERE name = ?", name)
        self._state.write("DELETE FROM topic_settings WHERE topic = ?", name)
        self._bury(topic.topic_id)
        del self._topics[name]
        del self._by_id[topic.topic_id]
        self._changed()
        for run in self.on_deleted:
            run(topic)
        self._sites.give_up(name)
        self._sites.remove(topic)

    def get(self, name: str) -> Topic:
        found = self._topics.get(name)
        if found is None:
            raise TopicNotFound(f"there is no topic {name[:SHOWN_MAX]!r}: create it first")
        return found

    def by_id(self, topic_id: uuid.UUID) -> Topic:
        found = self._by_id.get(topic_id)
        if found is None:
            raise TopicNotFound(f"there is no topic with id {topic_id}: ask for metadata again")
        return found

    def all(self, *, internal: bool = False) -> Sequence[Topic]:
        if self._all is None:
            self._all = tuple(self._topics[name] for name in sorted(self._topics))
            self._listed = tuple(topic for topic in self._all if not topic.internal)
        return self._all if internal else self._listed

    def grow(self, name: str, partitions: int, *, dry_run: bool = False) -> None:
        topic = self.get(name)
        _check_not_internal(name)
        self._check_partitions(f"topic {name[:SHOWN_MAX]!r}", partitions, InvalidPartitions)
        if partitions <= topic.partitions:
            raise InvalidPartitions(
                f"topic {name[:SHOWN_MAX]!r} has {topic.partitions} partitions and cannot shrink "
                f"or stay at {partitions}: give {topic.partitions + 1} to {PARTITIONS_MAX}"
            )
        if not dry_run:
            self._state.check()
            grown = replace(topic, partitions=partitions)
            self._sites.finish(grown, range(topic.partitions, partitions))
            self._write_row(grown)
            self._set(grown)

    def configure(
        self,
        name: str,
        changes: Mapping[str, str | None],
        *,
        replace: bool = False,
        dry_run: bool = False,
    ) -> None:
        topic = self.get(name)
        overrides = {} if replace else dict(topic.overrides)
        for key, value in changes.items():
            topic_settings.definition(key)
            if value is None:
                overrides.pop(key, None)
            else:
                overrides[key] = value
        changed = self._known(
            name, topic.topic_id, topic.partitions, topic_settings.tidy(overrides)
        )
        for check in self.checks if changed != topic else ():
            check(changed)
        if dry_run or changed == topic:
            return
        self._state.check()
        self._write_overrides(name, changed.overrides)
        self._set(changed)
        for index in range(topic.partitions):
            self._store.configure(Partition(name, index), changed.settings)

    def settings(self, name: str) -> Sequence[Setting]:
        return topic_settings.listing(self._defaults, self.get(name).overrides)

    def defaults(self) -> Sequence[Setting]:
        return topic_settings.listing(self._defaults, {})

    def check_defaults(self, config: Config) -> None:
        """Raise if some topic could not live with these defaults."""
        for topic in self._topics.values():
            try:
                topic_settings.log_settings(config.topic_defaults, topic.overrides)
            except InvalidConfig as refusal:
                raise InvalidConfig(f"topic {topic.name[:SHOWN_MAX]!r}: {refusal}") from None

    def reconfigure(self, config: Config) -> None:
        """The broker's settings have changed: topics without their own follow at once."""
        self._default_partitions = config.default_partitions
        if config.topic_defaults == self._defaults:
            return
        self._defaults = dict(config.topic_defaults)
        for topic in tuple(self._topics.values()):
            changed = self._known(topic.name, topic.topic_id, topic.partitions, topic.overrides)
            if changed != topic:
                self._set(changed)
                for index in range(topic.partitions):
                    self._store.configure(Partition(topic.name, index), changed.settings)

    def settle(self) -> Later[None]:
        if self._trimmed:
            try:
                self._write_starts()
            except OSError as error:
                refused: Later[None] = Later()
                refused.refuse(_storage_error(error))
                return refused
        return self._state.settle()

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._watches[key] = run
        return lambda: self._watches.pop(key, None) and None

    def trim(self, at: Partition, before: Offset) -> Offset:
        if not 0 <= at.index < self.get(at.topic).partitions:
            raise PartitionNotFound(f"topic {at.topic[:SHOWN_MAX]!r} has no partition {at.index}")
        _check_not_internal(at.topic)
        start = self._store.get(at).trim(before)
        # Written once for all partitions trimmed in this turn, by `settle`: it syncs the disk.
        self._trimmed = True
        return start

    def _write_starts(self) -> None:
        self._store.write_starts()
        self._trimmed = False

    def _known(
        self, name: str, topic_id: uuid.UUID, partitions: int, overrides: Mapping[str, str]
    ) -> Topic:
        return Topic(
            name=name,
            topic_id=topic_id,
            partitions=partitions,
            overrides=overrides,
            settings=topic_settings.log_settings(self._defaults, overrides),
        )

    def _check_partitions(self, what: str, count: int, refusal: type[BrokerError]) -> None:
        if not 1 <= count <= PARTITIONS_MAX:
            raise refusal(f"{what}: {count} partitions asked for, 1 to {PARTITIONS_MAX} accepted")

    def _found(self) -> dict[str, dict[int, uuid.UUID | None]]:
        """Directories by topic, after those of deleted topics are gone."""
        deleted = {
            uuid.UUID(bytes=topic_id): deleted_ms
            for topic_id, deleted_ms in self._state.rows(
                "SELECT topic_id, deleted_ms FROM deleted_topics"
            )
        }
        found: dict[str, dict[int, uuid.UUID | None]] = defaultdict(dict)
        for at, topic_id in sorted(self._store.found().items()):
            if topic_id is not None and topic_id in deleted:
                self._sites.remove_now(at)
                deleted[topic_id] = self._runtime.now_ms()
            elif at.topic in INTERNAL or (
                at.index < PARTITIONS_MAX and name_flaw(at.topic) is None
            ):
                found[at.topic][at.index] = topic_id
        forget_before = self._runtime.now_ms() - DELETED_KEPT_MS
        for topic_id, deleted_ms in deleted.items():
            # Those whose directories were here just now are kept: a power cut may bring them back.
            if deleted_ms < forget_before:
                self._state.write("DELETE FROM deleted_topics WHERE topic_id = ?", topic_id.bytes)
        return found

    def _restore(
        self,
        topic: Topic,
        directories: Mapping[int, uuid.UUID | None],
        taken: Collection[uuid.UUID],
    ) -> None:
        """A row of the state: complete its directories, believe them where they know better.

        `taken` are the ids of all rows: a directory with the id of another row belongs there.
        """
        ids = [topic_id for topic_id in directories.values() if topic_id is not None]
        fresh = [topic_id for topic_id in ids if topic_id not in taken]
        # The topic was deleted and made again, and the row of the new one was lost in a crash.
        topic_id = fresh[0] if fresh and topic.topic_id not in ids else topic.topic_id
        directories = self._without_strays(topic.name, topic_id, directories)
        directories = self._without_unused(topic.name, directories, topic.partitions)
        partitions = max([topic.partitions, *(index + 1 for index in directories)])
        restored = replace(topic, topic_id=topic_id, partitions=partitions)
        self._place(restored, directories)
        if restored != topic:
            self._write_row(restored)

    def _adopt(self, name: str, directories: Mapping[int, uuid.UUID | None]) -> None:
        """Directories without a row: a copied log directory, or a creation that lost its row."""
        ids = [topic_id for topic_id in directories.values() if topic_id is not None]
        topic_id = ids[0] if ids and ids[0] not in self._by_id else new_id()
        if topic_id in ids:
            directories = self._without_strays(name, topic_id, directories)
        topic = self._known(name, topic_id, max(directories) + 1, INTERNAL.get(name, {}))
        self._place(topic, directories)
        self._write_row(topic)
        self._write_overrides(name, topic.overrides)

    def _left_over(self, name: str, directories: Mapping[int, uuid.UUID | None]) -> bool:
        """Set directories aside that a power cut has brought back of a deleted topic.

        They have neither a row nor an id, and an id is on the disk before anything is acknowledged
        or shown.  A state that is new knows of no topic: then they are a copied log directory.
        """
        if self._state.is_new or name in INTERNAL or any(directories.values()):
            return False
        for index in directories:
            why = "has no partition.metadata, and no topic of this name is known"
            self._store.set_aside(Partition(name, index), why)
        return True

    def _without_unused(
        self, name: str, directories: Mapping[int, uuid.UUID | None], partitions: int
    ) -> dict[int, uuid.UUID | None]:
        """Remove directories that an interrupted creation or growth left behind.

        They lie beyond the partitions that the topic is known to have, and none holds anything.
        A state that is new knows of no topic; then the directories alone say which there are.
        """
        beyond = [Partition(name, index) for index in directories if index >= partitions]
        if (
            self._state.is_new
            or name in INTERNAL
            or not all(self._store.unused(at) for at in beyond)
        ):
            return dict(directories)
        for at in beyond:
            self._sites.remove_now(at)
            topic_id = directories[at.index]
            if not partitions and topic_id is not None:
                # Checkpoints may name this id until they are written again.
                self._bury(topic_id)
        return {index: found for index, found in directories.items() if index < partitions}

    def _without_strays(
        self, name: str, topic_id: uuid.UUID, directories: Mapping[int, uuid.UUID | None]
    ) -> dict[int, uuid.UUID | None]:
        """Set directories aside that are known to be of another topic: no records of it may turn
        up in this one.
        """
        kept: dict[int, uuid.UUID | None] = {}
        for index, found in directories.items():
            if found is None or found == topic_id:
                kept[index] = found
            else:
                why = "is of a topic with another id than the one of this name"
                self._store.set_aside(Partition(name, index), why)
        return kept

    def _place(self, topic: Topic, directories: Mapping[int, uuid.UUID | None]) -> None:
        for index, topic_id in directories.items():
            at = Partition(topic.name, index)
            self._store.configure(at, topic.settings)
            if topic_id != topic.topic_id:
                self._store.identify(at, topic.topic_id)
        missing = [index for index in range(topic.partitions) if index not in directories]
        self._sites.make(topic, missing)
        self._set(topic)

    def _write_row(self, topic: Topic) -> None:
        self._state.write(
            "INSERT INTO topics VALUES (?, ?, ?, ?) ON CONFLICT (name)"
            " DO UPDATE SET topic_id = excluded.topic_id, partitions = excluded.partitions",
            topic.name,
            topic.topic_id.bytes,
            topic.partitions,
            self._runtime.now_ms(),
        )

    def _write_overrides(self, topic: str, overrides: Mapping[str, str]) -> None:
        self._state.write("DELETE FROM topic_settings WHERE topic = ?", topic)
        for name, value in overrides.items():
            self._state.write("INSERT INTO topic_settings VALUES (?, ?, ?)", topic, name, value)

    def _bury(self, topic_id: uuid.UUID) -> None:
        self._state.write(
            "INSERT OR REPLACE INTO deleted_topics VALUES (?, ?)",
            topic_id.bytes,
            self._runtime.now_ms(),
        )

    def _unbury(self, topic_id: uuid.UUID) -> None:
        self._state.write("DELETE FROM deleted_topics WHERE topic_id = ?", topic_id.bytes)

    def _set(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._changed()

    def _changed(self) -> None:
        self._all = None
        self.version += 1
        for run in list(self._watches.values()):
            run()


def _storage_error(error: OSError) -> StorageFailed:
    text = f"cannot write where partitions start: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"{text}; free some space, then try again")
    return StorageFailed(f"{text}; check the disk, then try again")


def _check_not_internal(name: str) -> None:
    if name in INTERNAL:
        raise InvalidTopic(f"{name} is the broker's own: it can be read, and configured")
