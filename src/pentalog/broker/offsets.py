"""Where every group goes on reading: one map for all protocols, kept in the state file."""

from __future__ import annotations

from collections import Counter, deque
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
from pentalog.runtime import Runtime, Slices

_UPSERT: Final = "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPSERT_STAGED: Final = (
    "INSERT OR REPLACE INTO staged_offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_VALUES: Final = "next_offset, leader_epoch, metadata, committed_ms, expire_ms, sequence"
_DELETE: Final = "DELETE FROM offsets WHERE grp = ? AND topic = ? AND partition = ?"
_DELETE_STAGED: Final = "DELETE FROM staged_offsets WHERE grp = ? AND topic = ? AND partition = ?"
_DELETE_FINISHED: Final = f"{_DELETE_STAGED} AND producer_id = ?"
_COMMIT_STAGED: Final = (
    f"INSERT OR REPLACE INTO offsets SELECT grp, topic, partition, {_VALUES}"
    " FROM staged_offsets AS staged WHERE producer_id = ? AND NOT EXISTS"
    " (SELECT 1 FROM offsets WHERE offsets.grp = staged.grp AND offsets.topic = staged.topic"
    " AND offsets.partition = staged.partition AND offsets.sequence >= staged.sequence)"
)
"""What `LocalOffsets._finish` does in memory, where the file says what memory does."""

_ByTopic: TypeAlias = dict[str, dict[int, Committed]]


