"""The http listener of a whole broker: what it tells is what happened at the other doors."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest

import pentalog
from pentalog.clients.blipmq import BlipmqClient
from pentalog.clients.rustlog import RustLogClient

DEADLINE_S = 30.0


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


ASKING: dict[str, tuple[str, str, bytes, dict[str, Any], str]] = {
    "kafka": (
        "kafka", "kafka", struct.pack(">hhih2s", 18, 0, 7, 2, b"me"),
        {"name": "ApiVersions", "version": 0, "correlation": 7, "client": "me"}, "ApiVersions",
    ),
    "fluvio": (
        "fluvio-sc", "fluvio", struct.pack(">hhih2s", 18, 0, 8, 2, b"it"),
        {"name": "ApiVersions", "correlation": 8, "client": "it"}, "ApiVersions",
    ),
    "cursus": ("cursus", "cursus", b"CREATE topic=made partitions=1", {
        "name": "CREATE", "topic": "made"}, "OK"),
    "rustlog": ("rustlog", "rustlog", b'{"type":"Ping"}', {"name": "Ping"}, "Pong"),
    "rustlog-on-kafka": ("kafka", "rustlog", b"\xff", {"name": "Ping"}, "Pong"),
    "blipmq": ("blipmq", "blipmq", struct.pack(">BQH", 1, 9, 1), {
        "name": "HELLO", "correlation": 9}, "ACK"),
}  # fmt: skip
"""Listener, door, a request, what a watcher is told of it, and the name of the answer."""


@pytest.fixture(scope="module")
def broker() -> Iterator[pentalog.Broker]:
    with pentalog.Broker(flush_interval_ms=0) as one:
        yield one


def where(broker: pentalog.Broker, name: str) -> tuple[str, int]:
    host, _, port = broker.address(name).rpartition(":")
    return host, int(port)


def ask(broker: pentalog.Broker, path: str) -> tuple[int, bytes]:
    client = HTTPConnection(*where(broker, "http"), timeout=DEADLINE_S)
    try:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


def told(broker: pentalog.Broker, path: str) -> Any:
    return json.loads(ask(broker, path)[1])


def until(met: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := met()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
    return found


def connection_of(broker: pentalog.Broker, client: socket.socket) -> dict[str, Any] | None:
    peer = "{}:{}".format(*client.getsockname())
    listed = told(broker, "/api/v1/connections")["connections"]
    return next((one for one in listed if one["peer"] == peer), None)


def read_exactly(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = client.recv(size - len(found))
        assert part, "the broker hung up"
        found += part
    return found


@contextmanager
def watch(broker: pentalog.Broker, number: int) -> Iterator[HTTPResponse]:
    watcher = HTTPConnection(*where(broker, "http"), timeout=DEADLINE_S)
    with closing(watcher):
        watcher.request("GET", f"/api/v1/inspect/{number}")
        with closing(watcher.getresponse()) as answer:
            assert answer.status == 200
            yield answer


@pytest.mark.parametrize("kind", ASKING)
def test_frames_of_every_door_are_told(broker: pentalog.Broker, kind: str) -> None:
    listener, door, request, expected, answer_name = ASKING[kind]
    with ExitStack() as stack:
        client = socket.create_connection(where(broker, listener), timeout=DEADLINE_S)
        stack.enter_context(client)
        if kind == "rustlog-on-kafka":
            client.sendall(framed(request))  # what it speaks is known from then on
            assert client.recv(5) == framed(b"\xff")
        view = until(lambda: connection_of(broker, client))
        frames = stack.enter_context(watch(broker, view["id"]))
        assert json.loads(frames.readline())["connection"]["door"] == door
        client.sendall(framed(request))
        came = json.loads(frames.readline())
        assert (came["direction"], came["length"]) == ("in", len(request))
        assert {name: came[name] for name in expected} == expected
        assert came["hex"] == request.hex()[:128]
        left = json.loads(frames.readline())
        assert (left["direction"], left["name"]) == ("out", answer_name)
        after = connection_of(broker, client)
        assert after is not None
        assert after["listener"] == listener
        assert (after["received_bytes"], after["requests"]) > (0, 0)
        client.close()
        assert json.loads(frames.readline()) == {"ended": "the connection is closed"}


def test_keys_are_not_shown(broker: pentalog.Broker) -> None:
    with socket.create_connection(where(broker, "blipmq"), timeout=DEADLINE_S) as client:
        view = until(lambda: connection_of(broker, client))
        with watch(broker, view["id"]) as frames:
            frames.readline()
            client.sendall(framed(struct.pack(">BQH7s", 2, 1, 7, b"dev-key")))
            came = json.loads(frames.readline())
            assert (came["name"], came["hex"]) == ("AUTH", None)


def test_records_that_leave_from_their_files_are_told(broker: pentalog.Broker) -> None:
    with RustLogClient(broker.address("rustlog")) as writer:
        writer.create_topic("large", 1)
        for _ in range(4):
            writer.produce("large", 0, [bytes(50_000)])
    body = struct.pack(">iiiibiH5siiqi", -1, 0, 1, 1 << 20, 0, 1, 5, b"large", 1, 0, 0, 1 << 20)
    wish = framed(struct.pack(">hhih", 1, 4, 5, -1) + body)
    with socket.create_connection(where(broker, "kafka"), timeout=DEADLINE_S) as client:
        view = until(lambda: connection_of(broker, client))
        with watch(broker, view["id"]) as frames:
            frames.readline()
            for _ in range(3):
                client.sendall(wish)
                came = json.loads(frames.readline())
                assert (came["name"], came["topic"]) == ("Fetch", "large")
                size = int.from_bytes(read_exactly(client, 4), "big")
                assert len(read_exactly(client, size)) == size > 200_000
                left = json.loads(frames.readline())
                assert (left["name"], left["correlation"], left["length"]) == ("Fetch", 5, size)


def test_watching_ends_with_the_watcher(broker: pentalog.Broker) -> None:
    with socket.create_connection(where(broker, "rustlog"), timeout=DEADLINE_S) as client:
        number = until(lambda: connection_of(broker, client))["id"]
        with watch(broker, number) as frames:
            frames.readline()
            watchers = told(broker, "/api/v1/rates")["doors"][-1]["connections"]
        until(lambda: told(broker, "/api/v1/rates")["doors"][-1]["connections"] < watchers)
        for _ in range(3):
            client.sendall(framed(b"\xff"))
            assert client.recv(5) == framed(b"\xff")
        assert ask(broker, f"/api/v1/inspect/{number + 1000}")[0] == 404


def doors(broker: pentalog.Broker) -> dict[str, dict[str, Any]]:
    return {one["door"]: one for one in told(broker, "/api/v1/rates")["doors"]}


def test_what_passes_each_door_is_counted(broker: pentalog.Broker) -> None:
    until(lambda: doors(broker)["rustlog"]["connections"] == 0)
    before = doors(broker)
    with RustLogClient(broker.address("rustlog")) as client:
        client.create_topic("counted", 1)
        client.produce("counted", 0, [b"a", b"b", b"c"])
        assert len(client.fetch("counted", 0, 0).records) == 3
        open_now = doors(broker)["rustlog"]
    with BlipmqClient(broker.address("blipmq")) as client:
        subscription = client.subscribe("published")
        client.publish("published", b"one", b"two")
        assert len(client.poll(subscription, 2)) == 2
    after = doors(broker)

    def grown(door: str, name: str) -> int:
        return int(after[door][name] - before[door][name])

    assert open_now["connections"] == 1
    assert (grown("rustlog", "received_records"), grown("rustlog", "sent_records")) == (3, 3)
    assert (grown("blipmq", "received_records"), grown("blipmq", "sent_records")) == (2, 2)
    assert grown("rustlog", "requests") == 3
    assert grown("rustlog", "received_bytes") > 0 < grown("rustlog", "sent_bytes")
    assert grown("cursus", "requests") == 0


def test_metrics_tell_of_topics_and_groups(broker: pentalog.Broker) -> None:
    with RustLogClient(broker.address("rustlog")) as client:
        client.create_topic("metered", 2)
        client.produce("metered", 1, [b"a", b"b", b"c"])
        client.commit("readers", "metered", 1, 1)
    text = ask(broker, "/metrics")[1].decode()
    assert 'pentalog_topic_records_total{topic="metered"} 3\n' in text
    assert 'pentalog_topic_appended_bytes_total{topic="metered"} 0\n' not in text
    lag = 'pentalog_group_lag_records{group="readers",topic="metered",partition="1"} 2\n'
    assert lag in text
    assert ask(broker, "/health") == (200, b"healthy\n")
    assert ask(broker, "/ready") == (200, b"ready\n")


def test_syncs_and_the_loop_are_timed() -> None:
    with pentalog.Broker() as one, RustLogClient(one.address("rustlog")) as client:
        client.create_topic("safe", 1)
        client.produce("safe", 0, [b"a"])
        names = ("pentalog_sync_seconds_count", "pentalog_loop_delay_seconds_count")

        def timed() -> bool:
            text = ask(one, "/metrics")[1].decode()
            values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
            return all(int(values[name]) > 0 for name in names)

        until(timed)


def test_where_rules_are_asked_the_listener_says_who_may_look() -> None:
    guarded = ("/metrics", "/api/v1/connections", "/api/v1/rates", "/api/v1/inspect/1")
    with pentalog.Broker(super_users="User:ops") as broker:
        for path in guarded:
            status, text = ask(broker, path)
            assert status == 403
            assert b"--listener-principals http=User:NAME" in text
        for path in ("/health", "/ready", "/"):
            assert ask(broker, path)[0] == 200
    with pentalog.Broker(super_users="User:ops", listener_principals="http=User:ops") as broker:
        assert ask(broker, "/metrics")[0] == 200
        own = told(broker, "/api/v1/connections")["connections"][-1]
        assert (own["listener"], own["principal"]) == ("http", "User:ops")
