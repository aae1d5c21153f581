"""Where every group goes on reading: one map for all protocols, kept in the state file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Final, TypeAlias

from pentalog.broker.group_offsets import Committed
from pentalog.broker.log import COMMIT_WAIT_MS_MAX
from pentalog.broker.offset_usage import OffsetUsage
from pentalog.broker.offsets_topic import Entry, OffsetsTopic
from pentalog.broker.state import State
from pentalog.config import Config
from pentalog.model.errors import BrokerError, StorageFailed
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.runtime import Runtime

_UPSERT: Final = "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPSERT_STAGED: Final = (
    "INSERT OR REPLACE INTO staged_offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_VALUES: Final = "next_offset, leader_epoch, metadata, committed_ms, expire_ms, sequence"
_DELETE: Final = "DELETE FROM offsets WHERE grp = ? AND topic = ? AND partition = ?"
_DELETE_STAGED: Final = "DELETE FROM staged_offsets WHERE grp = ? AND topic = ? AND partition = ?"

_ByTopic: TypeAlias = dict[str, dict[int, Committed]]


class LocalOffsets:
    """Implements `port.Offsets`."""

    def __init__(self, state: State, runtime: Runtime, config: Config) -> None:
        self._usage = OffsetUsage(config)
        self._state = state
        self._runtime = runtime
        self._committed: dict[str, _ByTopic] = {}
        self._staged: dict[int, dict[str, dict[Partition, Committed]]] = {}
        self._staging: dict[str, Counter[Partition]] = {}
        """How many open transactions hold an offset, by group and partition."""
        self._sequence = 0
        """Of the newest commit or staging.  Clocks can be set back; this only grows."""
        self._changed: dict[str, int] = {}
        """Up to which position the state file has to be durable before a group's offsets are."""
        self._changed_last = 0
        self.topic: OffsetsTopic | None = None
        """Where commits can be read as records too."""

    def open(self) -> None:
        for group, topic, index, *value in self._state.rows(
            f"SELECT grp, topic, partition, {_VALUES} FROM offsets"
        ):
            self._restore_sequence(committed := Committed(*value))
            self._set(group, Partition(topic, index), committed)
        for producer_id, group, topic, index, *value in self._state.rows(
            f"SELECT producer_id, grp, topic, partition, {_VALUES} FROM staged_offsets"
        ):
            self._restore_sequence(committed := Committed(*value))
            self._set_staged(producer_id, group, Partition(topic, index), committed)

    @property
    def leaseholders(self) -> Collection[str]:
        """Groups that have committed with a lease (`retention_leases.py`)."""
        return self._usage.leaseholders

    def commit(
        self, group: str, offsets: Mapping[Partition, Committed], *, owner: str = ""
    ) -> Later[None]:
        self._state.check()
        self._usage.check(group, owner, self._committed.get(group), offsets)
        now_ms = self._runtime.now_ms()
        rows = []
        for at, given in offsets.items():
            committed = self._numbered(given, now_ms)
            self._set(group, at, committed)
            rows.append((group, at[0], at[1], *_values(committed)))
            if self.topic is not None:
                self.topic.note(group, at, committed)
        later = self._state.put(_UPSERT, rows)
        if self._state.position > self._state.durable:  # also if it is refused, and tried again
            self._note_change(group)
        return later

    def publish(self) -> None:
        if self.topic is not None:
            self.topic.make()

    def close(self) -> None:
        if self.topic is not None:
            self.topic.close()

    def entries(self) -> Iterator[Entry]:
        """Every offset; what is committed or forgotten meanwhile comes as it then is."""
        for group in tuple(self._committed):
            for at in tuple(self.committed(group)):
                committed = self.committed(group, (at,)).get(at)
                if committed is not None:
                    yield group, at, committed

    def committed(
        self, group: str, at: Collection[Partition] | None = None
    ) -> Mapping[Partition, Committed]:
        topics = self._committed.get(group)
        if topics is None:
            return {}
        if at is None:
            return {
                Partition(topic, index): committed
                for topic, indexes in topics.items()
                for index, committed in indexes.items()
            }
        found: dict[Partition, Committed] = {}
        for where in at:
            committed = topics.get(where[0], _NONE).get(where[1])
            if committed is not None:
                found[where] = committed
        return found

    def settled(self, group: str) -> Later[None]:
        position = self._changed.get(group, 0)
        if position <= self._state.durable:
            return Later.now(None)
        written = self._state.settle(position)
        if written.ready:
            return written
        later: Later[None] = Later()

        def arrived(done: Later[None]) -> None:
            if later.ready:
                return
            stuck.cancel()
            try:
                done.check()
            except BrokerError as refusal:
                later.refuse(refusal)
            else:
                later.fill(None)

        def give_up() -> None:
            later.refuse(
                StorageFailed(
                    f"offsets of group {group!r} are not written to {self._state.path} after "
                    f"{COMMIT_WAIT_MS_MAX} ms: check the disk, then ask again"
                )
            )

        stuck = self._runtime.after(COMMIT_WAIT_MS_MAX, give_up)
        written.then(arrived)
        return later

    def _note_change(self, group: str) -> None:
        """Remember that changes of this group have just been queued."""
        if self._changed_last <= self._state.durable:
            self._changed.clear()
        self._changed[group] = self._changed_last = self._state.position

    def forget(self, group: str, at: Collection[Partition] | None = None) -> Later[None]:
        topics = self._committed.get(group)
        if self.holds(group):
            self._state.check()
            self._forget_staged(group, at)
        if topics is not None:
            if self.topic is not None:
                for where in self.committed(group, at):
                    self.topic.note(group, where, None)
                self.topic.flush()
            if at is None:
                del self._committed[group]
                self._usage.forget(group)
                self._state.write("DELETE FROM offsets WHERE grp = ?", group)
            else:
                for where in at:
                    self._drop(group, topics, where)
            self._note_change(group)
        return self._state.settle()

    def _forget_staged(self, group: str, at: Collection[Partition] | None) -> None:
        """Drop offsets of open transactions: forgetting is a later decision than staging."""
        staging = self._staging.get(group, Counter[Partition]())
        for where in [where for where in staging if at is None or where in at]:
            for producer_id, groups in list(self._staged.items()):
                if where in groups.get(group, ()):
                    self._unstage(producer_id, group, where)
            self._state.write(_DELETE_STAGED, group, *where)

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted: one made anew under its name starts without offsets."""
        touched = [group for group, topics in self._committed.items() if topic in topics]
        for group in touched:
            topics = self._committed[group]
            if self.topic is not None:
                for index in topics[topic]:
                    self.topic.note(group, Partition(topic, index), None)
            for committed in topics.pop(topic).values():
                self._usage.replace(group, committed, None)
            if not topics:
                del self._committed[group]
        if touched:
            if self.topic is not None:
                self.topic.flush()
            self._state.write("DELETE FROM offsets WHERE topic = ?", topic)
            for group in touched:
                self._note_change(group)
        if any(at.topic == topic for count in self._staging.values() for at in count):
            self._state.write("DELETE FROM staged_offsets WHERE topic = ?", topic)
            for producer_id, groups in list(self._staged.items()):
                for group, held in list(groups.items()):
                    for at in [at for at in held if at.topic == topic]:
                        self._unstage(producer_id, group, at)

    def groups(self) -> Collection[str]:
        return self._committed.keys() | self._staging.keys()

    def holds(self, group: str) -> bool:
        """Has the group any offset, committed or in an open transaction?"""
        return group in self._committed or group in self._staging

    def stage(
        self, producer_id: int, group: str, offsets: Mapping[Partition, Committed]
    ) -> Later[None]:
        self._state.check()
        self._usage.check(group, "", self._committed.get(group), offsets)
        now_ms = self._runtime.now_ms()
        for at, given in offsets.items():
            committed = self._numbered(given, now_ms)
            self._set_staged(producer_id, group, at, committed)
            self._state.write(_UPSERT_STAGED, producer_id, group, *at, *_values(committed))
        return self._state.settle()

    def staged(self) -> Collection[int]:
        return self._staged.keys()

    def unstable(self, group: str, at: Partition) -> bool:
        staging = self._staging.get(group)
        return staging is not None and at in staging

    def finish(self, producer_id: int, *, commit: bool) -> Later[None]:
        groups = self._staged.get(producer_id)
        if groups is not None:
            for group, held in list(groups.items()):
                for at, committed in list(held.items()):
                    self._unstage(producer_id, group, at)
                    # As in Kafka, what was committed or staged last wins, whichever ends last.
                    now = self._committed.get(group, {}).get(at.topic, _NONE).get(at.index)
                    newest = now is None or committed.sequence > now.sequence
                    if commit and newest:
                        self._write(group, at, committed)
                        if self.topic is not None:
                            self.topic.note(group, at, committed)
            self._state.write("DELETE FROM staged_offsets WHERE producer_id = ?", producer_id)
        return self._state.settle()

    def _numbered(self, given: Committed, now_ms: int) -> Committed:
        """The offset with its place in the order of commits, and with a time if it has none."""
        self._sequence += 1
        timestamp_ms = now_ms if given.timestamp_ms < 0 else given.timestamp_ms
        return Committed(
            given.offset,
            given.leader_epoch,
            given.metadata,
            timestamp_ms,
            given.expire_ms,
            self._sequence,
        )

    def _restore_sequence(self, committed: Committed) -> None:
        self._sequence = max(self._sequence, committed.sequence)

    def _write(self, group: str, at: Partition, committed: Committed) -> None:
        self._set(group, at, committed)
        self._state.write(_UPSERT, group, at[0], at[1], *_values(committed))
        self._note_change(group)

    def _set(self, group: str, at: Partition, committed: Committed) -> None:
        topics = self._committed.get(group)
        if topics is None:
            topics = self._committed[group] = {}
        indexes = topics.get(at[0])
        if indexes is None:
            indexes = topics[at[0]] = {}
        before = indexes.get(at[1])
        indexes[at[1]] = committed
        if before is None or before.metadata != committed.metadata:
            self._usage.replace(group, before, committed)

    def _drop(self, group: str, topics: _ByTopic, at: Partition) -> None:
        indexes = topics.get(at.topic)
        dropped = None if indexes is None else indexes.pop(at.index, None)
        if indexes is None or dropped is None:
            return
        self._usage.replace(group, dropped, None)
        if not indexes:
            del topics[at.topic]
            if not topics:
                del self._committed[group]
        self._state.write(_DELETE, group, *at)

    def _set_staged(
        self, producer_id: int, group: str, at: Partition, committed: Committed
    ) -> None:
        held = self._staged.setdefault(producer_id, defaultdict(dict))[group]
        if at not in held:
            self._staging.setdefault(group, Counter())[at] += 1
        self._usage.stage(held.get(at), committed)
        held[at] = committed

    def _unstage(self, producer_id: int, group: str, at: Partition) -> None:
        groups = self._staged[producer_id]
        self._usage.stage(groups[group].pop(at), None)
        if not groups[group]:
            del groups[group]
            if not groups:
                del self._staged[producer_id]
        staging = self._staging[group]
        staging[at] -= 1
        if not staging[at]:
            del staging[at]
            if not staging:
                del self._staging[group]


_NONE: Final[Mapping[int, Committed]] = {}


def _values(committed: Committed) -> tuple[int, int, str, int, int, int]:
    return (
        committed.offset,
        committed.leader_epoch,
        committed.metadata,
        committed.timestamp_ms,
        committed.expire_ms,
        committed.sequence,
    )
