"""Which groups read which topics, though they may have neither members nor offsets.

A cluster forgets such groups.  They are rows of the gateways' state, which every gateway writes: a
row says nothing that another could contradict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from pentalog.broker.state import Value
from pentalog.cluster.agreement import STATE_TOPIC
from pentalog.cluster.bounds import Bounds
from pentalog.cluster.fleet import Fleet
from pentalog.cluster.state_rows import no_row, row
from pentalog.cluster.state_topic import ClusterState
from pentalog.cluster.steps import Steps, begin, first_of
from pentalog.cluster.topics import ClusterTopics
from pentalog.cluster.writing import ACKS_ALL, Writing
from pentalog.model import batch
from pentalog.model.later import Later
from pentalog.model.types import Appended, Offset, Partition, Record
from pentalog.runtime import Runtime

REGISTERED_MAX: Final = 10_000
"""The oldest is forgotten when there are more."""

_AT: Final = Partition(STATE_TOPIC, 0)
_TABLE: Final = "shared_rosters"
_OWNER_TRIES: Final = 100
_OWNER_PAUSE_MS: Final = 100
_TRIES: Final = 300
_PAUSE_MS: Final = 10


class Registration(NamedTuple):
    group: str
    topic: str
    since_ms: int


class Registrations:
    def __init__(
        self,
        fleet: Fleet,
        topics: ClusterTopics,
        bounds: Bounds,
        writing: Writing,
        state: ClusterState,
        runtime: Runtime,
    ) -> None:
        self._fleet = fleet
        self._topics = topics
        self._bounds = bounds
        self._writing = writing
        self._state = state
        self._runtime = runtime

    @property
    def possible(self) -> bool:
        """Is it known that some gateway has owned the state?"""
        return self._topics.known(STATE_TOPIC)

    def of(self, group: str) -> list[Registration]:
        """The topics of a group, as far as they exist."""
        return self._found("WHERE grp = ?", group)

    def all(self) -> list[Registration]:
        return self._found("")

    def find(self, group: str, topic: str) -> Registration | None:
        found = self._found("WHERE grp = ? AND topic = ?", group, topic)
        return found[0] if found else None

    def _found(self, where: str, *values: str) -> list[Registration]:
        sql = f"SELECT grp, topic, changed_ms FROM {_TABLE} {where}"
        found = [Registration(*each) for each in self._state.rows.rows(sql, *values)]
        return [one for one in found if self._topics.known(one.topic)]

    def add(self, group: str, topic: str) -> Later[None]:
        """Ready when every gateway that looks can find it."""
        if self.find(group, topic) is not None:
            return Later.now(None)
        now_ms = self._runtime.now_ms()
        columns: dict[str, Value] = {
            "grp": group,
            "topic": topic,
            "generation": 0,
            "changed_ms": now_ms,
        }
        records = [row(_TABLE, columns, group, topic)]
        ((count,),) = self._state.rows.rows(f"SELECT COUNT(*) FROM {_TABLE}")
        if count >= REGISTERED_MAX:
            ((oldest, its_topic),) = self._state.rows.rows(
                f"SELECT grp, topic FROM {_TABLE} ORDER BY changed_ms LIMIT 1"
            )
            records.append(no_row(_TABLE, oldest, its_topic))
        return begin(self._write(records))

    def drop(self, registrations: Iterable[Registration]) -> Later[None]:
        records = [no_row(_TABLE, one.group, one.topic) for one in registrations]
        return begin(self._write(records)) if records else Later.now(None)

    def of_topic(self, topic: str) -> list[Registration]:
        sql = f"SELECT grp, topic, changed_ms FROM {_TABLE} WHERE topic = ?"
        return [Registration(*each) for each in self._state.rows.rows(sql, topic)]

    def catch_up(self) -> Steps[None]:
        """Know what all gateways have written until now."""
        if self.possible:
            yield self._writing.drained(_AT)
            yield from self._fleet.persist(lambda: self._bounds.refresh([_AT]))
            yield from self._read_to(self._bounds.marks(_AT).stable)

    def _write(self, records: Sequence[Record]) -> Steps[None]:
        for _ in range(_OWNER_TRIES):
            if self.possible:
                break
            yield self._fleet.sleep(_OWNER_PAUSE_MS)  # the first owner makes the topic
            yield from self._fleet.persist(lambda: self._topics.refresh(STATE_TOPIC))
        else:
            self._state.refuse()
        data = batch.build(records, timestamp_ms=self._runtime.now_ms())
        self._writing.check_room(len(data))
        # Under no producer's id: by ids, new owners of the state find out whom to shut out.
        sending = self._writing.take(_AT, data, len(records), own=False)
        sending.acks = ACKS_ALL
        written: Appended = yield sending.later
        yield from self._read_to(written.next_offset)

    def _read_to(self, end: Offset) -> Steps[None]:
        for _ in range(_TRIES):
            if self._state.rows.position >= end:
                return
            changed: Later[None] = Later()
            stop = self._state.watch((_TABLE,), partial(_fill, changed))
            yield first_of([changed, self._fleet.sleep(_PAUSE_MS)])
            stop()


def _fill(later: Later[None]) -> None:
    if not later.ready:
        later.fill(None)
