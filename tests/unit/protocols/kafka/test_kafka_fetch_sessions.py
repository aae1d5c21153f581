"""The bounds of the session cache."""

from __future__ import annotations

import pytest

from pentalog.broker.security import ANONYMOUS, Access, Principal
from pentalog.protocols.kafka import fetch_sessions
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.fetch_sessions import Cursor, FetchSessions, Plan

UNKNOWN_CLIENT = Access()
LATER_MS = fetch_sessions.IDLE_MS_MIN


def user(name: str) -> Access:
    return Access(who=Principal("User", name))


def cursors(count: int, *, first: int = 0) -> list[Cursor]:
    return [Cursor(b"t", number, 0, 1, -1) for number in range(first, first + count)]


def opened(
    sessions: FetchSessions, now_ms: int, count: int = 1, access: Access = UNKNOWN_CLIENT
) -> Plan:
    plan = sessions.plan(0, 0, cursors(count), [], by_id=False, now_ms=now_ms, access=access)
    assert (plan.error, len(plan.cursors)) == (ErrorCode.none, count), "it is served in any case"
    return plan


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


def is_known(sessions: FetchSessions, plan: Plan) -> bool:
    return plan.session_id in sessions._sessions


def test_partitions_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "KEPT_MAX", 20)
    sessions = FetchSessions()
    first = opened(sessions, 0, 12)
    assert not opened(sessions, 1, 12).session_id
    assert sessions.kept == 12
    sessions.close(first.session_id)
    assert sessions.kept == 0
    second = opened(sessions, 2, 18)
    outgrown = go_on(sessions, second.session_id, 1, 3, count=3)
    assert outgrown.error is ErrorCode.fetch_session_id_not_found
    assert (sessions.kept, len(sessions)) == (0, 0)
    assert opened(sessions, 4, 20).session_id


def test_a_larger_session_ends_a_smaller_one_that_is_not_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Kafka does it."""
    monkeypatch.setattr(fetch_sessions, "SESSIONS_MAX", 2)
    sessions = FetchSessions()
    small, large = opened(sessions, 0, 3), opened(sessions, 0, 5)
    assert not opened(sessions, LATER_MS - 1_001, 9).session_id, "both are new"
    for plan in (small, large):
        go_on(sessions, plan.session_id, 1, LATER_MS - 1)
    assert not opened(sessions, LATER_MS, 3).session_id, "none is smaller"
    assert not opened(sessions, LATER_MS, 3).session_id, "and it is not searched again at once"
    assert opened(sessions, LATER_MS, 4).session_id
    assert (is_known(sessions, small), is_known(sessions, large)) == (False, True)


def test_a_client_that_takes_every_session_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "SESSIONS_MAX", 10)
    sessions = FetchSessions()
    greedy = [opened(sessions, 0, 8, user("greedy")) for _ in range(10)]
    assert all(plan.session_id for plan in greedy), "while no other client wants them"
    assert not opened(sessions, 1, 99, user("greedy")).session_id
    modest = [opened(sessions, 2, 1, user("modest")) for _ in range(8)]
    assert [bool(plan.session_id) for plan in modest] == [True] * 5 + [False] * 3
    assert sum(is_known(sessions, plan) for plan in greedy) == 5
    # The greedy one cannot take them back, however large its sessions are and however old others.
    for plan in modest[:5]:
        go_on(sessions, plan.session_id, 1, LATER_MS)
    for plan in greedy[5:]:
        go_on(sessions, plan.session_id, 1, LATER_MS)
    for _ in range(10):
        opened(sessions, LATER_MS + 3, 99, user("greedy"))
    assert all(is_known(sessions, plan) for plan in modest[:5])
    third = [opened(sessions, LATER_MS + 4, 1, user("third")) for _ in range(4)]
    assert all(plan.session_id for plan in third[:3])
    assert len(sessions) == 10


def test_one_large_session_makes_no_way_for_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "KEPT_MAX", 1_000)
    sessions = FetchSessions()
    large = opened(sessions, 0, 1_000, user("large"))
    assert not opened(sessions, 1, 1, user("small")).session_id
    assert is_known(sessions, large), "its only one"


def test_clients_without_login_are_told_apart_by_their_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_sessions, "SESSIONS_MAX", 4)
    sessions = FetchSessions()
    for _ in range(4):
        assert opened(sessions, 0, 1, Access(who=ANONYMOUS, host="10.0.0.1")).session_id
    assert opened(sessions, 0, 1, Access(who=ANONYMOUS, host="10.0.0.2")).session_id
    assert opened(sessions, 0, 1, Access(who=ANONYMOUS, host="10.0.0.2")).session_id
    assert not opened(sessions, 0, 1, Access(who=ANONYMOUS, host="10.0.0.2")).session_id


def test_a_client_that_found_no_room_gets_it_as_soon_as_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_sessions, "SESSIONS_MAX", 1)
    sessions = FetchSessions()
    only = opened(sessions, 0)
    assert not opened(sessions, LATER_MS - 1).session_id
    assert not opened(sessions, LATER_MS + 998).session_id, "no search for a second"
    assert opened(sessions, LATER_MS + 999).session_id
    assert not opened(sessions, LATER_MS + 999).session_id
    (left,) = sessions._sessions
    sessions.close(left)
    assert opened(sessions, LATER_MS + 999).session_id
    assert not is_known(sessions, only)
