"""Fetch sessions (KIP-227): a consumer names its partitions once and then only what changed.

    session id, epoch   meaning
    0, 0                open a session; all partitions are listed
    id, 0               close that one and open another
    any, -1             no session; close the one named
    id, n               go on: partitions listed are new or changed, forgotten ones leave

Shared by all connections of a broker, because a client may come back on another connection.

A full cache costs no client its answer: without a session it is served in full, with session id 0.
By Kafka's rule a new session ends another one that has been idle for long, or is smaller and not
new.  Between principals this is fair: the sessions of a principal that holds no more than the
newcomer's are left alone, and one that holds clearly more loses sessions even while it uses them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pentalog.broker.security import Access
from pentalog.protocols.kafka.errors import ErrorCode

SESSIONS_MAX: Final = 1000
PARTITIONS_MAX: Final = 10_000
"""Partitions one session may hold; a client with more is served without a session."""
KEPT_MAX: Final = 100_000
"""Partitions that all sessions hold together: about 30 MB."""
IDLE_MS_MIN: Final = 120_000
"""How long a session must have been idle, or have existed, before Kafka's rule may end it."""
_DECLINED_MS: Final = 1_000
"""How long an owner that found no room gets no session, unless there is room meanwhile.

A client without a session asks for one with every fetch, and each search looks at all sessions.
"""
_DECLINED_MAX: Final = 1_000
_SESSION_COST: Final = KEPT_MAX // SESSIONS_MAX
"""What a session counts for its owner, in partitions, besides those that it holds."""
_UNKNOWN_CLIENT: Final = Access()
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
    owner: str = ""
    epoch: int = 1
    """The epoch the next request must carry."""
    cursors: dict[tuple[bytes, int], Cursor] = field(default_factory=dict)
    created_ms: int = 0
    used_ms: int = 0

    @property
    def cost(self) -> int:
        return _SESSION_COST + len(self.cursors)


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
        self._costs: Counter[str] = Counter()
        """Of all sessions of each owner."""
        self._declined: dict[str, tuple[int, int]] = {}
        """Owners that found no room: for how many partitions, and until when it is believed."""

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
        access: Access = _UNKNOWN_CLIENT,
    ) -> Plan:
        """Say what a request amounts to; `access` tells who is charged for a new session."""
        if epoch <= 0:
            self.close(session_id)
            listed = unique(listed)
            # A negative epoch is the last word of a session, or the only one of a client
            # that never opens any.
            return self._open(listed, by_id, now_ms, access.owner) if epoch == 0 else Plan(listed)
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
            self._kept -= len(session.cursors)
            self._costs[session.owner] -= session.cost
            if not self._costs[session.owner]:
                del self._costs[session.owner]

    def _open(self, listed: list[Cursor], by_id: bool, now_ms: int, owner: str) -> Plan:
        if len(listed) > PARTITIONS_MAX or self._is_declined(owner, len(listed), now_ms):
            return Plan(listed)
        session_id = random.randint(1, _EPOCH_MAX)
        while session_id in self._sessions:
            session_id = random.randint(1, _EPOCH_MAX)
        session = FetchSession(session_id, by_id, owner, created_ms=now_ms, used_ms=now_ms)
        for cursor in listed:
            session.cursors[cursor.topic, cursor.index] = cursor
        self._sessions[session_id] = session
        self._kept += len(session.cursors)
        self._costs[owner] += session.cost
        if self._is_over() and not self._make_room(session, now_ms):
            self.close(session_id)
            if len(self._declined) >= _DECLINED_MAX:
                self._declined.clear()
            self._declined[owner] = len(listed), now_ms + _DECLINED_MS
            return Plan(listed)
        return Plan(listed, session_id)

    def _is_declined(self, owner: str, partitions: int, now_ms: int) -> bool:
        """Return whether the cache is full and a search for room would most likely be in vain."""
        if len(self._sessions) < SESSIONS_MAX and self._kept + partitions <= KEPT_MAX:
            return False
        most, until_ms = self._declined.get(owner, (-1, 0))
        return partitions <= most and now_ms < until_ms

    def _is_over(self) -> bool:
        return len(self._sessions) > SESSIONS_MAX or self._kept > KEPT_MAX

    def _make_room(self, newcomer: FetchSession, now_ms: int) -> bool:
        """End other sessions for this one; none if those that may be ended are not enough."""
        sessions, partitions = len(self._sessions), self._kept
        ended: list[int] = []
        for other in self._evictable(newcomer, now_ms):
            ended.append(other.session_id)
            sessions -= 1
            partitions -= len(other.cursors)
            if sessions <= SESSIONS_MAX and partitions <= KEPT_MAX:
                for session_id in ended:
                    self.close(session_id)
                return True
        return False

    def _evictable(self, newcomer: FetchSession, now_ms: int) -> Iterator[FetchSession]:
        """Yield the sessions that may be ended for another, the most dispensable first."""
        old_ms, size = now_ms - IDLE_MS_MIN, len(newcomer.cursors)
        in_use: list[FetchSession] = []
        costs = self._costs.copy()
        for other in self._sessions.values():
            if other is newcomer:
                continue
            if other.used_ms > old_ms:
                in_use.append(other)
            else:
                costs[other.owner] -= other.cost
                yield other
        in_use.sort(key=lambda one: (-costs[one.owner], len(one.cursors)))
        after = costs[newcomer.owner]
        before = after - newcomer.cost
        for other in in_use:
            theirs = costs[other.owner]
            own = other.owner == newcomer.owner
            by_size = other.created_ms <= old_ms and len(other.cursors) < size
            if (by_size and (own or theirs > before)) or theirs - other.cost >= after:
                costs[other.owner] -= other.cost
                yield other

    def _go_on(
        self,
        session: FetchSession,
        listed: list[Cursor],
        forgotten: Iterable[tuple[bytes, int]],
        now_ms: int,
    ) -> Plan:
        cursors = session.cursors
        grown = -len(cursors)
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
        grown += len(cursors)
        if grown:
            self._kept += grown
            self._costs[session.owner] += grown
        if not cursors:
            self.close(session.session_id)
            return Plan([])
        if grown > 0 and not self._may_stay(session, now_ms):
            # The client answers this with a full request, which is then served without a session.
            self.close(session.session_id)
            return Plan([], error=ErrorCode.fetch_session_id_not_found)
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        return Plan(list(cursors.values()), session.session_id, session)

    def _may_stay(self, session: FetchSession, now_ms: int) -> bool:
        if len(session.cursors) > PARTITIONS_MAX:
            return False
        return not self._is_over() or self._make_room(session, now_ms)
