"""The HTTP session fed by hand: any bytes give answers or a hang-up, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.runtimes import SteppedRuntime

from pentalog.broker.security import Access, Unguarded, Verdict
from pentalog.config import Config, Listen
from pentalog.metrics import Traffic
from pentalog.model.later import Later
from pentalog.observation import (
    ConnectionView,
    DoorView,
    Frame,
    Health,
    NotInspected,
    Told,
    Watching,
)
from pentalog.protocols.http import starting
from pentalog.protocols.http.frames import HEAD_BYTES_MAX
from pentalog.protocols.http.session import HttpSession
from pentalog.session import Context

nobody: Any = None


class Line:
    """`session.Replies` that keeps what was sent."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.ended = False
        self.full = False
        self.patient: list[Callable[[], None]] = []

    def send(self, *pieces: Any) -> None:
        self.sent += b"".join(pieces)

    def place(self) -> Any:
        line = self

        class Place:
            def fill(self, *pieces: Any) -> None:
                line.send(*pieces)

        return Place()

    def reserve(self, size: int) -> Later[Callable[[], None]]:
        return Later.now(lambda: None)

    def hang_up(self) -> None:
        self.ended = True

    def when_room(self, run: Callable[[], None]) -> None:
        self.patient.append(run)

    def mute(self, delay_ms: int) -> None: ...

    def hold(self) -> Callable[[], None]:
        self.full = True

        def release() -> None:
            self.full = False

        return release


class FakeObservation:
    def __init__(self) -> None:
        self.console_url: str | None = None
        self.console_key = "the console's"
        self.ready = True
        self.started_ms = 1000
        self.flaw = ""
        self.watchers: list[Watching] = []

    def connections(self, *, after: int, count: int) -> tuple[list[ConnectionView], int]:
        view = self.connection(7)
        return ([view], 3) if after < 7 else ([], 0)

    def connection(self, number: int) -> ConnectionView:
        traffic = Traffic(received_bytes=10, requests=1)
        return ConnectionView(number, "kafka", "kafka", "127.0.0.1:5", 2000, traffic, "me", "")

    def doors(self) -> list[DoorView]:
        return [DoorView("kafka", [("kafka", "127.0.0.1:9092")], 1, Traffic(sent_bytes=3))]

    def health(self) -> Later[Health]:
        return Later.now(Health(self.flaw))

    def watch(self, number: int, watching: Watching) -> Callable[[], None]:
        if number != 7:
            raise NotInspected(f"there is no connection {number}")
        self.watchers.append(watching)
        return lambda: self.watchers.remove(watching)


class World:
    def __init__(self, access: Access | None = None, **settings: Any) -> None:
        self.runtime = SteppedRuntime()
        self.observation = FakeObservation()
        self.line = Line()
        self.traffic = Traffic()
        self.session = HttpSession(
            Context(
                broker=nobody,
                runtime=self.runtime,
                config=replace(Config(), **settings),
                metrics=self.traffic,
                peer="test",
                listener="http",
                advertised=nobody,
                observation=self.observation,
                access=access or Access(),
            ),
            self.line,
        )

    def say(self, text: str | bytes) -> str:
        data = text.encode() if isinstance(text, str) else text
        data = data.replace(b"\n", b"\r\n")
        self.line.sent.clear()
        used = self.session.receive(memoryview(bytearray(data)))
        assert used == len(data)
        self.runtime.step()
        return self.line.sent.decode()

    def get(self, path: str, host: str = "127.0.0.1:9644", more: str = "") -> str:
        return self.say(f"GET {path} HTTP/1.1\nHost: {host}\n{more}\n")


class Strict(Unguarded):
    """Nobody may do anything."""

    enforced = True

    def judge(self, *_: object) -> Verdict:
        return Verdict(False, "no rule")


@pytest.fixture
def world() -> World:
    return World()


def test_health_and_readiness(world: World) -> None:
    assert world.get("/health").startswith("HTTP/1.1 200 OK\r\n")
    assert world.get("/ready").endswith("\r\n\r\nready\n")
    world.observation.flaw = "cannot write to x: No space left"
    world.observation.ready = False
    assert world.get("/health").startswith("HTTP/1.1 503 ")
    assert "No space left" in world.line.sent.decode()
    assert world.get("/ready").startswith("HTTP/1.1 503 ")
    assert not world.line.ended


def test_connections_and_rates_are_json(world: World) -> None:
    assert '"id":7,"door":"kafka"' in world.get("/api/v1/connections")
    assert world.get("/api/v1/connections").endswith('],"more":3}\n')
    assert world.get("/api/v1/connections?after=7").endswith('{"connections":[],"more":0}\n')
    assert '"listeners":{"kafka":"127.0.0.1:9092"},"connections":1' in world.get("/api/v1/rates")


