"""A proxy between clients and broker that hangs up on command, with or without the last words."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

_CHUNK_BYTES = 1 << 16


class Proxy:
    """Forwards bytes both ways to `upstream`."""

    def __init__(self) -> None:
        self.upstream = ("127.0.0.1", 0)
        self._lock = threading.Lock()
        self._pairs: set[_Pair] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def drop(self) -> int:
        """Hang up on everybody."""
        return self._each(_Pair.hang_up)

    def swallow(self) -> int:
        """Requests still reach the broker, but from now on no answer comes back."""
        return self._each(_Pair.mute)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(10)

    def _each(self, act: Callable[[_Pair], None]) -> int:
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            act(pair)
        return len(pairs)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self.upstream, timeout=5)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            for one in (client, broker):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = _Pair(client, broker)
            with self._lock:
                self._pairs.add(pair)
            self._start(self._carry, pair, pair.carry_requests)
            self._start(self._carry, pair, pair.carry_answers)

    def _carry(self, pair: _Pair, work: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            work()
        pair.hang_up()
        with self._lock:
            self._pairs.discard(pair)


class _Pair:
    """The two ends of one connection."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self._client = client
        self._broker = broker
        self._muted = False

    def mute(self) -> None:
        self._muted = True

    def hang_up(self) -> None:
        # The other thread may be reading: a shutdown wakes it, a close alone would not.
        for one in (self._client, self._broker):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def carry_requests(self) -> None:
        while data := self._client.recv(_CHUNK_BYTES):
            self._broker.sendall(data)

    def carry_answers(self) -> None:
        while data := self._broker.recv(_CHUNK_BYTES):
            if not self._muted:
                self._client.sendall(data)
