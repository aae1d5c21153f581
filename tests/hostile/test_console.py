"""Visitors of the console and of the http listener who mean no good."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from tests.hostile.hostile_world import API_VERSIONS, HostileWorld, answer, connect
from tests.server import broker_process
from tests.server.broker_process import BrokerProcess

from pentalog.clients.kafka import Cluster, GroupOffset, commit
from pentalog.model.types import Partition

pytest.importorskip("nicegui", reason="the console is not installed")

PATIENCE_S = 60.0
SECRET = "s3cr3t-of-the-broker"
GUARDS = ("content-security-policy", "x-frame-options", "x-content-type-options", "referrer-policy")
LISTEN = ("--listen", "http=127.0.0.1:0", "--console", "127.0.0.1:0")
STRANGE = (
    "[" * 3000,
    '{"pipeline": "a", "state": "x", "time_ms": 1}',
    json.dumps(
        {"pipeline": "odd", "state": "<img src=x onerror=alert(1)>", "topics": [{}], "into": "i"}
        | {"tables": {"b": 1}, "lag": [], "last_batch": 1, "ledger": {}, "dead_letters": "many"}
        | {"time_ms": 1}
    ),
)
SOUND = json.dumps(
    {"pipeline": "sound", "state": "<img src=x onerror=alert(1)>", "topics": ["t"], "into": "i"}
    | {"tables": {}, "lag": {"records": 7}, "last_batch": {}, "ledger": [], "dead_letters": 0}
    | {"time_ms": 1}
)


class Visited:
    """A broker with its console, and where they are."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.kafka = self._address("kafka")
        self.http = self._address("http")
        self.console = until(self._sent_to, "a console")

    def _address(self, name: str) -> str:
        line = next(one for one in self.broker.lines if one.startswith(f"{name} "))
        return line.rpartition(" ")[2]

    def _sent_to(self) -> str:
        found = ask(self.http, "/topics")
        return urlsplit(found.headers.get("location", "")).netloc

    def page(self, path: str) -> str:
        answer = ask(self.console, path)
        assert answer.status == 200
        return answer.text