def test_requests_in_one_piece_are_answered_in_order(world: World) -> None:
    one = "GET {} HTTP/1.1\nHost: localhost\n\n"
    said = world.say(one.format("/ready") + one.format("/health") + one.format("/nothing"))
    assert re.findall(r"HTTP/1.1 (\d+)", said) == ["200", "200", "404"]
    assert world.traffic.requests == 3
    assert world.traffic.request_errors == 1


def test_costly_requests_in_one_piece_are_served_one_a_turn(world: World) -> None:
    one = b"GET /api/v1/connections HTTP/1.1\r\nHost: localhost\r\n\r\n"
    data = 3 * one
    for count in (1, 2, 3):
        assert world.session.receive(memoryview(bytearray(data))) == len(one)
        assert world.line.sent.count(b"HTTP/1.1 200") == count
        assert world.line.full == (count < 3)
        world.runtime.step()
        assert not world.line.full
        data = data[len(one) :]


def test_cheap_requests_in_one_piece_are_served_some_a_turn(world: World) -> None:
    one = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
    used = world.session.receive(memoryview(bytearray(1000 * one)))
    assert len(one) < used < 200 * len(one)


def test_answers_are_neither_framed_nor_guessed_at(world: World) -> None:
    for said in (world.get("/ready"), world.get("/api/v1/nothing"), world.say("nonsense\n\n")):
        for guard in (
            "X-Content-Type-Options: nosniff",
            "X-Frame-Options: DENY",
            "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
            "Referrer-Policy: no-referrer",
        ):
            assert f"\r\n{guard}\r\n" in said


@pytest.mark.parametrize(("host", "status"), [("evil.example", 403), ("127.0.0.1", 200)])
def test_names_are_checked_during_the_start_too(host: str, status: int) -> None:
    data = bytearray(f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    said = starting.answer(memoryview(data), "recovering", {})
    assert said is not None
    assert said.startswith(b"HTTP/1.1 %d " % status)


def test_a_request_in_crumbs_is_one_request(world: World) -> None:
    data = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for end in range(1, len(data)):
        assert world.session.receive(memoryview(bytearray(data[:end]))) == 0
        assert world.session.wanted > 0
    assert world.session.receive(memoryview(bytearray(data))) == len(data)
    assert world.line.sent.startswith(b"HTTP/1.1 200")


def test_head_has_no_body(world: World) -> None:
    said = world.say("HEAD /ready HTTP/1.1\nHost: localhost\n\n")
    assert "Content-Length: 6\r\n" in said
    assert said.endswith("\r\n\r\n")


def test_old_clients_are_hung_up_on(world: World) -> None:
    assert "Connection: close" in world.say("GET /ready HTTP/1.0\n\n")
    assert world.line.ended


def test_a_client_may_ask_for_the_end(world: World) -> None:
    world.say("GET /ready HTTP/1.1\nHost: localhost\nConnection: close\n\n")
    assert world.line.ended


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("POST /metrics HTTP/1.1\nHost: localhost\n\n", 405),
        ("DELETE / HTTP/1.1\nHost: localhost\n\n", 405),
        ("GET /metrics HTTP/1.1\n\n", 400),
        ("GET /metrics HTTP/2.0\n\n", 505),
        ("PRI * HTTP/2.0\n\n", 505),
        ("GET * HTTP/1.1\nHost: a\n\n", 400),
        ("GET http://[ HTTP/1.1\nHost: a\n\n", 400),
        ("GET\n\n", 400),
        ("nonsense and more words here\n\n", 400),
        ("GET / HTTP/1.1\nHost: a\nHost: b\n\n", 400),
        ("GET / HTTP/1.1\nHost: a\nno colon\n\n", 400),
        ("GET / HTTP/1.1\nHost: a\n folded: x\n\n", 400),
        ("GET / HTTP/1.1\nHost: localhost\nContent-Length: 5\n\n", 400),
        ("GET / HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n\n", 400),
        ("GET /api/v1/nothing HTTP/1.1\nHost: localhost\n\n", 404),
        ("GET /api/v1/connections?after=x HTTP/1.1\nHost: localhost\n\n", 400),
        ("GET /api/v1/inspect/x HTTP/1.1\nHost: localhost\n\n", 400),
        ("GET /api/v1/inspect/8 HTTP/1.1\nHost: localhost\n\n", 404),
        ("GET /api/v1/inspect/7?bytes=x HTTP/1.1\nHost: localhost\n\n", 400),
    ],
)
def test_refusals(world: World, request_text: str, status: int) -> None:
    assert world.say(request_text).startswith(f"HTTP/1.1 {status} ")
    assert world.traffic.request_errors == 1
    assert world.observation.watchers == []


