"""One port, two protocols: the first bytes decide, and the host has all that is doubtful."""

from __future__ import annotations

from typing import Any

import pytest

from pentalog.config import Config
from pentalog.server.sharing import share
from pentalog.session import Context, Endpoint


class Noting:
    """A session that keeps what it is given."""

    def __init__(self, name: str, opened: list[str]) -> None:
        opened.append(name)
        self.heard: list[bytes] = []
        self.wanted = 77
        self.closed = 0

    def receive(self, data: memoryview) -> int:
        self.heard.append(bytes(data))
        return len(data)

    def close(self) -> None:
        self.closed += 1


def shared(opened: list[str], made: list[Noting]) -> Any:
    def opening(name: str) -> Any:
        def open_one(context: Context, replies: Any) -> Noting:
            made.append(Noting(name, opened))
            return made[-1]

        return open_one

    guest = Endpoint("guest", 2, opening("guest"), recognises=lambda head: head[4] != 0)
    endpoint = share(Endpoint("host", 1, opening("host"), in_flight_max=5), [guest])
    assert (endpoint.name, endpoint.port, endpoint.in_flight_max) == ("host", 1, 5)
    nobody: Any = None
    context = Context(
        broker=nobody,
        runtime=nobody,
        config=Config(frame_bytes_max=1 << 20),
        metrics=nobody,
        peer="test",
        listener="host",
        advertised=nobody,
    )
    return endpoint.open(context, nobody)


@pytest.mark.parametrize(
    ("data", "chosen"),
    [
        (b"\0\0\0\x01\xff", "guest"),
        (b"\0\0\0\x20\0\x12", "host"),
        (b"\0\0\0\0", "host"),
        (b"\xff\xff\xff\xff", "host"),
        (b"\0\x10\0\x01{", "host"),
        (b"\0\x10\0\0{", "guest"),
    ],
)
def test_first_bytes_decide(data: bytes, chosen: str) -> None:
    opened: list[str] = []
    made: list[Noting] = []
    session = shared(opened, made)
    # In crumbs, from the front each time, as a connection gives them.
    for end in range(1, len(data) + 1):
        used = session.receive(memoryview(bytearray(data[:end])))
        if used:
            break
        assert session.wanted == 0
        assert opened == []
    assert opened == [chosen]
    assert made[0].heard == [data[:end]]
    assert session.wanted == 77
    session.receive(memoryview(bytearray(b"more")))
    assert made[0].heard[-1] == b"more"
    assert opened == [chosen]
    session.close()
    assert made[0].closed == 1


def test_a_connection_that_says_nothing_is_nobodys() -> None:
    opened: list[str] = []
    session = shared(opened, [])
    assert session.receive(memoryview(b"\0\0")) == 0
    session.close()
    assert opened == []
