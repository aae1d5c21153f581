"""A Cursus client for attacks: frames out, frames back."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

from tests.support.cursus_world import frame


def read_frame(client: socket.socket) -> bytes:
    """Return the next frame; raises `EOFError` when the broker has hung up."""
    (size,) = struct.unpack(">I", _exactly(client, 4))
    return _exactly(client, size)


def ask(client: socket.socket, body: bytes | str) -> bytes:
    """Send one frame and return the answer to it."""
    client.sendall(frame(body.encode() if isinstance(body, str) else body))
    return read_frame(client)


def send_all(client: socket.socket, bodies: Iterable[bytes]) -> list[bytes]:
    """Send frames without waiting in between; returns the answers until the broker hangs up."""
    data = b"".join(map(frame, bodies))
    answers: list[bytes] = []
    wanted = len(list(bodies))
    try:
        client.sendall(data)
        while len(answers) < wanted:
            answers.append(read_frame(client))
    except (OSError, EOFError):
        pass
    return answers


def _exactly(client: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        piece = client.recv(min(1 << 20, count - len(got)))
        if not piece:
            raise EOFError(f"the broker hung up after {len(got)} of {count} bytes")
        got += piece
    return bytes(got)