def test_a_head_without_end_is_refused(world: World) -> None:
    data = b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX
    assert world.session.receive(memoryview(bytearray(data))) == len(data)
    assert world.line.sent.startswith(b"HTTP/1.1 431 ")
    assert world.line.ended


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9644", 200), ("LOCALHOST", 200), ("[::1]:9644", 200), ("10.1.2.3", 200),
        ("log.example:9644", 200), ("evil.example", 403), ("localhost.evil.example", 403),
    ],
)  # fmt: skip
def test_only_names_of_this_broker_are_served(host: str, status: int) -> None:
    world = World(advertise={"http": Listen("http", "log.example", 9644)})
    assert world.get("/ready", host).startswith(f"HTTP/1.1 {status} ")


def test_everything_else_is_the_console(world: World) -> None:
    assert "/api/v1/inspect/NUMBER" in world.get("/")
    assert world.get("/topics").startswith("HTTP/1.1 404 ")
    world.observation.console_url = "http://127.0.0.1:9645"
    said = world.get("/topics/a%0d%0ab")
    assert said.startswith("HTTP/1.1 307 ")
    assert "\r\nLocation: http://127.0.0.1:9645/topics/a%0D%0Ab\r\n" in said


def frame(number: int, *, secret: bool = False) -> Frame:
    told = Told("Produce", number, 9, "orders", "me", secret)
    return Frame(3000, True, 500, told, b"" if secret else bytes(200))


def test_frames_are_lines_as_they_pass(world: World) -> None:
    said = world.get("/api/v1/inspect/7?bytes=4")
    assert "Transfer-Encoding: chunked\r\n" in said
    assert '{"connection":{"id":7,' in said
    (watching,) = world.observation.watchers
    world.line.sent.clear()
    watching.frame(frame(1))
    watching.frame(frame(2, secret=True))
    world.runtime.step()
    said = world.line.sent.decode()
    assert '"name":"Produce","version":9,"correlation":1,"topic":"orders"' in said
    assert '"hex":"00000000"}' in said
    assert '"correlation":2,"topic":"orders","client":"me","hex":null}' in said
    watching.ended()
    assert world.line.sent.endswith(b'{"ended":"the connection is closed"}\n\r\n0\r\n\r\n')
    assert world.observation.watchers == []
    assert world.get("/ready").startswith("HTTP/1.1 200")


def test_a_slow_reader_is_told_what_it_missed(world: World) -> None:
    world.get("/api/v1/inspect/7")
    (watching,) = world.observation.watchers
    world.line.full = True
    for number in range(5):
        watching.frame(frame(number))
    world.runtime.step()
    world.line.sent.clear()
    world.line.full = False
    for run in world.line.patient:
        run()
    assert b'{"dropped":5}' in world.line.sent
    for number in range(3000):
        watching.frame(frame(number))
    world.runtime.step()
    assert world.line.sent.count(b'"name":"Produce"') == 1000
    assert b'{"dropped":2000}' in world.line.sent


def test_frames_are_shown_no_longer_than_their_reader_may_see_them() -> None:
    rules = Unguarded()
    rules.enforced = True
    world = World(Access(rules))
    world.get("/api/v1/inspect/7")
    (watching,) = world.observation.watchers
    world.line.sent.clear()
    watching.frame(frame(1))
    with patch.object(rules, "judge", Strict().judge):
        rules.version += 1
        world.runtime.step()
    assert b"Produce" not in world.line.sent
    assert b"the right to see it was taken away" in world.line.sent
    assert world.line.sent.endswith(b"0\r\n\r\n")
    assert world.observation.watchers == []
    watching.frame(frame(2))
    watching.ended()
    world.runtime.step()
    assert world.line.sent.endswith(b"0\r\n\r\n")
    assert world.line.sent.count(b"ended") == 1


def test_a_reader_that_goes_is_forgotten(world: World) -> None:
    world.get("/api/v1/inspect/7")
    world.session.close()
    assert world.observation.watchers == []


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from(
                [b"GET ", b"/ready", b"/api/v1/inspect/7", b" HTTP/1.1\r\n", b"Host: a\r\n"]
            ),
            st.just(b"\r\n"),
        ),
        max_size=20,
    )
)
def test_any_bytes_give_answers_or_a_hang_up(pieces: list[bytes]) -> None:
    world = World()
    data = bytearray(b"".join(pieces))
    used = world.session.receive(memoryview(data))
    assert 0 <= used <= len(data)
    assert not world.line.sent or world.line.sent.startswith(b"HTTP/1.1 ")


def test_the_broker_s_own_console_needs_no_rule() -> None:
    world = World(Access(Strict()))
    for path in ("/metrics", "/api/v1/connections", "/api/v1/rates", "/api/v1/inspect/7"):
        assert world.get(path).startswith("HTTP/1.1 403 "), path
        wrong = "Authorization: Bearer the console's own\n"
        assert world.get(path, more=wrong).startswith("HTTP/1.1 403 "), path
    shown = "Authorization: Bearer the console's\n"
    assert world.get("/api/v1/rates", more=shown).startswith("HTTP/1.1 200 ")
    assert world.get("/health").startswith("HTTP/1.1 200 ")
