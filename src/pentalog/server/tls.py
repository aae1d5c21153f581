"""A connection with TLS around it: the same connection, with cipher text on the wire.

What comes in is deciphered into the connection's own buffer; what goes out is enciphered a
piece at a time, only as fast as the socket takes it.  Files are read instead of sent by the
system, which cannot encipher.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from pentalog.broker.security import ANONYMOUS
from pentalog.model.types import FilePiece
from pentalog.server.certificates import Certificates, NoName
from pentalog.server.connection import Connection
from pentalog.server.descriptors import file_too_short
from pentalog.server.door import Door, Pause
from pentalog.server.outbox import Outbox

_PIECE_BYTES: Final = 64 << 10
"""Enciphered at a time: what may be held, twice, besides the answers that wait.

It is not charged to the client's address, so it is no more than what each connection may queue.
"""
_RAW: Final = memoryview(bytearray(256 << 10))
"""Cipher text is taken out of it before anybody else can read into it."""
_HANDSHAKE: Final = 0x16
"""First byte of every TLS conversation."""


class TlsOutbox(Outbox):
    """An outbox that enciphers."""

    __slots__ = ("_outgoing", "_pending", "cipher")

    cipher: ssl.SSLObject | None
    """None while, or because, nothing is enciphered."""

    def use(self, cipher: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> None:
        self.cipher = cipher
        self._outgoing = outgoing
        self._pending = memoryview(b"")

    @property
    def idle(self) -> bool:
        return super().idle and (self.cipher is None or not self._pending)

    def push(self) -> None:
        """Send what the handshake, or the library by itself, has to say."""
        if self._closed or self._armed:
            return
        try:
            if not self._handed_over():
                self._arm()
        except OSError as error:
            self.failed(error.strerror or type(error).__name__)

    def end(self) -> None:
        if self.cipher is not None:
            try:
                self.cipher.unwrap()
            except ssl.SSLError:
                pass  # it says its farewell, and would like to hear one
            except ValueError:
                pass  # the handshake never began
            self._handed_over()
        super().end()

    def _drain(self) -> bool:
        done = super()._drain()
        if self.cipher is None or self._closed:
            return done
        try:
            return done and self._handed_over()
        except OSError as error:
            self.failed(error.strerror or type(error).__name__)
            return True

    def _handed_over(self) -> bool:
        if self.cipher is None:
            return True
        while True:
            if not self._pending:
                if not self._outgoing.pending:
                    return True
                self._pending = memoryview(self._outgoing.read())
            try:
                sent = self._socket.send(self._pending)
            except (BlockingIOError, InterruptedError):
                return False
            self._pending = self._pending[sent:]

    def _send_memory(self) -> tuple[int, bool]:
        cipher = self.cipher
        if cipher is None:
            return super()._send_memory()
        if not self._handed_over():
            raise BlockingIOError
        pieces, _, _ = self._gather()
        taken: list[bytes | bytearray | memoryview] = []
        size = 0
        for piece in pieces:
            part = memoryview(piece)[: _PIECE_BYTES - size]
            taken.append(part)
            size += len(part)
            if len(part) < len(piece):
                self._ready[0] = memoryview(piece)[len(part) :]
                break
            self._ready.popleft()
        if size:
            cipher.write(taken[0] if len(taken) == 1 else b"".join(taken))
        self._memory_bytes -= size
        self._metrics.sent_bytes += size
        if self.tap is not None:
            self.tap.sent(pieces, size, drained=not self._ready)
        return size, True

    def _send_file(self, piece: FilePiece, budget: int) -> int:
        cipher = self.cipher
        if cipher is None:
            return super()._send_file(piece, budget)
        if not self._handed_over():
            raise BlockingIOError
        data = os.pread(piece.file.fd, min(piece.length, _PIECE_BYTES), piece.position)
        if not data:
            raise file_too_short(piece)
        cipher.write(data)
        self._file_sent(piece, len(data))
        return len(data)


class TlsConnection(Connection):
    __slots__ = (
        "_certificates",
        "_cipher",
        "_deadline",
        "_deciphering",
        "_incoming",
        "_plain",
        "_plain_allowed",
        "_scheduled",
        "_shaken",
    )

    def __init__(self, door: Door, certificates: Certificates, *, plain_allowed: bool) -> None:
        """`plain_allowed`: a client whose first byte is none of TLS's is served without it."""
        super().__init__(door)
        self._certificates = certificates
        self._plain_allowed = plain_allowed
        self._plain = False
        self._shaken = False
        self._deciphering = False
        self._scheduled = False
        self._cipher: ssl.SSLObject | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._incoming = ssl.MemoryBIO()

    def get_buffer(self, sizehint: int) -> memoryview:
        return super().get_buffer(sizehint) if self._plain else _RAW

    def buffer_updated(self, nbytes: int) -> None:
        if self._plain:
            super().buffer_updated(nbytes)
            return
        if self._lingering is not None or self._outbox.ending:
            return
        raw = _RAW[:nbytes]
        if self._cipher is None and self._plain_allowed and raw[0] != _HANDSHAKE:
            self._serve_plain(bytes(raw))
            return
        self._incoming.write(raw)
        if self._shaken:
            self._decipher()
        elif self._door.costly_turns.take():
            self._handshake()
        else:
            self._pause(Pause.TURN_OVER)
            self._door.costly_turns.wait(self._handshake_late, self.block)

    def eof_received(self) -> bool:
        if not self._plain and not self._shaken:
            self.abort()
            return False
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        super().connection_lost(exc)

    def _make_outbox(self, way_out: socket.socket) -> Outbox:
        door = self._door
        outbox = TlsOutbox(door.loop, way_out, self.traffic, door.turns, **self._outbox_limits())
        outbox.cipher = None
        return outbox

    def _admitted(self) -> None:
        timeout_s = self._door.config.tls_handshake_timeout_ms / 1000
        self._deadline = self._door.loop.call_later(timeout_s, self._too_late)

    def _serve_plain(self, first: bytes) -> None:
        self._stop_deadline()
        self._plain = True
        self._open_session(ANONYMOUS)
        given = 0
        while given < len(first) and self._session is not None:
            space = self.get_buffer(-1)
            size = min(len(space), len(first) - given)
            space[:size] = first[given : given + size]
            given += size
            self.buffer_updated(size)

    def _handshake(self) -> None:
        """Continue the handshake, whose signature costs more than most requests."""
        runtime = self._door.runtime
        start_s = runtime.monotonic()
        if self._cipher is None:
            self._begin()
        shaken = self._shake_hands()
        self._door.costly_turns.spend(runtime.monotonic() - start_s)
        if shaken:
            self._decipher()

    def _handshake_late(self) -> None:
        """The turn this handshake had to wait for."""
        self._paused &= ~Pause.TURN_OVER
        if not self._transport.is_closing():
            self._handshake()
        self._resume(Pause(0))

    def _begin(self) -> None:
        outgoing = ssl.MemoryBIO()
        self._cipher = self._certificates.context().wrap_bio(
            self._incoming, outgoing, server_side=True
        )
        cast("TlsOutbox", self._outbox).use(self._cipher, outgoing)

    def _shake_hands(self) -> bool:
        """True as soon as it is done."""
        cipher, outbox = self._cipher, cast("TlsOutbox", self._outbox)
        assert cipher is not None
        try:
            cipher.do_handshake()
        except ssl.SSLWantReadError:
            outbox.push()
            return False
        except ssl.SSLError as error:
            self._refuse(error.reason or "it is not TLS")
            return False
        self._stop_deadline()
        self._shaken = True
        outbox.push()
        if "sasl" in self._door.listener.demands:
            self._open_session(ANONYMOUS)
            return True
        try:
            self._open_session(self._certificates.principal(cipher.getpeercert()))
        except NoName as flaw:
            self._refuse(str(flaw))
            return False
        return True

    def _refuse(self, reason: str) -> None:
        self._stop_deadline()
        self._door.limits.warn("tls", f"{self.peer} closed: no TLS with it: {reason}")
        # The alert that tells the peer why is on its way.
        self._outbox.hang_up()

    def _decipher(self) -> None:
        """Serve what has come in, until there is no more or it has to wait."""
        cipher = self._cipher
        assert cipher is not None
        if self._deciphering:
            return
        self._deciphering = True
        try:
            while not self._paused and self._lingering is None and not self._outbox.ending:
                space = super().get_buffer(-1)
                try:
                    size = cast("int", cipher.read(len(space), space))
                except ssl.SSLWantReadError:
                    cast("TlsOutbox", self._outbox).push()
                    return
                except ssl.SSLError as error:
                    self._fail(error.reason or "its cipher text is damaged")
                    return
                if size == 0:
                    self.eof_received()
                    return
                super().buffer_updated(size)
        finally:
            self._deciphering = False

    def _resume(self, why: Pause) -> None:
        super()._resume(why)
        if self._shaken and not self._paused and not self._scheduled:
            # What was received before the pause is in the library, not in the socket.
            self._scheduled = True
            self._door.loop.call_soon(self._decipher_on)

    def _decipher_on(self) -> None:
        self._scheduled = False
        if not self._outbox.ending and not self._transport.is_closing():
            self._decipher()

    def _too_late(self) -> None:
        self._deadline = None
        self._door.limits.warn("tls", f"{self.peer} closed: its TLS handshake took too long")
        self.abort()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def connections_with_tls(
    door: Door, certificates: Certificates, *, plain_allowed: bool
) -> Callable[[], TlsConnection]:
    return lambda: TlsConnection(door, certificates, plain_allowed=plain_allowed)
