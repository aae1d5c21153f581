"""The bounds of the session cache."""

from __future__ import annotations

from pentalog.protocols.kafka import fetch_sessions
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.fetch_sessions import Cursor, FetchSessions, Plan


def cursors(count: int, *, first: int = 0) -> list[Cursor]:
    return [Cursor(b"t", number, 0, 1, -1) for number in range(first, first + count)]


def opened(sessions: FetchSessions, now_ms: int, count: int = 1) -> Plan:
    return sessions.plan(0, 0, cursors(count), [], by_id=False, now_ms=now_ms)


def go_on(
    sessions: FetchSessions, session_id: int, epoch: int, now_ms: int, count: int = 0
) -> Plan:
    listed = cursors(count, first=50_000)
    return sessions.plan(session_id, epoch, listed, [], by_id=False, now_ms=now_ms)


def test_the_cache_is_bounded_and_the_longest_idle_leaves() -> None:
    sessions = FetchSessions()
    first = opened(sessions, 0).session_id
    second = opened(sessions, 1).session_id
    for _ in range(fetch_sessions.SESSIONS_MAX - 2):
        assert opened(sessions, 2).session_id
    # All were used lately: the newcomer is served without a session.
    declined = opened(sessions, 100)
    assert (declined.session_id, len(declined.cursors)) == (0, 1)
    assert go_on(sessions, first, 1, fetch_sessions.IDLE_MS_MIN).error is ErrorCode.none
    assert opened(sessions, fetch_sessions.IDLE_MS_MIN + 1).session_id
    assert len(sessions) == fetch_sessions.SESSIONS_MAX
    gone = go_on(sessions, second, 1, fetch_sessions.IDLE_MS_MIN + 2)
    assert gone.error is ErrorCode.fetch_session_id_not_found
    assert go_on(sessions, first, 2, fetch_sessions.IDLE_MS_MIN + 2).error is ErrorCode.none


def test_a_session_holds_so_many_partitions() -> None:
    sessions = FetchSessions()
    limit = fetch_sessions.PARTITIONS_MAX
    assert opened(sessions, 0, limit + 1).session_id == 0
    plan = opened(sessions, 0, limit)
    assert plan.session_id
    beyond = go_on(sessions, plan.session_id, 1, 0, count=1)
    assert beyond.error is ErrorCode.fetch_session_id_not_found
    assert len(sessions) == 0


def test_epochs_wrap_to_1() -> None:
    sessions = FetchSessions()
    plan = opened(sessions, 0)
    assert plan.session is None
    session_id = plan.session_id
    sessions._sessions[session_id].epoch = (1 << 31) - 1
    assert go_on(sessions, session_id, (1 << 31) - 1, 0).error is ErrorCode.none
    assert go_on(sessions, session_id, 1, 0).error is ErrorCode.none
