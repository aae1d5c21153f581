"""A burst of requests, or of ends, is spread over turns of the loop: counted, not timed."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from echo_bench import Bench, EchoSession, Run, frame, until

from pentalog.broker.operation import Unlimited
from pentalog.server import connection
from pentalog.server.door import COSTLY_PER_TURN, SERVED_PER_TURN

MANY = 4 * SERVED_PER_TURN
ANSWER_BYTES = 32 << 10


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine any read may take long, which does not make its connection costly here."""
    monkeypatch.setattr(connection, "_COSTLY_S", 60.0)


class TurnCounter:
    """Knows which turn of the loop it is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.turn = 0
        self._loop = loop
        self._handle = loop.call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()

    def _next(self) -> None:
        self.turn += 1
        self._handle = self._loop.call_soon(self._next)


@asynccontextmanager
async def peers(bench: Bench, count: int) -> AsyncIterator[list[socket.socket]]:
    made = []
    try:
        for _ in range(count):
            peer = socket.socket()
            peer.setblocking(False)
            made.append(peer)
            await asyncio.get_running_loop().sock_connect(peer, bench.address)
        await until(lambda: len(bench.sessions) == count)
        yield made
    finally:
        for peer in made:
            peer.close()


async def greet(bench: Bench, connected: list[socket.socket]) -> None:
    """Exchange one small request, after which a connection is known to ask for little."""
    for peer in connected:
        peer.send(frame(b"E"))
    await until(lambda: bench.served == len(connected))
    for peer in connected:
        peer.setblocking(True)
        assert peer.recv(100) == frame(b"")
        peer.setblocking(False)


def note_turns(bench: Bench, counter: TurnCounter, method: str) -> Counter[int]:
    """How many sessions are called by this method in each turn, from now on."""
    found: Counter[int] = Counter()

    def noted(call: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object) -> object:
            found[counter.turn] += 1
            return call(*arguments)

        return run

    for session in bench.sessions:
        setattr(session, method, noted(getattr(session, method)))
    return found


def most_per_turn(serve: Run, send: Callable[[int], bytes], *, costly: bool) -> int:
    seen: list[int] = []

    async def test(bench: Bench) -> None:
        async with peers(bench, MANY) as connected:
            await greet(bench, connected)
            counter = TurnCounter(bench.loop)
            found = note_turns(bench, counter, "receive")
            for number, peer in enumerate(connected):
                peer.send(send(number))
            await until(lambda: bench.served == 2 * MANY)
            counter.stop()
            for peer in connected:
                peer.setblocking(True)
                assert peer.recv(100)[4:] == b"hello"
            # One whose turn was over is called again.
            assert found.total() >= MANY
            seen.append(max(found.values()))

    endpoint = {"costly": lambda data: data[5:6] == b"h"} if costly else {}
    serve(test, endpoint=endpoint)
    return seen[0]


def test_so_many_are_served_in_one_turn(serve: Run) -> None:
    # A turn may get what the one before left unused.
    most = most_per_turn(serve, lambda number: frame(b"Ehello"), costly=False)
    assert SERVED_PER_TURN // 2 <= most <= 2 * SERVED_PER_TURN


def test_costly_requests_are_served_more_slowly(serve: Run) -> None:
    most = most_per_turn(serve, lambda number: frame(b"Ehello"), costly=True)
    assert COSTLY_PER_TURN // 2 <= most <= 2 * COSTLY_PER_TURN


def test_a_small_question_does_not_wait_behind_costly_ones(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        async with peers(bench, MANY) as connected:
            first, *others = connected
            await greet(bench, connected)
            order: list[int] = []
            for number, session in enumerate(bench.sessions):
                session.receive = _noted(session, order, number)  # type: ignore[method-assign]
            for peer in others:
                peer.send(frame(b"Ehello"))
            first.send(frame(b"Equick"))
            await until(lambda: bench.served == 2 * MANY)
            assert order.index(0) < MANY // 2

    serve(test, endpoint={"costly": lambda data: data[5:6] == b"h"})


def test_a_small_question_at_the_end_of_a_turn_does_not_wait_behind_costly_ones(
    serve: Run,
) -> None:
    """It had to stop before it began, and came last of all that its address had asked for."""

    async def test(bench: Bench) -> None:
        async with peers(bench, MANY) as connected:
            first, *others = connected
            await greet(bench, connected)
            order: list[int] = []
            bench.sessions[0].receive = _too_late_once(  # type: ignore[method-assign]
                bench.sessions[0]
            )
            for number, session in enumerate(bench.sessions):
                session.receive = _noted(session, order, number)  # type: ignore[method-assign]
            for peer in others:
                peer.send(frame(b"Ehello"))
            first.send(frame(b"Equick"))
            await until(lambda: bench.served == 2 * MANY)
            assert order.count(0) == 2
            assert len(order) - order[::-1].index(0) < MANY // 2

    serve(test, endpoint={"costly": lambda data: data[5:6] == b"h"})


def _too_late_once(session: EchoSession) -> Callable[[memoryview], int]:
    """Finds, the first time, that its turn is over."""
    receive, calls = session.receive, 0

    def run(data: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            return receive(data)
        while not session.replies.full:
            pass
        return 0

    return run


def _noted(session: EchoSession, order: list[int], number: int) -> Callable[[memoryview], int]:
    receive = session.receive

    def run(data: memoryview) -> int:
        order.append(number)
        return receive(data)

    return run


def note_frames(bench: Bench, counter: TurnCounter) -> Counter[int]:
    """How many frames are served in each turn, from now on."""
    return note_turns(bench, counter, "_serve")


def test_costly_requests_of_many_connections_are_spread_over_turns(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        async with peers(bench, 64) as connected:
            counter = TurnCounter(bench.loop)
            found = note_frames(bench, counter)
            for peer in connected:
                peer.send(frame(b"W5000"))
            await until(lambda: bench.served == 64)
            counter.stop()
            assert max(found.values()) <= 2
            for peer in connected:
                peer.setblocking(True)
                assert peer.recv(100)[4:] == b"W5000"

    serve(test)


def test_a_known_client_does_not_wait_for_new_ones(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        async with peers(bench, 60) as connected:
            known, *strangers = connected
            known.send(frame(b"E"))
            while not await _arrived(known):
                pass
            known.recv(100)
            for peer in strangers:
                peer.send(frame(b"W3000"))
            await until(lambda: bench.served > 3)
            served = bench.served
            known.send(frame(b"Ehello"))
            while not await _arrived(known):
                pass
            assert bench.served < served + 10

    serve(test)


def test_pipelined_costly_requests_are_spread_over_turns(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        async with peers(bench, 2) as (hog, other):
            counter = TurnCounter(bench.loop)
            found = note_frames(bench, counter)
            hog.send(b"".join(frame(b"W%d" % (5000 + number)) for number in range(100)))
            await until(lambda: bench.served > 2)
            served = bench.served
            other.send(frame(b"Ehello"))
            while not await _arrived(other):
                pass
            assert bench.served < served + 20, "the other client waited for the pipeline"
            await until(lambda: bench.served == 101)
            counter.stop()
            assert max(found.values()) <= 3
            hog.setblocking(True)
            received = b""
            while len(received) < 100 * 9:
                received += hog.recv(10_000)
            assert received == b"".join(frame(b"W%d" % (5000 + number)) for number in range(100))

    serve(test)


async def _arrived(peer: socket.socket) -> bool:
    await asyncio.sleep(0)
    try:
        return bool(peer.recv(100, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_the_end_of_a_stream_waits_for_the_requests_before_it(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        async with peers(bench, 1) as (peer,):
            peer.send(frame(b"W5000") * 20)
            peer.shutdown(socket.SHUT_WR)
            await until(lambda: bench.metrics.connections_closed == 1)
            assert bench.served == 20
            peer.setblocking(True)
            assert peer.recv(10_000) == frame(b"W5000") * 20

    serve(test)


def test_so_many_take_leave_in_one_turn(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        async with peers(bench, MANY) as connected:
            counter = TurnCounter(bench.loop)
            found = note_turns(bench, counter, "close")
            for peer in connected:
                peer.close()
            await until(lambda: bench.metrics.connections_closed == MANY)
            counter.stop()
            assert found.total() == MANY
            assert max(found.values()) <= 2 * SERVED_PER_TURN

    serve(test)


class OneAtMost(Unlimited):
    """Allows one connection."""

    active = True

    def __init__(self) -> None:
        self.asked: list[str] = []

    def connected(self, address: str) -> int:
        self.asked.append(address)
        return 50 if len(self.asked) > 1 else 0


def test_a_connection_over_the_quota_waits_and_is_closed(serve: Run) -> None:
    quotas = OneAtMost()

    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        late_reader, late_writer = await bench.connect()
        late_writer.write(frame(b"Ehello"))
        began = bench.loop.time()
        assert await late_reader.read() == b""
        assert bench.loop.time() - began >= 0.02
        late_writer.close()
        assert bench.served == 0
        assert quotas.asked == ["127.0.0.1"] * 2
        writer.write(frame(b"Ehello"))
        assert (await reader.readexactly(9))[4:] == b"hello"
        writer.close()
        await until(lambda: bench.metrics.connections_closed == 2)

    serve(test, quotas=quotas)


def test_a_busy_connection_is_not_read_into_a_full_buffer(serve: Run) -> None:
    """A connection may wait for its turn and, because it sent much, for the next one as well."""
    size, frames = 4 << 20, 25

    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        await until(lambda: bool(bench.sessions))
        (session,) = bench.sessions
        session.receive = _in_three_steps(session, size)  # type: ignore[method-assign]
        writer.write(bytes(size * frames))
        got = 0
        while got < frames * ANSWER_BYTES:
            piece = await reader.read(1 << 20)
            assert piece, f"closed after {got} bytes"
            got += len(piece)
        writer.close()

    serve(test, connection_reply_bytes_max=ANSWER_BYTES // 2)


def _in_three_steps(session: EchoSession, size: int) -> Callable[[memoryview], int]:
    """A frame that fills the buffer: too many answers first, then no time left, then served."""
    step = 0

    def run(data: memoryview) -> int:
        nonlocal step
        session.wanted = size
        if len(data) < size:
            return 0
        step = (step + 1) % 3
        if step == 1:
            session.replies.send(bytes(ANSWER_BYTES))
            return 0
        if step == 2:
            while not session.replies.full:
                pass
            return 0
        return size

    return run