def until(look: Callable[[], str], what: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come")


class Answer(NamedTuple):
    status: int
    headers: Message
    text: str


def ask(address: str, path: str, method: str = "GET", **headers: str) -> Answer:
    host, _, port = address.rpartition(":")
    with closing(HTTPConnection(host, int(port), timeout=PATIENCE_S)) as connection:
        connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        with connection.getresponse() as found:
            # A socket that was opened says no more.
            text = "" if found.status == 101 else found.read().decode("utf-8", "replace")
            return Answer(found.status, found.headers, text)


def raw(address: str) -> socket.socket:
    return connect(int(address.rpartition(":")[2]))


def is_closed(client: socket.socket) -> bool:
    """Whether the other side hangs up, at the latest when patience ends."""
    client.settimeout(PATIENCE_S)
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visited]:
    """Rules are on, nobody logs in."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(broker_process._ENVIRONMENT, "DATABASE_PASSWORD", SECRET)
        patch.setitem(broker_process._ENVIRONMENT, "NICEGUI_REDIS_URL", f"redis://:{SECRET}@x")
        broker = BrokerProcess(data, *LISTEN, "--authorization", "true")
    with broker:
        yield Visited(broker)


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visited]:
    """Everybody may do everything."""
    data = tmp_path_factory.mktemp("free") / "data"
    with BrokerProcess(data, *LISTEN) as broker:
        yield Visited(broker)


def test_an_unknown_visitor_sees_nothing_of_others(guarded: Visited) -> None:
    with raw(guarded.kafka) as victim:
        host, port = victim.getsockname()
        for path in ("/connections", "/connections/1", "/metrics", "/pipelines", "/dead-letters"):
            found = guarded.page(path)
            assert f"{host}:{port}" not in found, path
            assert "CLUSTER_AUTHORIZATION_FAILED" in found, path
        assert "connections" not in guarded.page("/").partition("CLUSTER_AUTHORIZATION_FAILED")[2]


def test_the_console_does_not_know_what_it_does_not_need(guarded: Visited) -> None:
    children = Path(f"/proc/{guarded.broker.pid}/task/{guarded.broker.pid}/children").read_text()
    pids = [guarded.broker.pid, *map(int, children.split())]
    environments = {pid: Path(f"/proc/{pid}/environ").read_bytes() for pid in pids}
    assert SECRET.encode() in environments.pop(guarded.broker.pid)
    assert environments
    for environment in environments.values():
        assert SECRET.encode() not in environment
        assert b"PENTALOG_CONSOLE_KEY" not in environment


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "localhost:1", "origin": "http://localhost:2"}, 403),
        ({"host": "localhost:1", "origin": "http://localhost:1"}, 200),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, 403),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 200),
        ({"sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"}, 200),
    ],
)
def test_only_its_own_pages_may_ask(free: Visited, headers: dict[str, str], status: int) -> None:
    answer = ask(free.console, "/login", **headers)
    assert answer.status == status
    assert all(answer.headers[name] for name in GUARDS)


def test_other_methods_are_not_served(free: Visited) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(free.console, "/topics", method).status == 405


def test_every_answer_has_the_guards(free: Visited) -> None:
    for path in ("/nothing/here", "/favicon.ico", "/_nicegui/x", "/"):
        answer = ask(free.console, path)
        assert all(answer.headers[name] for name in GUARDS), path
        assert "server" not in answer.headers
    answer = ask(free.http, "/health")
    assert all(answer.headers[name] for name in GUARDS)


def test_no_file_but_the_page_s_own_is_served(free: Visited) -> None:
    known = free.page("/").partition("/_nicegui/")[2].partition("/")[0]
    for climb in ("../" * 12, "..%2f" * 12, "%2e%2e/" * 12, "....//" * 12, "/", "%00/"):
        for place in ("static", "resources/x", "esm/nicegui", "libraries", "components"):
            answer = ask(free.console, f"/_nicegui/{known}/{place}/{climb}etc/passwd")
            assert answer.status != 200
            assert "root:" not in answer.text


def upgrade(address: str, query: str, origin: str = "") -> int:
    """The status of an attempt to open a socket."""
    key = {"sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA==", "sec_websocket_version": "13"}
    more = {"origin": origin} if origin else {}
    path = f"/_nicegui_ws/socket.io/?EIO=4&transport=websocket{query}"
    return ask(address, path, connection="Upgrade", upgrade="websocket", **key, **more).status


def test_sockets_need_a_page_and_come_from_it(free: Visited) -> None:
    page = free.page("/login").partition("client_id&#34;: &#34;")[2][:36]
    page = page or free.page("/login").partition("'client_id': '")[2][:36]
    assert page.count("-") == 4
    own = f"http://{free.console}"
    assert upgrade(free.console, "", own) == 403
    assert upgrade(free.console, "&client_id=none", own) == 403
    assert upgrade(free.console, f"&client_id={page}", "http://evil.example") == 403
    assert upgrade(free.console, f"&client_id={page}", own) == 101
    closed = f"&client_id={page[:-12]}{'0' * 12}"
    assert upgrade(free.console, closed, own) == 101  # to be told to load it again, and no more
    polling = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert ask(free.console, polling).status == 403
    assert ask(free.console, f"{polling}&client_id={page}", origin="http://e.example").status == 403


def test_a_head_without_end_is_hung_up_on(free: Visited) -> None:
    with raw(free.console) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        try:
            for _ in range(64):
                client.sendall(b"X: " + b"x" * 8000 + b"\r\n")
        except OSError:
            return
        assert is_closed(client)


def test_heads_that_never_end_keep_no_one_out(free: Visited) -> None:
    clients = [raw(free.console) for _ in range(600)]
    try:
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        assert "Log in" in free.page("/login")
        assert is_closed(clients[0])
    finally:
        for client in clients:
            client.close()


def test_what_others_tell_of_pipelines_is_not_believed(free: Visited) -> None:
    with Cluster(free.kafka) as cluster:
        cluster.create_topic("t", 1)
        at = Partition("t", 0)
        for number, text in enumerate((*STRANGE, SOUND)):
            offset = GroupOffset(0, f"pentalog pipeline {text}"[:4096])
            commit(cluster, f"group-{number}.status", {at: offset})
    found = free.page("/pipelines")
    assert "sound" in found
    assert "as told in group group-3.status" in found
    assert "<img" not in found
    assert '"odd"' not in found


def test_the_metrics_of_one_visitor_delay_nobody(tmp_path: Path) -> None:
    with HostileWorld(tmp_path, "http", arguments=("--console", "off")) as world:
        with Cluster(f"127.0.0.1:{world.port('kafka')}") as cluster:
            for number in range(40):
                cluster.create_topic(f"topic-{number}", 8)

        def attack() -> None:
            with world.connect("http") as client:
                head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
                client.sendall(400 * (head + b"\r\n") + head + b"Connection: close\r\n\r\n")
                assert is_closed(client)

        cost = world.measure(attack)
        print(cost)
        cost.assert_bounded(rulers=30, memory_mib=64)


def test_a_connection_is_watched_by_few(tmp_path: Path) -> None:
    with (
        HostileWorld(tmp_path, "http", arguments=("--console", "off")) as world,
        world.connect() as victim,
    ):
        victim.sendall(API_VERSIONS)
        answer(victim)
        peer = "{}:{}".format(*victim.getsockname())
        address = f"127.0.0.1:{world.port('http')}"
        listed = json.loads(ask(address, "/api/v1/connections").text)
        number = next(one["id"] for one in listed["connections"] if one["peer"] == peer)
        with ExitStack() as watching:
            answers = []
            for _ in range(12):
                client = watching.enter_context(world.connect("http"))
                head = f"GET /api/v1/inspect/{number} HTTP/1.1\r\nHost: localhost\r\n\r\n"
                client.sendall(head.encode())
                answers.append(client.recv(1 << 16))
            assert [one[:12] for one in answers] == 8 * [b"HTTP/1.1 200"] + 4 * [b"HTTP/1.1 404"]
            assert b"watched by 8 others" in answers[-1]
