"""One connection of any door: bytes to its session, answers back, nothing unlimited.

What a session is asked to do and what it answers is in `session.py`; how answers leave is in
`outbox.py`.  Here is when to read and when to stop reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag
from typing import Final, cast

from pentalog.broker.port import Broker
from pentalog.broker.security import ANONYMOUS, Access, Attempts, Audit, Principal
from pentalog.config import Config, Listen
from pentalog.metrics import Metrics, Traffic
from pentalog.observation import Peer
from pentalog.runtime import Runtime, Slices, Turns
from pentalog.server.buffer import BUSY_BYTES, IDLE_BYTES, KEPT_BYTES, ReceiveBuffer
from pentalog.server.limits import Limits
from pentalog.server.observation import LocalObservation
from pentalog.server.outbox import Outbox
from pentalog.server.tap import Tap
from pentalog.session import Address, Context, Endpoint, Session

_log = logging.getLogger("pentalog.server")

_TURN_BYTES: Final = 1 << 20
"""Received at most before other connections get their turn."""
SERVED_PER_TURN: Final = 64
"""Reads that are served in one turn of the loop, of all connections together."""
COSTLY_PER_TURN: Final = 16
"""The same, for reads that begin with a costly request."""
_LINGER_S: Final = 1.0
_DISCARD: Final = memoryview(bytearray(64 << 10))
_FRAME_HEAD_BYTES: Final = 4


class _Pause(IntFlag):
    """Why a connection is not read from."""

    FULL = 1
    TURN_OVER = 2
    MEMORY = 4
    STOPPING = 8


@dataclass(frozen=True, slots=True)
class Door:
    """What the connections of one listener share."""

    loop: asyncio.AbstractEventLoop
    endpoint: Endpoint
    listener: Listen
    broker: Broker
    runtime: Runtime
    config: Config
    metrics: Metrics
    limits: Limits
    advertised: Callable[[str, Listen, str], Address]
    """Endpoint name, listener and the host this client reached us at, to the address it is told."""
    audit: Audit
    attempts: Attempts
    connections: set[Connection]
    turns: Turns
    costly_turns: Turns
    """Shorter ones, for costly requests: whoever asks for little need not wait behind them."""
    slices: Slices
    observation: LocalObservation


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_buffer",
        "_door",
        "_host",
        "_lingering",
        "_offered",
        "_outbox",
        "_paused",
        "_peer_done",
        "_reached_at",
        "_session",
        "_swept_bytes",
        "_tap",
        "_transport",
        "_turn_bytes",
        "_turned_away",
        "known",
        "number",
        "peer",
        "since_ms",
        "traffic",
        "who",
    )

    _transport: asyncio.Transport
    _outbox: Outbox
    _buffer: ReceiveBuffer

    def __init__(self, door: Door) -> None:
        self._door = door
        self._host: str | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._offered = 0
        self._paused = _Pause(0)
        self._peer_done = False
        self._reached_at = ""
        self._session: Session | None = None
        self._swept_bytes = 0
        self._tap: Tap | None = None
        self._turn_bytes = 0
        self._turned_away: str | None = None
        self.known = Peer()
        self.number = 0
        self.peer = "?"
        self.since_ms = 0
        self.traffic = Traffic()
        self.who: Access | None = None
        """Whom the peer has proven to be, once there is a session."""

    @property
    def listener(self) -> Listen:
        return self._door.listener

    @property
    def endpoint(self) -> Endpoint:
        return self._door.endpoint

    @property
    def tap(self) -> Tap | None:
        """Somebody who watches what comes and goes."""
        return self._tap

    @tap.setter
    def tap(self, tap: Tap | None) -> None:
        self._tap = self._outbox.tap = tap
        if tap is not None:
            # A session that had to stop may have cut up what lies here.
            tap.hears = not self._paused & _Pause.FULL
            if tap.hears:
                tap.received(self._buffer.content())
            tap.aligned = self._outbox.between_answers

    @property
    def idle(self) -> bool:
        """Every accepted request has been answered and the answers have left."""
        return self._outbox.idle and not self._paused & _Pause.TURN_OVER

    @property
    def queued_bytes(self) -> int:
        return self._outbox.queued_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods without being of the class.
        self._transport = cast("asyncio.Transport", transport)
        door = self._door
        name = transport.get_extra_info("peername") or ("unknown", 0)
        own = transport.get_extra_info("sockname") or ("127.0.0.1", 0)
        self.peer = str(Address(name[0], name[1]))
        if not door.limits.admit(name[0], IDLE_BYTES):
            self._transport.abort()
            return
        quotas = door.broker.quotas
        delay_ms = quotas.connected(name[0]) if quotas.active else 0
        if delay_ms:
            self._turn_away(name[0], delay_ms)
            return
        try:
            way_out = _duplicate(self._transport)
        except OSError as error:
            door.limits.dismiss(name[0], IDLE_BYTES)
            door.limits.warn(
                "files",
                f"connection from {name[0]} closed: {error.strerror}; "
                "raise the limit of open files or lower connections_max",
            )
            self._transport.abort()
            return
        self._host = name[0]
        self._reached_at = own[0]
        self._buffer = ReceiveBuffer()
        self._outbox = outbox = self._make_outbox(way_out)
        outbox.room = self._go_on
        outbox.ended = self._hang_up
        outbox.failed = self._fail
        self.since_ms = door.runtime.now_ms()
        self.number = door.observation.next_number()
        door.connections.add(self)
        self._admitted()

    def _make_outbox(self, way_out: socket.socket) -> Outbox:
        door = self._door
        return Outbox(
            door.loop,
            way_out,
            self.traffic,
            in_order=door.endpoint.in_order,
            memory_bytes_max=door.config.connection_reply_bytes_max,
            places_max=door.endpoint.in_flight_max,
        )

    def _admitted(self) -> None:
        """The connection counts; what it is to be asked first, if anything, is asked here."""
        self._open_session(ANONYMOUS)

    def _open_session(self, who: Principal) -> None:
        door = self._door
        listen = door.listener
        told = door.config.listener_principals.get(listen.name)
        if told is not None and who == ANONYMOUS:
            who = Principal.parse(told)
        self.who = access = Access(
            door.broker.rules,
            who,
            # A port for both families shows addresses of the old one in the new one's way.
            (self._host or "").removeprefix("::ffff:"),
            listener=listen.name,
            audit=door.audit,
            attempts=door.attempts,
        )
        context = Context(
            broker=door.broker,
            runtime=door.runtime,
            config=door.config,
            metrics=self.traffic,
            peer=self.peer,
            listener=listen.name,
            advertised=lambda endpoint: door.advertised(endpoint, listen, self._reached_at),
            demands=listen.demands,
            access=access,
            totals=door.metrics,
            known=self.known,
            observation=door.observation,
            slices=door.slices,
        )
        try:
            self._session = door.endpoint.open(context, self._outbox)
        except Exception:
            self._blame_ourselves()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._lingering is not None:
            return _DISCARD
        space = self._buffer.space()
        self._offered = len(space)
        return space

    def buffer_updated(self, nbytes: int) -> None:
        self.traffic.received_bytes += nbytes
        if self._lingering is not None:
            return
        self._turn_bytes += nbytes
        buffer = self._buffer
        buffer.received(nbytes)
        if self._tap is not None:
            self._tap.hears = self._tap.hears or len(buffer) == nbytes
            self._tap.received(buffer.content()[-nbytes:])
        if nbytes == self._offered and buffer.size < BUSY_BYTES:
            self._resize(BUSY_BYTES)
        door = self._door
        costly = door.endpoint.costly
        turns = door.turns
        if costly is not None and costly(buffer.content()):
            turns = door.costly_turns
        if not turns.take():
            self._turn_bytes = 0
            self._pause(_Pause.TURN_OVER)
            turns.wait(self._serve_late)
            return
        self._serve()
        if self._turn_bytes >= _TURN_BYTES:
            # Otherwise a busy producer is read from for tens of milliseconds on end.
            self._turn_bytes = 0
            self._pause(_Pause.TURN_OVER)
            door.loop.call_soon(self._next_turn)

    def eof_received(self) -> bool:
        self._peer_done = True
        if self._lingering is not None:
            return False
        self._door.turns.do(self._take_leave)
        return True  # the answers that are there still leave, then we close

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
        if self._turned_away is not None:
            self._door.limits.dismiss(self._turned_away, IDLE_BYTES)
        if self._host is None:
            return
        door = self._door
        door.connections.discard(self)
        door.observation.gone(self)
        door.limits.forget(self)
        self._outbox.close()
        door.limits.dismiss(self._host, self._buffer.size)
        self._close_session()

    def stop(self) -> None:
        """Take no more requests; what was accepted is still answered."""
        self._pause(_Pause.STOPPING)

    def finish(self) -> None:
        """Hang up after what is queued."""
        self._outbox.hang_up()

    def abort(self) -> None:
        """Close now, whatever is queued."""
        # The duplicate first: the peer sees the end only when both descriptors are closed.
        self._outbox.close()
        self._transport.abort()

    def sweep(self, *, pressed: bool) -> bool:
        moved = self.traffic.received_bytes != self._swept_bytes
        self._swept_bytes = self.traffic.received_bytes
        if moved or self._outbox.ending:
            return False
        if not len(self._buffer):
            self._resize(IDLE_BYTES)
        elif pressed:
            self.evict()
            return True
        return False

    def evict(self) -> None:
        self._door.limits.warn(
            "stuck",
            f"{self.peer} closed: it stopped in the middle of a frame and held "
            f"{self._buffer.size} bytes of memory that others wait for",
        )
        self.abort()

    def _serve(self) -> None:
        buffer, outbox = self._buffer, self._outbox
        session = self._session
        if session is None or outbox.ending:
            buffer.used(len(buffer))
            return
        outbox.holding = True
        metrics = self._door.metrics
        appended_records = metrics.appended_records
        try:
            used = session.receive(buffer.content())
            wanted = session.wanted
        except Exception:
            self._blame_ourselves()
            return
        outbox.holding = False
        # Nobody else's session runs meanwhile: what was appended came from here.
        self.traffic.received_records += metrics.appended_records - appended_records
        full = outbox.full
        outbox.flush()
        buffer.used(used)
        if outbox.ending:
            buffer.used(len(buffer))
            return
        if full:
            # The session may have left whole frames behind: it goes on when there is room,
            # although no new bytes come.
            self._pause(_Pause.FULL)
            outbox.await_room()
        if not len(buffer):
            if buffer.size > KEPT_BYTES:
                self._resize(BUSY_BYTES)
        elif not full:
            self._make_space(max(wanted, _FRAME_HEAD_BYTES))

    def _make_space(self, wanted: int) -> None:
        """See to it that the frame that is coming in finds room, in one piece in the end."""
        buffer = self._buffer
        buffer.tidy(wanted)
        if not buffer.stuffed:
            return
        size = buffer.size_for(
            wanted, frame_bytes_max=self._door.config.frame_bytes_max + _FRAME_HEAD_BYTES
        )
        if size <= buffer.size:
            _log.error("%s closed: its session is stuck on %d bytes", self.peer, len(buffer))
            self.abort()
        elif not self._resize(size):
            self._pause(_Pause.MEMORY)
            self._door.limits.wait(self, lambda: self._retry_grow(size))

    def _retry_grow(self, size: int) -> bool:
        if self._outbox.ending:
            return True
        if not self._resize(size):
            return False
        self._resume(_Pause.MEMORY)
        return True

    def _resize(self, size: int) -> bool:
        buffer, limits = self._buffer, self._door.limits
        if size == buffer.size:
            return True
        if size > buffer.size:
            if not limits.take(size - buffer.size):
                return False
            buffer.replace(size)
            limits.grown.add(self)
            return True
        freed = buffer.size - size
        buffer.replace(size)
        if size <= IDLE_BYTES:
            limits.grown.discard(self)
        limits.give_back(freed)
        return True

    def _go_on(self) -> None:
        """There is room for answers again: first what was left behind, then new bytes."""
        if self._paused & _Pause.STOPPING:
            return
        self._paused &= ~_Pause.FULL
        if len(self._buffer):
            self._serve()
        self._resume(_Pause(0))

    def _next_turn(self) -> None:
        self._resume(_Pause.TURN_OVER)

    def _serve_late(self) -> None:
        """The turn this connection had to wait for."""
        if len(self._buffer) and not self._transport.is_closing():
            self._serve()
        self._resume(_Pause.TURN_OVER)

    def _take_leave(self) -> None:
        """The peer sends nothing more: what it could still be told is let go."""
        self._close_session()
        self._outbox.give_up_places()

    def _pause(self, why: _Pause) -> None:
        if not self._paused and not self._transport.is_closing():
            with contextlib.suppress(RuntimeError):  # the peer has closed meanwhile
                self._transport.pause_reading()
        self._paused |= why

    def _resume(self, why: _Pause) -> None:
        self._paused &= ~why
        if not self._paused and not self._transport.is_closing() and not self._peer_done:
            with contextlib.suppress(RuntimeError):
                self._transport.resume_reading()

    def _turn_away(self, host: str, delay_ms: int) -> None:
        """One connection too many from its address: it waits, unserved, and is closed.

        Closed at once, its owner would be back at once.
        """
        limits = self._door.limits
        self._turned_away = host
        self._lingering = self._door.loop.call_later(delay_ms / 1000, self._transport.abort)
        limits.warn("rate", f"connection from {host} refused: its quota of connections is used up")

    def _hang_up(self) -> None:
        """Everything has left.  Closing with unread bytes would make the peer lose it: wait."""
        self._close_session()
        if self._peer_done:
            self.abort()
            return
        try:
            self._outbox.end()
        except OSError:
            self.abort()
            return
        self._lingering = self._door.loop.call_later(_LINGER_S, self.abort)
        self._paused = _Pause(0)
        self._resume(_Pause(0))

    def _fail(self, reason: str) -> None:
        _log.debug("%s closed: %s", self.peer, reason)
        self.abort()

    def _blame_ourselves(self) -> None:
        _log.exception("%s closed: a mistake of ours, please report it", self.peer)
        self.abort()

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.close()
        except Exception:
            self._blame_ourselves()


def _duplicate(transport: asyncio.Transport) -> socket.socket:
    own = transport.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    copy = socket.socket(own.family, own.type, own.proto, fileno=os.dup(own.fileno()))
    copy.setblocking(False)
    return copy
