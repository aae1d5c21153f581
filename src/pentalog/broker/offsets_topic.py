"""Committed offsets as the records of a topic, in the form Kafka's tools read.

The broker itself remembers offsets in its state file.  What is committed is written here first,
so that nothing is acknowledged that the topic does not hold; a power cut may take the newest
records of it, as of any topic that nobody waited for.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from pentalog import kernels
from pentalog.broker.port import Committed
from pentalog.broker.topics import LocalTopics
from pentalog.log.store import Store
from pentalog.model import batch
from pentalog.model.errors import BrokerError
from pentalog.model.internal import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from pentalog.model.types import Partition, Record
from pentalog.runtime import Runtime

_log: Final = logging.getLogger(__name__)

RECORDS_PER_BATCH: Final = 100
"""With the longest names there can be, this many still fit into `max.message.bytes`."""
_TEXT_BYTES_MAX: Final = 32_767
_KEY_VERSION: Final = 1
_VALUE_VERSION: Final = 3
_EXPIRING_VERSION: Final = 1
"""The last form of values that has a time of its own at which the offset is forgotten."""
_AT: Final = Partition(OFFSETS_TOPIC, 0)

Entry = tuple[str, Partition, Committed | None]
"""Group, partition and offset; None: forgotten."""


class OffsetsTopic:
    def __init__(self, topics: LocalTopics, store: Store, runtime: Runtime) -> None:
        self._topics = topics
        self._store = store
        self._runtime = runtime
        self._there = any(topic.name == OFFSETS_TOPIC for topic in topics.all(internal=True))
        self._refused = False

    def make(self, entries: Callable[[], Iterator[Entry]]) -> None:
        """Make the topic if it is not there, and write the offsets there are, over some turns."""
        if self._there or self._refused:
            return
        try:
            self._topics.create_internal(OFFSETS_TOPIC, OFFSETS_TOPIC_ID)
        except BrokerError as refusal:
            # Tried again in the next life: clients ask for it again and again.
            self._refused = True
            _log.warning("commits cannot be read as records of a topic: %s", refusal)
            return
        self._there = True
        self._write_some(entries())

    def write(self, entries: Sequence[Entry]) -> None:
        """Append what has been committed or forgotten; may refuse."""
        if not self._there:
            return
        records = [
            Record(None if committed is None else _value(committed), key)
            for group, at, committed in entries
            if (key := _key(group, at)) is not None
        ]
        partition = self._store.get(_AT)
        now_ms = self._runtime.now_ms()
        for first in range(0, len(records), RECORDS_PER_BATCH):
            built = batch.build(records[first : first + RECORDS_PER_BATCH], timestamp_ms=now_ms)
            view = memoryview(built)
            partition.append(view, kernels.check_batches(view, 0, len(view)))

    def write_or_warn(self, entries: Sequence[Entry]) -> None:
        """For what has happened already and cannot be refused any more."""
        try:
            self.write(entries)
        except BrokerError as refusal:
            _log.warning("%s lacks %d changes of offsets: %s", _AT, len(entries), refusal)

    def _write_some(self, entries: Iterator[Entry]) -> None:
        some = list(islice(entries, RECORDS_PER_BATCH))
        if some:
            self.write_or_warn(some)
            self._runtime.soon(lambda: self._write_some(entries))


def _key(group: str, at: Partition) -> bytes | None:
    """None: a name is longer than Kafka's form can hold."""
    name, topic = group.encode(), at.topic.encode()
    if max(len(name), len(topic)) > _TEXT_BYTES_MAX:
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