class LocalOffsets:
    """Implements `port.Offsets`."""

    def __init__(
        self, state: State, runtime: Runtime, config: Config, slices: Slices | None = None
    ) -> None:
        self._usage = OffsetUsage(config)
        self._state = state
        self._runtime = runtime
        self._committed: dict[str, _ByTopic] = {}
        self._staged: dict[int, dict[str, dict[Partition, Committed]]] = {}
        self._stagers: dict[int, str] = {}
        """Who is charged for what a producer has staged; not for what an earlier life left."""
        self._slices = slices or Slices(runtime)
        self._closed = False
        self._topics: Counter[str] = Counter()
        """How many groups have committed offsets of a topic."""
        self._staged_topics: Counter[str] = Counter()
        """How many offsets of a topic open transactions hold."""
        self._forgotten: dict[str, int] = {}
        """The newest sequence of a deleted topic, whose offsets count no more and are removed."""
        self._forgotten_position = 0
        """Up to where the state file has to be durable before all of these are removed for good."""
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
        self._closed = True
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
            found = {
                Partition(topic, index): committed
                for topic, indexes in topics.items()
                for index, committed in indexes.items()
            }
        else:
            found = {}
            for where in at:
                committed = topics.get(where[0], _NONE).get(where[1])
                if committed is not None:
                    found[where] = committed
        if self._forgotten:
            return {at: known for at, known in found.items() if not self._is_forgotten(at, known)}
        return found

    def walk(self, group: str) -> Iterator[tuple[Partition, Committed]]:
        for topic in tuple(self._committed.get(group, ())):
            for index in tuple(self._committed.get(group, {}).get(topic, _NONE)):
                yield from self.committed(group, (Partition(topic, index),)).items()

    def _is_forgotten(self, at: Partition, committed: Committed) -> bool:
        return committed.sequence <= self._forgotten.get(at.topic, _NO_SEQUENCE)

    def settled(self, group: str) -> Later[None]:
        position = max(self._changed.get(group, 0), self._forgotten_position)
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
                for topic in topics:
                    self._lose(topic)
                self._usage.forget(group)
                self._state.write("DELETE FROM offsets WHERE grp = ?", group)
            else:
                for where in at:
                    self._drop(group, where)
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
        """Forget the offsets of a deleted topic: the next one of its name starts without.

        They are gone at once for everybody; what they take in memory is freed in slices.
        """
        committed, staged = topic in self._topics, topic in self._staged_topics
        if committed:
            self._state.write("DELETE FROM offsets WHERE topic = ?", topic)
        if staged:
            self._state.write("DELETE FROM staged_offsets WHERE topic = ?", topic)
        if committed or staged:
            self._forgotten_position = self._state.position
            self._forgotten[topic] = self._sequence
            self._slices.run(self._remove_topic(topic, self._sequence), _removed)

    def _remove_topic(self, topic: str, newest: int) -> Iterator[None]:
        """Remove offsets of a topic up to a sequence: later ones belong to the next topic."""
        for group in tuple(self._committed):
            for index in tuple(self._committed.get(group, {}).get(topic, ())):
                # Looked up again: the group may have been deleted since, and have committed again.
                committed = self._committed.get(group, {}).get(topic, _NONE).get(index)
                if committed is not None and committed.sequence <= newest and not self._closed:
                    self._discard(group, Partition(topic, index))
                    if self.topic is not None:
                        self.topic.note(group, Partition(topic, index), None)
                    yield
            yield
        if self.topic is not None and not self._closed:
            self.topic.flush()
        for producer_id in tuple(self._staged):
            for group in tuple(self._staged.get(producer_id, {})):
                held = self._staged.get(producer_id, {}).get(group, {})
                for at in tuple(held):
                    if at.topic == topic and at in held and held[at].sequence <= newest:
                        self._unstage(producer_id, group, at)
                yield
        if self._forgotten.get(topic) == newest:
            del self._forgotten[topic]

    def _lose(self, topic: str) -> None:
        """Count one group less with offsets of a topic."""
        self._topics[topic] -= 1
        if not self._topics[topic]:
            del self._topics[topic]

    def groups(self) -> Collection[str]:
        return self._committed.keys() | self._staging.keys()

    def names(self) -> Iterator[str]:
        """Yield the same one by one, without those that are forgotten meanwhile."""
        for group in tuple(self._committed):
            if group in self._committed:
                yield group
        for group in tuple(self._staging):
            if group in self._staging and group not in self._committed:
                yield group

    def holds(self, group: str) -> bool:
        """Has the group any offset, committed or in an open transaction?"""
        return group in self._committed or group in self._staging

    def stage(
        self,
        producer_id: int,
        group: str,
        offsets: Mapping[Partition, Committed],
        *,
        owner: str = "",
    ) -> Later[None]:
        self._state.check()
        staged = self._staged.get(producer_id)
        charged = owner if staged is None else self._stagers.get(producer_id, "")
        held = None if staged is None else staged.get(group)
        self._usage.check_staging(charged, group, held, offsets)
        if charged and offsets:
            self._stagers[producer_id] = charged
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

    def finish(self, producer_id: int, *, commit: bool, at_once: bool = False) -> Later[None]:
        if at_once:
            # One change, not two for each offset: there may be hundreds of thousands.
            groups = tuple(self._staged.get(producer_id, ()))
            if commit:
                self._state.write(_COMMIT_STAGED, producer_id)
            deque(self._finish(producer_id, commit=commit, writes=False), maxlen=0)
            for group in groups:
                self._note_change(group)
            return Later.now(None)
        later: Later[None] = Later()

        def done(error: Exception | None) -> None:
            if error is not None:
                raise error
            later.fill(None)

        self._slices.run(self._finish(producer_id, commit=commit), done)
        return later

    def _finish(self, producer_id: int, *, commit: bool, writes: bool = True) -> Iterator[None]:
        """Take one offset after another: a transaction may have staged any number of them.

        Without `writes` the caller has written those that become real.
        """
        groups = self._staged.get(producer_id, {})
        owner = self._stagers.get(producer_id, "")
        for group in tuple(groups):
            for at in tuple(groups.get(group, ())):
                committed = groups.get(group, {}).get(at)
                if committed is None:
                    continue  # forgotten meanwhile
                self._unstage(producer_id, group, at)
                if commit and writes:
                    # In the same turn: one that is forgotten later must not return by a crash.
                    self._state.write(_DELETE_FINISHED, group, *at, producer_id)
                # As in Kafka, what was committed or staged last wins, whichever ends last.
                now = self._committed.get(group, {}).get(at.topic, _NONE).get(at.index)
                newest = now is None or committed.sequence > now.sequence
                if commit and newest and not self._is_forgotten(at, committed):
                    if group not in self._committed:
                        self._usage.claim(group, owner)
                    if writes:
                        self._write(group, at, committed)
                    else:
                        self._set(group, at, committed)
                    if self.topic is not None:
                        self.topic.note(group, at, committed)
                yield
                if self._closed:
                    return  # the next start does the rest
        self._state.write("DELETE FROM staged_offsets WHERE producer_id = ?", producer_id)

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
            self._topics[at[0]] += 1
        before = indexes.get(at[1])
        indexes[at[1]] = committed
        if before is None or before.metadata != committed.metadata:
            self._usage.replace(group, before, committed)

    def _drop(self, group: str, at: Partition) -> None:
        if self._discard(group, at):
            self._state.write(_DELETE, group, *at)

    def _discard(self, group: str, at: Partition) -> bool:
        """Take an offset out of memory; False if there is none."""
        topics = self._committed.get(group, {})
        indexes = topics.get(at.topic)
        dropped = None if indexes is None else indexes.pop(at.index, None)
        if indexes is None or dropped is None:
            return False
        self._usage.replace(group, dropped, None)
        if not indexes:
            del topics[at.topic]
            self._lose(at.topic)
            if not topics:
                del self._committed[group]
        return True

    def _set_staged(
        self, producer_id: int, group: str, at: Partition, committed: Committed
    ) -> None:
        owner = self._stagers.get(producer_id, "")
        groups = self._staged.setdefault(producer_id, {})
        held = groups.get(group)
        if held is None:
            held = groups[group] = {}
            self._usage.stage_group(owner, group, 1)
        if at not in held:
            self._staging.setdefault(group, Counter())[at] += 1
            self._staged_topics[at.topic] += 1
        self._usage.stage(owner, held.get(at), committed)
        held[at] = committed

    def _unstage(self, producer_id: int, group: str, at: Partition) -> None:
        groups, owner = self._staged[producer_id], self._stagers.get(producer_id, "")
        self._usage.stage(owner, groups[group].pop(at), None)
        if not groups[group]:
            del groups[group]
            self._usage.stage_group(owner, group, -1)
            if not groups:
                del self._staged[producer_id]
                self._stagers.pop(producer_id, None)
        self._staged_topics[at.topic] -= 1
        if not self._staged_topics[at.topic]:
            del self._staged_topics[at.topic]
        staging = self._staging[group]
        staging[at] -= 1
        if not staging[at]:
            del staging[at]
            if not staging:
                del self._staging[group]


_NONE: Final[Mapping[int, Committed]] = {}
_NO_SEQUENCE: Final = -1 << 63


def _removed(error: Exception | None) -> None:
    if error is not None:
        raise error


def _values(committed: Committed) -> tuple[int, int, str, int, int, int]:
    return (
        committed.offset,
        committed.leader_epoch,
        committed.metadata,
        committed.timestamp_ms,
        committed.expire_ms,
        committed.sequence,
    )
