"""A proxy that loses answers: the broker has done the work, the client never hears of it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

_PRODUCE = 0


class FlakyProxy:
    """Forwards Kafka frames; instead of delivering every n-th Produce answer, it hangs up."""

    def __init__(self, *, lose_every: int, lost_max: int) -> None:
        self.upstream = ("127.0.0.1", 0)
        self.lost = 0
        self._lose_every = lose_every
        self._lost_max = lost_max
        self._produced = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            held = list(self._open)
        for one in held:
            _hang_up(one)
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self.upstream)
            except OSError:
                return
            with self._lock:
                self._open |= {client, broker}
            to_lose: set[int] = set()
            self._start(self._carry_requests, client, broker, to_lose)
            self._start(self._carry_answers, client, broker, to_lose)

    def _carry_requests(
        self, client: socket.socket, broker: socket.socket, to_lose: set[int]
    ) -> None:
        with self._closing(client, broker), contextlib.suppress(OSError):
            while frame := _frame(client):
                api_key, _, correlation = struct.unpack_from(">hhi", frame, 4)
                if api_key == _PRODUCE and self._is_unlucky():
                    to_lose.add(correlation)
                broker.sendall(frame)

    def _carry_answers(
        self, client: socket.socket, broker: socket.socket, to_lose: set[int]
    ) -> None:
        with self._closing(client, broker), contextlib.suppress(OSError):
            while frame := _frame(broker):
                (correlation,) = struct.unpack_from(">i", frame, 4)
                if correlation in to_lose:
                    with self._lock:
                        self.lost += 1
                    return
                client.sendall(frame)

    def _is_unlucky(self) -> bool:
        with self._lock:
            self._produced += 1
            return self._produced % self._lose_every == 0 and self.lost < self._lost_max

    @contextlib.contextmanager
    def _closing(self, *both: socket.socket) -> Iterator[None]:
        try:
            yield
        finally:
            for one in both:
                _hang_up(one)
            with self._lock:
                self._open -= set(both)


def _hang_up(one: socket.socket) -> None:
    # The other thread may be reading from it: a shutdown wakes it, a close alone would not.
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def _frame(peer: socket.socket) -> bytes:
    """One whole frame with its length, or nothing when the peer has gone."""
    head = _exactly(peer, 4)
    if not head:
        return b""
    (size,) = struct.unpack(">i", head)
    body = _exactly(peer, size)
    return head + body if body else b""


def _exactly(peer: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = peer.recv(size - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)
