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
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pentalog.protocols.kafka.errors import ErrorCode

SESSIONS_MAX: Final = 1000
PARTITIONS_MAX: Final = 10_000
"""Partitions one session may hold; a client with more is served without a session."""
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


@dataclass(slots=True)
class FetchSession:
    session_id: int
    by_id: bool
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

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(
        self,
        session_id: int,
        epoch: int,
        listed: list[Cursor],
        forgotten: Iterable[tuple[bytes, int]],
        *,
        by_id: bool,
        now_ms: int,
    ) -> Plan:
        if epoch <= 0:
            self._sessions.pop(session_id, None)
            # A negative epoch is the last word of a session, or the only one of a client
            # that never opens any.
            return self._open(listed, by_id, now_ms) if epoch == 0 else Plan(listed)
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
        self._sessions.pop(session_id, None)

    def _open(self, listed: list[Cursor], by_id: bool, now_ms: int) -> Plan:
        if len(listed) > PARTITIONS_MAX or not self._room(now_ms):
            return Plan(listed)
        session_id = random.randint(1, _EPOCH_MAX)
        while session_id in self._sessions:
            session_id = random.randint(1, _EPOCH_MAX)
        session = FetchSession(session_id, by_id, used_ms=now_ms)
        for cursor in listed:
            session.cursors[cursor.topic, cursor.index] = cursor
        self._sessions[session_id] = session
        return Plan(listed, session_id)

    def _room(self, now_ms: int) -> bool:
        if len(self._sessions) < SESSIONS_MAX:
            return True
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms < IDLE_MS_MIN:
            return False
        del self._sessions[oldest.session_id]
        return True

    def _go_on(
        self,
        session: FetchSession,
        listed: list[Cursor],
        forgotten: Iterable[tuple[bytes, int]],
        now_ms: int,
    ) -> Plan:
        cursors = session.cursors
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
        del self._sessions[session.session_id]
        if not cursors:
            return Plan([])
        if len(cursors) > PARTITIONS_MAX:
            # The client answers this with a full request, which is then served without a session.
            return Plan([], error=ErrorCode.fetch_session_id_not_found)
        self._sessions[session.session_id] = session
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        return Plan(list(cursors.values()), session.session_id, session)
