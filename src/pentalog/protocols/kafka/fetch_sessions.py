"""Fetch sessions (KIP-227): a consumer names its partitions once and then only what changed.

    session id, epoch   meaning
    0, 0                open a session; all partitions are listed
    id, 0               close that one and open another
    any, -1             no session; close the one named
    id, n               go on: partitions listed are new or changed, forgotten ones leave

Shared by all connections of a broker, because a client may come back on another connection.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

from pentalog.protocols.kafka.errors import ErrorCode

SESSIONS_MAX: Final = 1000
PARTITIONS_MAX: Final = 10_000
"""Partitions one session may hold; a client with more is served without a session."""
KEPT_MAX: Final = 100_000
"""Partitions that all sessions hold together: about 30 MB."""
OWNED_MAX: Final = KEPT_MAX // 2
"""Partitions that the sessions of one principal hold together, so that it cannot take all."""
IDLE_MS_MIN: Final = 120_000
"""How long a session must have been idle before a new one may take its place."""
_EPOCH_MAX: Final = (1 << 31) - 1


@dataclass(slots=True)
class Cursor:
    """One partition a consumer reads, and what it was told of it last."""

    topic: bytes
    """The name, or from version 13 on the 16 bytes of the id."""
    index: int
    offset: int
    bytes_max: int
    leader_epoch: int
    told_high: int = -1
    told_start: int = -1


def unique(cursors: list[Cursor]) -> list[Cursor]:
    """Join partitions that are named again: the last one counts, as in Kafka."""
    if len(cursors) < 2:
        return cursors
    return list({(cursor.topic, cursor.index): cursor for cursor in cursors}.values())


@dataclass(slots=True)
class FetchSession:
    session_id: int
    by_id: bool
    owner: Hashable = None
    epoch: int = 1
    """The epoch the next request must carry."""
    cursors: dict[tuple[bytes, int], Cursor] = field(default_factory=dict)
    used_ms: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request amounts to: the partitions to read, and how to answer."""

    cursors: list[Cursor]
    session_id: int = 0
    session: FetchSession | None = None
    """Set if only partitions with news are to be answered."""
    error: ErrorCode = ErrorCode.none


class FetchSessions:
    def __init__(self) -> None:
        # In order of use: the one idle for longest is first.
        self._sessions: dict[int, FetchSession] = {}
        self._kept = 0
        self._owned: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def kept(self) -> int:
        """Partitions that all sessions hold together."""
        return self._kept

    def plan(
        self,
        session_id: int,
        epoch: int,
        listed: list[Cursor],
        forgotten: Iterable[tuple[bytes, int]],
        *,
        by_id: bool,
        now_ms: int,
        owner: Hashable = None,
    ) -> Plan:
        """Say what a request amounts to; `owner` is charged for what is remembered."""
        if epoch <= 0:
            self.close(session_id)
            listed = unique(listed)
            # A negative epoch is the last word of a session, or the only one of a client
            # that never opens any.
            return self._open(listed, by_id, now_ms, owner) if epoch == 0 else Plan(listed)
        session = self._sessions.get(session_id)
        if session is None:
            return Plan([], error=ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            return Plan([], error=ErrorCode.invalid_fetch_session_epoch)
        if session.by_id != by_id:
            return Plan([], error=ErrorCode.fetch_session_topic_id_error)
        return self._go_on(session, listed, forgotten, now_ms)

    def close(self, session_id: int) -> None:
        """Forget a session its client will not hear of."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._charge(session.owner, -len(session.cursors))

    def _charge(self, owner: Hashable, partitions: int) -> None:
        self._kept += partitions
        self._owned[owner] += partitions
        if not self._owned[owner]:
            del self._owned[owner]

    def _open(self, listed: list[Cursor], by_id: bool, now_ms: int, owner: Hashable) -> Plan:
        if len(listed) > PARTITIONS_MAX or not self._room(len(listed), now_ms, owner):
            return Plan(listed)
        session_id = random.randint(1, _EPOCH_MAX)
        while session_id in self._sessions:
            session_id = random.randint(1, _EPOCH_MAX)
        session = FetchSession(session_id, by_id, owner, used_ms=now_ms)
        for cursor in listed:
            session.cursors[cursor.topic, cursor.index] = cursor
        self._sessions[session_id] = session
        self._charge(owner, len(session.cursors))
        return Plan(listed, session_id)

    def _room(self, partitions: int, now_ms: int, owner: Hashable) -> bool:
        """May another session be kept?  Sessions that have been idle for long make room."""
        while True:
            if (
                len(self._sessions) < SESSIONS_MAX
                and self._kept + partitions <= KEPT_MAX
                and self._owned[owner] + partitions <= OWNED_MAX
            ):
                return True
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms < IDLE_MS_MIN:
                return False
            self.close(oldest.session_id)

    def _go_on(
        self,
        session: FetchSession,
        listed: list[Cursor],
        forgotten: Iterable[tuple[bytes, int]],
        now_ms: int,
    ) -> Plan:
        cursors = session.cursors
        before = len(cursors)
        for cursor in listed:
            known = cursors.get((cursor.topic, cursor.index))
            if known is None:
                cursors[cursor.topic, cursor.index] = cursor
            else:
                known.offset = cursor.offset
                known.bytes_max = cursor.bytes_max
                known.leader_epoch = cursor.leader_epoch
        for key in forgotten:
            cursors.pop(key, None)
        self._charge(session.owner, len(cursors) - before)
        self.close(session.session_id)
        if not cursors:
            return Plan([])
        if len(cursors) > PARTITIONS_MAX or not self._room(len(cursors), now_ms, session.owner):
            # The client answers this with a full request, which is then served without a session.
            return Plan([], error=ErrorCode.fetch_session_id_not_found)
        self._sessions[session.session_id] = session
        self._charge(session.owner, len(cursors))
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        return Plan(list(cursors.values()), session.session_id, session)
