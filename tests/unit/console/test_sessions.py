"""Browsers and their users: who stays when room is short, and when a session ends."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

import pentalog
from pentalog.cli.console import environment
from pentalog.clients.kafka.errors import Refused
from pentalog.console.identity import (
    SEARCHES_MAX,
    SESSIONS_MAX,
    Session,
    SessionOver,
    Sessions,
)
from pentalog.console.place import Place
from pentalog.console.query import Query
from pentalog.console.search import Search
from pentalog.console.watched import Watched
from pentalog.model.kio_schemas import ErrorCode

pytest.importorskip("nicegui", reason="the console is not installed")

PLACE = Place("127.0.0.1:1", login=True, session_idle_s=100.0, session_max_s=1000.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 5_000.0

    def __call__(self) -> float:
        return self.now_s


def logged_in(sessions: Sessions, browser: str, user: str) -> Session:
    session = sessions.get(browser)
    session.user = user
    session._logged_in_s = session.used_s = session._now()
    return session


def test_unknown_browsers_do_not_push_users_out() -> None:
    sessions = Sessions(PLACE)
    operator = logged_in(sessions, "operator", "alice")
    reading = sessions.get("reading")
    reading.page_opened()
    for number in range(2 * SESSIONS_MAX):
        sessions.get(f"visitor-{number}")
    assert sessions.get("operator") is operator
    assert operator.known
    assert sessions.get("reading") is reading
    assert len(sessions._sessions) <= SESSIONS_MAX


def test_a_user_with_many_sessions_pushes_out_only_their_own() -> None:
    sessions = Sessions(PLACE)
    operator = logged_in(sessions, "operator", "alice")
    first = logged_in(sessions, "greedy-0", "bob")
    for number in range(1, 2 * SESSIONS_MAX):
        logged_in(sessions, f"greedy-{number}", "bob")
    assert sessions.get("operator") is operator
    assert operator.known
    assert not first.known


def test_a_session_ends_when_its_user_does_nothing() -> None:
    clock = Clock()
    sessions = Sessions(PLACE, now=clock)
    session = logged_in(sessions, "browser", "alice")
    for _ in range(5):
        clock.now_s += 90
        session.touch()
        assert session.known
    clock.now_s += 101
    sessions.tidy()
    assert (session.known, session.user) == (False, "")
    session.touch()
    assert not session.known
    with pytest.raises(SessionOver):
        asyncio.run(session.ask(lambda cluster: cluster.topics()))
    with pytest.raises(SessionOver):
        asyncio.run(session.check_operator())


def test_a_session_ends_after_its_longest_time_whatever_its_user_does() -> None:
    clock = Clock()
    session = logged_in(Sessions(PLACE, now=clock), "browser", "alice")
    for _ in range(11):
        clock.now_s += 90
        session.touch()
        assert session.known
    clock.now_s += 90
    assert not session.known


def test_a_browser_that_came_once_is_forgotten() -> None:
    clock = Clock()
    sessions = Sessions(PLACE, now=clock)
    sessions.get("once")
    open_page = sessions.get("open")
    open_page.page_opened()
    clock.now_s += 3600
    sessions.tidy()
    assert list(sessions._sessions) == ["open"]


def test_a_login_that_the_broker_does_not_accept_any_more_ends_the_session() -> None:
    session = logged_in(Sessions(PLACE), "browser", "alice")

    def refused(_: object) -> None:
        raise Refused("logging in", ErrorCode.sasl_authentication_failed)

    with pytest.raises(SessionOver, match="does not accept your login"):
        asyncio.run(session.ask(refused))
    assert not session.known


def test_connections_end_with_the_last_page() -> None:
    with pentalog.Broker() as broker:
        sessions = Sessions(Place(broker.address("kafka")))

        async def look() -> list[int]:
            counts = []
            browsers = [sessions.get(f"browser-{number}") for number in range(30)]
            for session in browsers:
                session.page_opened()
            asked = (session.ask(lambda cluster: cluster.topics()) for session in browsers)
            await asyncio.gather(*asked)
            counts.append(len(sessions._unknown._idle))
            for session in browsers:
                session.page_closed()
            counts.append(len(sessions._unknown._idle))
            return counts

        most, left = asyncio.run(look())
    assert 1 <= most <= 4
    assert left == 0


def test_searches_of_unknown_visitors_leave_room_for_users() -> None:
    sessions = Sessions(Place("127.0.0.1:1"))
    unknown, user = sessions.get("unknown"), logged_in(sessions, "browser", "alice")
    searches = [Search(Nothing(), [], Query("x")) for _ in range(SEARCHES_MAX + 1)]
    for search in searches[:-1]:
        unknown.keep_search(search)
    with pytest.raises(ValueError, match="close one of them"):
        unknown.keep_search(searches[-1])
    user.keep_search(searches[-1])
    unknown.drop_search(searches[0])
    unknown.keep_search(searches[0])


class Nothing:
    """An origin that nobody reads from."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


class Answers:
    """In the place of the http listener."""

    def check(self) -> None: ...

    async def connections(self) -> list[dict[str, object]]:
        return [{"id": 1}]

    async def frames(self, connection: int) -> object:
        for number in range(3):
            yield {"frame": number}


def test_what_concerns_everybody_is_asked_for_as_the_visitor() -> None:
    clock = Clock()
    with pentalog.Broker(authorization=True) as guarded, pentalog.Broker() as free:
        for broker, allowed in ((guarded, False), (free, True)):
            session = Session(Place(broker.address("kafka")), now=clock)
            watched = Watched(session, Answers(), "what was measured")  # type: ignore[arg-type]

            async def look(watched: Watched = watched) -> list[object]:
                frames = [line async for line in watched.frames(1)]
                return [*await watched.connections(), *frames, await watched.history()]

            if allowed:
                assert len(asyncio.run(look())) == 5
            else:
                for call in (watched.connections, watched.subscriptions, watched.history, look):
                    with pytest.raises(Refused, match="CLUSTER_AUTHORIZATION_FAILED"):
                        asyncio.run(call())
            session.close_idle(0.0)


def test_a_right_is_asked_for_again() -> None:
    clock = Clock()
    session = Session(Place("127.0.0.1:1"), now=clock)
    answers: list[BaseException | None] = [None, Refused("x", ErrorCode.topic_authorization_failed)]

    async def ask(_: object) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    session.ask = ask  # type: ignore[method-assign]
    watched = Watched(session, Answers(), "")  # type: ignore[arg-type]

    async def look() -> None:
        seen = []
        async for line in watched.frames(1):
            seen.append(line)
            clock.now_s += 10
            assert len(seen) == 1

    with pytest.raises(Refused):
        asyncio.run(look())


def test_the_console_gets_only_what_it_needs_of_the_environment() -> None:
    ours = {
        "PATH": "/bin", "LC_ALL": "C", "PENTALOG_ENGINE_PASSWORD": "x", "NICEGUI_REDIS_URL": "x",
        "AWS_SECRET_ACCESS_KEY": "x", "GITHUB_TOKEN": "x", "PENTALOG_CONSOLE_KEY": "x",
        "LD_PRELOAD": "x",
    }  # fmt: skip
    assert environment(ours, with_pipelines=False) == {"PATH": "/bin", "LC_ALL": "C"}
    kept = environment(ours, with_pipelines=True)
    assert set(kept) == {"PATH", "LC_ALL", "AWS_SECRET_ACCESS_KEY"}
    assert set(environment(os.environ, with_pipelines=False)) <= set(os.environ)
