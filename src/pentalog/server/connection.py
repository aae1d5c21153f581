"""One connection of any door: bytes to its session, answers back, nothing unlimited.

What a session is asked to do and what it answers is in `session.py`; how answers leave is in
`outbox.py`.  Here is when to read and when to stop reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from math import inf
from typing import Final, cast

from pentalog.broker.security import ANONYMOUS, Access, Principal
from pentalog.config import Listen
from pentalog.metrics import Traffic
from pentalog.observation import Peer
from pentalog.runtime import Turns
from pentalog.server.addresses import block_of
from pentalog.server.buffer import BUSY_BYTES, IDLE_BYTES, KEPT_BYTES, ReceiveBuffer
from pentalog.server.descriptors import duplicate
from pentalog.server.door import Door, Pause, Rank
from pentalog.server.outbox import Outbox, OutboxLimits
from pentalog.server.tap import Tap
from pentalog.session import Address, Context, Endpoint, Session

_log = logging.getLogger("pentalog.server")

_TURN_BYTES: Final = 1 << 20
"""Received at most before other connections get their turn."""
_COSTLY_S: Final = 0.001
"""A connection whose reads lately took longer than this has its next one served as a costly one."""
_MEMORY: Final = 0.75
"""What is kept of an earlier read's cost after each read."""
_LINGER_S: Final = 1.0
_STRANGERS_SHARE: Final = 100
"""Clients that have not logged in, where they must, have a hundredth of what others have."""
_PROGRESS_SHARE: Final = 100
"""A frame that others wait for must grow by a hundredth of its memory between two sweeps."""
_LOGIN_REPLY_BYTES: Final = 64 << 10
_LOGIN_PLACES: Final = 4
_DISCARD: Final = memoryview(bytearray(64 << 10))
_FRAME_HEAD_BYTES: Final = 4


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_buffer",
        "_cost_s",
        "_door",
        "_host",
        "_lingering",
        "_offered",
        "_outbox",
        "_paused",
        "_peer_done",
        "_reached_at",
        "_rested_bytes",
        "_session",
        "_stranger",
        "_stranger_bytes",
        "_swept_bytes",
        "_tap",
        "_transport",
        "_turn_bytes",
        "_turned_away",
        "_turns",
        "_used_s",
        "block",
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
        # Unknown: until its first read is served, it does not delay those known to ask for little.
        self._cost_s = _COSTLY_S * 1.01
        self._host: str | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._offered = 0
        self._paused = Pause(0)
        self._peer_done = False
        self._reached_at = ""
        self._rested_bytes = 0
        self._session: Session | None = None
        self._stranger = False
        self._stranger_bytes = 0
        self._swept_bytes = 0
        self._tap: Tap | None = None
        self._turn_bytes = 0
        self._turned_away = False
        self._turns = door.turns
        self._used_s = 0.0
        self.block = ""
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
            tap.hears = not self._paused & (Pause.FULL | Pause.TURN_OVER)
            if tap.hears:
                tap.received(self._buffer.content())
            tap.aligned = self._outbox.between_answers

    @property
    def idle(self) -> bool:
        """Every accepted request has been answered and the answers have left."""
        return self._outbox.idle and not self._paused & Pause.TURN_OVER

    @property
    def queued_bytes(self) -> int:
        return self._outbox.queued_bytes

    @property
    def standing(self) -> tuple[int, float]:
        if self._stranger:
            self._recognise()
        if self._turned_away or self._outbox.ending:
            rank = Rank.ENDING
        elif self._session is None or self._stranger:
            rank = Rank.STRANGER
        elif self.idle and not self.known.pushed_to:
            rank = Rank.IDLE
        else:
            rank = Rank.BUSY
        return rank, self._used_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods without being of the class.
        self._transport = cast("asyncio.Transport", transport)
        door = self._door
        name = transport.get_extra_info("peername") or ("unknown", 0)
        own = transport.get_extra_info("sockname") or ("127.0.0.1", 0)
        self.peer = str(Address(name[0], name[1]))
        self.block = block_of(name[0])
        if not door.limits.admit(name[0], self, IDLE_BYTES):
            self._transport.abort()
            return
        quotas = door.broker.quotas
        delay_ms = quotas.connected(name[0]) if quotas.active else 0
        if delay_ms:
            self._turn_away(name[0], delay_ms)
            return
        try:
            way_out = duplicate(self._transport)
        except OSError as error:
            door.limits.dismiss(self, IDLE_BYTES)
            # The next one gets in, if another address has taken more than its share.
            door.limits.make_way(name[0])
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
        self._used_s = door.runtime.monotonic()
        self.number = door.observation.next_number()
        door.connections.add(self)
        self._admitted()

    def _make_outbox(self, way_out: socket.socket) -> Outbox:
        door = self._door
        return Outbox(door.loop, way_out, self.traffic, door.turns, **self._outbox_limits())

    def _outbox_limits(self) -> OutboxLimits:
        door = self._door
        return {
            "memory": door.limits.replies,
            "block": self.block,
            "in_order": door.endpoint.in_order,
            "memory_bytes_max": door.config.connection_reply_bytes_max,
            "places_max": door.endpoint.in_flight_max,
            "farewell_s": door.config.hang_up_timeout_ms / 1000,
        }

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
        demanded = door.endpoint.authenticates or listen.demands & door.endpoint.demands
        self._stranger = who == ANONYMOUS and bool(demanded)
        if self._stranger:
            limits = self._outbox_limits()
            self._outbox.allow(
                max(limits["memory_bytes_max"] // _STRANGERS_SHARE, _LOGIN_REPLY_BYTES),
                max(limits["places_max"] // _STRANGERS_SHARE, _LOGIN_PLACES),
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
            slices=door.limits.slices(self.block),
        )
        try:
            self._session = door.endpoint.open(context, self._outbox)
        except Exception:
            self._blame_ourselves()

    def _recognise(self) -> None:
        """Give a client that has logged in meanwhile what all others have."""
        if self.who is None or not self.who.proven:
            return
        self._stranger = False
        limits = self._outbox_limits()
        self._outbox.allow(limits["memory_bytes_max"], limits["places_max"])
        self._door.limits.settle_stranger(self, self._stranger_bytes)
        self._stranger_bytes = 0

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
        if nbytes == self._offered and buffer.size < BUSY_BYTES and not self._stranger:
            self._resize(BUSY_BYTES)
        if self._take_turn():
            self._serve()
            if self._turn_bytes >= _TURN_BYTES and not self._paused & Pause.TURN_OVER:
                # Otherwise a busy producer is read from for tens of milliseconds on end.
                self._turn_bytes = 0
                self._pause(Pause.MUCH_READ)
                self._door.loop.call_soon(self._next_turn)

    def eof_received(self) -> bool:
        self._peer_done = True
        if self._lingering is not None:
            return False
        self._door.turns.do(self._take_leave, self.block)
        return True  # the answers that are there still leave, then we close

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
        if self._turned_away:
            self._door.limits.dismiss(self, IDLE_BYTES)
        if self._host is None:
            return
        door = self._door
        door.connections.discard(self)
        door.observation.gone(self)
        door.limits.forget(self)
        self._outbox.close()
        door.limits.settle_stranger(self, self._stranger_bytes)
        door.limits.dismiss(self, self._buffer.size)
        self._close_session()

    def stop(self) -> None:
        """Take no more requests; what was accepted is still answered."""
        self._pause(Pause.STOPPING)

    def finish(self) -> None:
        """Hang up after what is queued."""
        self._outbox.hang_up()

    def abort(self) -> None:
        """Close now, whatever is queued."""
        # The duplicate first: the peer sees the end only when both descriptors are closed.
        self._outbox.close()
        self._transport.abort()

    def sweep(self, *, pressed: bool) -> bool:
        moved_bytes = self.traffic.received_bytes - self._swept_bytes
        self._swept_bytes = self.traffic.received_bytes
        if self._outbox.ending:
            return False
        if not len(self._buffer):
            if not moved_bytes:
                self._resize(IDLE_BYTES)
        elif pressed and moved_bytes < self._buffer.size // _PROGRESS_SHARE:
            self.evict()
            return True
        return False

    def evict(self) -> None:
        self._door.limits.warn(
            "stuck",
            f"{self.peer} closed: it stopped, or nearly, in the middle of a frame and held "
            f"{self._buffer.size} bytes of memory that others wait for",
        )
        self.abort()

    def make_way(self) -> None:
        self._door.limits.warn(
            "crowd",
            f"{self.peer} closed: a client of another address needs its place; raise "
            "connections_max and the limit of open files, or lower connections_per_address_max",
        )
        if self._turned_away:
            self._transport.abort()
        else:
            self.abort()

    def close_if_idle(self, idle_s: float) -> None:
        if self._turned_away or self._outbox.ending:
            return
        chosen = self.known.closes_idle
        closes_idle = self._door.endpoint.closes_idle if chosen is None else chosen
        moved_bytes = self.traffic.received_bytes + self._outbox.taken_bytes
        now_s = self._door.runtime.monotonic()
        unread = self._outbox.unread
        waits = self._paused or not self._outbox.idle or self.known.pushed_to
        if moved_bytes != self._rested_bytes or (waits and not unread):
            self._rested_bytes = moved_bytes
            self._used_s = now_s
        elif now_s - self._used_s > idle_s and (closes_idle or unread):
            what = "did not read its answers" if unread else "was idle"
            _log.info("%s closed: it %s for %d s", self.peer, what, now_s - self._used_s)
            self.finish()

    def _take_turn(self) -> bool:
        """May what was received be served now?  If not, it is served in a later turn."""
        door = self._door
        costly = door.endpoint.costly
        if self._cost_s > _COSTLY_S or (costly is not None and costly(self._buffer.content())):
            self._turns = door.costly_turns
        else:
            self._turns = door.turns
        if self._turns.take():
            return True
        self._await_turn(self._turns)
        return False

    def _await_turn(self, turns: Turns) -> None:
        self._turn_bytes = 0
        self._turns = turns
        self._pause(Pause.TURN_OVER)
        turns.wait(self._serve_late, self.block)

    def _serve(self) -> None:
        """Serve what was received until this connection's share of the turn is used up."""
        buffer, outbox = self._buffer, self._outbox
        session = self._session
        if session is None or outbox.ending:
            buffer.used(len(buffer))
            return
        if self._stranger:
            self._recognise()
        door, turns = self._door, self._turns
        self._used_s = start_s = door.runtime.monotonic()
        outbox.until_s = start_s + turns.left_s
        outbox.interrupted = False
        outbox.holding = True
        metrics = door.metrics
        appended_records = metrics.appended_records
        try:
            used = session.receive(buffer.content())
            wanted = session.wanted
        except Exception:
            self._blame_ourselves()
            return
        outbox.holding = False
        outbox.until_s = inf
        # Nobody else's session runs meanwhile: what was appended came from here.
        self.traffic.received_records += metrics.appended_records - appended_records
        full = outbox.full
        outbox.flush()
        buffer.used(used)
        duration_s = door.runtime.monotonic() - start_s
        turns.spend(duration_s)
        self._cost_s = max(duration_s, self._cost_s * _MEMORY)
        if outbox.ending:
            buffer.used(len(buffer))
            return
        if full:
            # The session may have left whole frames behind: it goes on when there is room,
            # although no new bytes come.
            self._pause(Pause.FULL)
            outbox.await_room()
        elif outbox.interrupted and len(buffer):
            # One that asks for little may have come at the very end of a turn.
            self._await_turn(door.costly_turns if self._cost_s > _COSTLY_S else turns)
            return
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
        if self._stranger:
            self._recognise()
        if self._stranger:
            self._make_space_for_login(wanted)
            return
        frame_bytes = min(wanted, self._door.config.frame_bytes_max + _FRAME_HEAD_BYTES)
        size = buffer.size_for(frame_bytes, frame_bytes_max=frame_bytes)
        if size <= buffer.size:
            _log.error("%s closed: its session is stuck on %d bytes", self.peer, len(buffer))
            self.abort()
        elif not self._resize(size, frame_bytes):
            self._pause(Pause.MEMORY)
            self._door.limits.wait(self, lambda: self._retry_grow(size, frame_bytes))

    def _make_space_for_login(self, wanted: int) -> None:
        """Make room for a frame of a client that has to log in first, if that is small."""
        limits, buffer = self._door.limits, self._buffer
        size_max = self._door.endpoint.login_bytes_max + _FRAME_HEAD_BYTES
        size = max(buffer.size, min(max(wanted, 2 * buffer.size), size_max))
        grown = size - buffer.size
        if wanted > size_max or not grown:
            flaw = f"a frame of {wanted} bytes before its login; accepted are {size_max}"
        elif not limits.take_for_stranger(self, grown, size_max):
            flaw = "clients that have not logged in hold all memory they may have"
        else:
            self._stranger_bytes += grown
            buffer.replace(size)
            limits.grown.add(self)
            return
        limits.warn("login", f"{self.peer} closed: {flaw}")
        self.abort()

    def _retry_grow(self, size: int, frame_bytes: int) -> bool:
        if self._outbox.ending:
            return True
        if not self._resize(size, frame_bytes):
            return False
        self._resume(Pause.MEMORY)
        return True

    def _resize(self, size: int, frame_bytes: int = 0) -> bool:
        buffer, limits = self._buffer, self._door.limits
        if size == buffer.size:
            return True
        if size > buffer.size:
            if not limits.take(self, size - buffer.size):
                return False
            buffer.replace(size, frame_bytes)
            limits.grown.add(self)
            return True
        freed = buffer.size - size
        buffer.replace(size)
        if size <= IDLE_BYTES:
            limits.grown.discard(self)
            limits.settle_stranger(self, self._stranger_bytes)
            self._stranger_bytes = 0
        limits.give_back(self, freed)
        return True

    def _go_on(self) -> None:
        """There is room for answers again: first what was left behind, then new bytes."""
        if self._paused & Pause.STOPPING:
            return
        self._paused &= ~Pause.FULL
        if len(self._buffer) and self._take_turn():
            self._serve()
        self._resume(Pause(0))

    def _next_turn(self) -> None:
        self._resume(Pause.MUCH_READ)

    def _serve_late(self) -> None:
        """The turn this connection had to wait for."""
        self._paused &= ~Pause.TURN_OVER
        if len(self._buffer) and not self._transport.is_closing():
            self._serve()
        self._resume(Pause(0))

    def _take_leave(self) -> None:
        """The peer sends nothing more: what it could still be told is let go."""
        self._close_session()
        self._outbox.give_up_places()

    def _pause(self, why: Pause) -> None:
        if not self._paused and not self._transport.is_closing():
            with contextlib.suppress(RuntimeError):  # the peer has closed meanwhile
                self._transport.pause_reading()
        self._paused |= why

    def _resume(self, why: Pause) -> None:
        self._paused &= ~why
        if not self._paused and not self._transport.is_closing() and not self._peer_done:
            with contextlib.suppress(RuntimeError):
                self._transport.resume_reading()

    def _turn_away(self, host: str, delay_ms: int) -> None:
        """One connection too many from its address: it waits, unserved, and is closed.

        Closed at once, its owner would be back at once.
        """
        limits = self._door.limits
        self._turned_away = True
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
        self._paused = Pause(0)
        self._resume(Pause(0))

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
