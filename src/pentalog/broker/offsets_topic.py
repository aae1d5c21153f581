"""Committed offsets as the records of a topic, in the form Kafka's tools read.

The broker itself remembers offsets in its state file.  What changes there is written here a few
milliseconds later, the newest of each key; after a crash all of it is written again.  What is
forgotten is written at once, before the state file forgets it: nothing would bring it back.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from pentalog import kernels
from pentalog.broker.port import Committed
from pentalog.broker.topics import LocalTopics
from pentalog.log.store import Store
from pentalog.model import batch
from pentalog.model.errors import BrokerError, StorageFull
from pentalog.model.internal import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from pentalog.model.types import Partition, Record
from pentalog.runtime import Runtime, Timer

_log: Final = logging.getLogger(__name__)

DELAY_MS: Final = 5
RETRY_MS: Final = 1_000
RECORDS_PER_BATCH: Final = 100
"""With the longest names there can be, this many still fit into `max.message.bytes`."""
_BATCHES_AT_ONCE: Final = 10
_TEXT_BYTES_MAX: Final = 32_767
_INDEX_MAX: Final = (1 << 31) - 1
_KEY_VERSION: Final = 1
_VALUE_VERSION: Final = 3
_EXPIRING_VERSION: Final = 1
"""The last form of values that has a time of its own at which the offset is forgotten."""
_AT: Final = Partition(OFFSETS_TOPIC, 0)

Entry = tuple[str, Partition, Committed]


class OffsetsTopic:
    def __init__(
        self,
        topics: LocalTopics,
        store: Store,
        runtime: Runtime,
        entries: Callable[[], Iterator[Entry]],
    ) -> None:
        """`entries` are all offsets there are; asked on once a turn, while they change."""
        self._topics = topics
        self._store = store
        self._runtime = runtime
        self._entries = entries
        self._there = any(topic.name == OFFSETS_TOPIC for topic in topics.all(internal=True))
        self._refused = False
        self._noted: dict[tuple[str, Partition], Committed | None] = {}
        self._rest: Iterator[Entry] = iter(())
        """What is still to be noted of all there was."""
        self._failing = False
        self._timer: Timer | None = None
        if self._there and not store.stopped_cleanly:
            self._note_all()

    def make(self) -> None:
        """Make the topic if it is not there, and write the offsets there are, over some turns."""
        if self._there or self._refused:
            return
        try:
            self._topics.create_internal(OFFSETS_TOPIC, OFFSETS_TOPIC_ID)
        except BrokerError as refusal:
            # Not tried again at once: clients ask for it again and again.
            self._refused = True
            if isinstance(refusal, StorageFull):
                self._runtime.after(RETRY_MS, self._admit)
            if not self._failing:
                _log.warning("commits cannot be read as records of a topic: %s", refusal)
            self._failing = True
            return
        self._there = True
        self._failing = False
        self._note_all()

    def _admit(self) -> None:
        self._refused = False

    def note(self, group: str, at: Partition, committed: Committed | None) -> None:
        """An offset has been committed, or forgotten: written a moment later."""
        if self._there:
            self._noted[group, at] = committed
            if self._timer is None:
                self._timer = self._runtime.after(DELAY_MS, self._write_some)

    def flush(self) -> None:
        """Write what is noted, or the first of it if that is much."""
        for _ in range(_BATCHES_AT_ONCE):
            if not self._noted or not self._write():
                return

    def close(self) -> None:
        """Write all there is; what is noted from now on is not."""
        if self._timer is not None:
            self._timer.cancel()
        for group, at, committed in self._rest:
            self._noted[group, at] = committed
        self._there = False
        while self._noted and self._write():
            pass

    def _write_some(self) -> None:
        self._timer = None
        delay_ms = DELAY_MS if self._write() else RETRY_MS
        if self._noted:
            self._timer = self._runtime.after(delay_ms, self._write_some)

    def _write(self) -> bool:
        """Append one batch of what is noted; False if that was refused."""
        noted = list(islice(self._noted.items(), RECORDS_PER_BATCH))
        records = [
            Record(None if committed is None else _value(committed), key)
            for (group, at), committed in noted
            if (key := _key(group, at)) is not None
        ]
        if records:
            view = memoryview(batch.build(records, timestamp_ms=self._runtime.now_ms()))
            try:
                self._store.get(_AT).append(view, kernels.check_batches(view, 0, len(view)))
            except BrokerError as refusal:
                if not self._failing:
                    _log.warning("commits cannot be written to %s for now: %s", _AT, refusal)
                self._failing = True
                return False
            self._failing = False
        for place, _ in noted:
            del self._noted[place]
        return True

    def _note_all(self) -> None:
        self._rest = self._entries()
        self._note_some()

    def _note_some(self) -> None:
        some = list(islice(self._rest, RECORDS_PER_BATCH))
        for group, at, committed in some:
            self.note(group, at, committed)
        if some:
            self._runtime.soon(self._note_some)


def _key(group: str, at: Partition) -> bytes | None:
    """None: a name is longer, or the number larger, than Kafka's form can hold."""
    name, topic = group.encode(), at.topic.encode()
    if max(len(name), len(topic)) > _TEXT_BYTES_MAX or at.index > _INDEX_MAX:
        return None
    form = f">hh{len(name)}sh{len(topic)}si"
    return struct.pack(form, _KEY_VERSION, len(name), name, len(topic), topic, at.index)


def _value(committed: Committed) -> bytes:
    text = committed.metadata.encode()[:_TEXT_BYTES_MAX]
    size = len(text)
    if committed.expire_ms >= 0:
        return struct.pack(
            f">hqh{size}sqq",
            _EXPIRING_VERSION,
            committed.offset,
            size,
            text,
            committed.timestamp_ms,
            committed.expire_ms,
        )
    return struct.pack(
        f">hqih{size}sq",
        _VALUE_VERSION,
        committed.offset,
        committed.leader_epoch,
        size,
        text,
        committed.timestamp_ms,
    )
