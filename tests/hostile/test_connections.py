"""Connections that take more than their share: of places, of time, of memory."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.hostile.hostile_world import (
    API_VERSIONS,
    HostileWorld,
    answer,
    ask,
    request,
    string,
)

DESCRIBE_CONFIGS = request(
    32,
    1,
    1,
    struct.pack(">ib", 1, 4) + string("0") + struct.pack(">i?", -1, True),
)
"""All settings of the broker: one of the dearest requests that a small frame can make."""
NOT_A_FRAME = struct.pack(">i", -1)


def until(met: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not met():
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.02)


def is_closed(client: socket.socket) -> bool:
    """Has the broker closed this connection, whose answers were all read?"""
    client.settimeout(0)
    try:
        return not client.recv(1)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@contextlib.contextmanager
def clients(
    world: HostileWorld, count: int, listener: str = "kafka", source: str = "127.0.0.1"
) -> Iterator[list[socket.socket]]:
    made = [
        socket.create_connection(
            ("127.0.0.1", world.port(listener)), timeout=60, source_address=(source, 0)
        )
        for _ in range(count)
    ]
    try:
        yield made
    finally:
        for client in made:
            client.close()


def test_costly_requests_of_many_connections_leave_time_for_others(tmp_path: Path) -> None:
    with HostileWorld(tmp_path) as world, clients(world, 300, source="127.0.0.2") as attackers:

        def attack() -> None:
            for client in attackers:
                client.sendall(DESCRIBE_CONFIGS)
            for client in attackers:
                answer(client)

        cost = world.measure(attack)
        print(cost)
        cost.assert_bounded(rulers=8, memory_mib=64)


def test_pipelined_costly_requests_leave_time_for_others(tmp_path: Path) -> None:
    with HostileWorld(tmp_path) as world, clients(world, 1) as (client,):

        def attack() -> None:
            sender = threading.Thread(target=client.sendall, args=(DESCRIBE_CONFIGS * 300,))
            sender.start()
            for _ in range(300):
                answer(client)
            sender.join()

        cost = world.measure(attack)
        print(cost)
        cost.assert_bounded(rulers=8, memory_mib=64)


def test_a_client_that_does_not_read_cannot_keep_its_connection(tmp_path: Path) -> None:
    with (
        HostileWorld(tmp_path, arguments=("--hang-up-timeout-ms", "500")) as world,
        socket.socket() as client,
    ):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", world.port("kafka")))
        until(lambda: is_held(client))
        client.sendall(DESCRIBE_CONFIGS * 400 + NOT_A_FRAME)
        until(lambda: not is_held(client))


def is_held(client: socket.socket) -> bool:
    """Has the broker's process a descriptor of this connection?

    A socket that the kernel still sends from, although it was closed, has no inode.
    """
    own, its = f":{client.getsockname()[1]:04X}", f":{client.getpeername()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines():
        fields = line.split()
        if fields[1].endswith(its) and fields[2].endswith(own):
            return fields[9] != "0"
    return False


def test_a_newcomer_gets_in_although_one_address_took_every_place(tmp_path: Path) -> None:
    with (
        HostileWorld(tmp_path, arguments=("--connections-max", "20")) as world,
        clients(world, 20) as hogs,
        clients(world, 3, source="127.0.0.2") as newcomers,
    ):
        for client in newcomers:
            client.sendall(API_VERSIONS)
            assert answer(client)[0] == 1
        until(lambda: sum(is_closed(client) for client in hogs) == 3)
        with clients(world, 1) as (another,):
            until(lambda: is_closed(another))
        assert not any(is_closed(client) for client in newcomers)


def test_idle_connections_are_closed_and_waiting_ones_are_not(tmp_path: Path) -> None:
    fetch = request(
        1, 4, 7, struct.pack(">iiiibi", -1, 3_000, 1, 1 << 20, 0, 1) + string("quiet")
        + struct.pack(">iiqi", 1, 0, 0, 1 << 20),
    )  # fmt: skip
    with (
        HostileWorld(tmp_path, arguments=("--connections-max-idle-ms", "500")) as world,
        clients(world, 3) as (silent, half, waiting),
    ):
        ask(waiting, request(3, 1, 1, struct.pack(">i", 1) + string("quiet")))
        half.sendall(fetch[:-1])
        waiting.sendall(fetch)
        until(lambda: is_closed(silent) and is_closed(half))
        waiting.settimeout(60)
        assert answer(waiting)[0] == 7


@pytest.mark.parametrize(
    ("listener", "drop"),
    [
        ("kafka+sasl", struct.pack(">ihhih", 5_000, 18, 0, 1, -1)),
        ("cursus+auth", struct.pack(">I", 5_000) + b"LIST"),
        ("blipmq", struct.pack(">I", 5_000)),
    ],
)
def test_a_login_takes_no_longer_than_it_may(tmp_path: Path, listener: str, drop: bytes) -> None:
    arguments = ("--login-timeout-ms", "700")
    with (
        HostileWorld(tmp_path, listener, arguments=arguments) as world,
        clients(world, 2, listener) as (silent, slow),
    ):
        slow.sendall(drop)

        def drip() -> bool:
            with contextlib.suppress(OSError):
                slow.settimeout(60)
                slow.sendall(b"\0")
            return is_closed(silent) and is_closed(slow)

        until(drip)


@pytest.mark.parametrize("listener", ["kafka+sasl", "cursus+auth", "blipmq"])
def test_memory_before_a_login_is_small(tmp_path: Path, listener: str) -> None:
    size = 500 << 10
    with (
        HostileWorld(tmp_path, listener) as world,
        clients(world, 150, listener) as attackers,
    ):

        def attack() -> None:
            for client in attackers:
                client.settimeout(5)
                with contextlib.suppress(OSError):
                    client.sendall(struct.pack(">I", size) + bytes(size - 1))

        cost = world.measure(attack)
        print(cost)
        cost.assert_bounded(rulers=4, memory_mib=24)
