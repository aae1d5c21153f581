"""Connections that are closed for others: idle ones, hung-up ones, ones before their login."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from echo_bench import Bench, Run, frame, read_frame, turns, until

IDLE: dict[str, Any] = {"closes_idle": True}
LOGIN: dict[str, Any] = {"authenticates": True}


def test_a_newcomer_gets_in_although_one_address_took_everything(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        taken = [await bench.connect() for _ in range(5)]
        for reader, writer in (taken[0], *taken[2:]):
            writer.write(frame(b"Ehello"))
            assert await read_frame(reader) == b"hello"
        reader, writer = await bench.connect("127.0.0.2")
        writer.write(frame(b"Ehello"))
        assert await read_frame(reader) == b"hello"
        assert await taken[1][0].read() == b"", "the one that was idle longest is closed"
        assert bench.metrics.connections_refused == 0
        again, over = await bench.connect()
        assert await again.read() == b"", "the crowded address gets no other place for it"
        for _, one in (*taken, (reader, writer), (again, over)):
            one.close()

    serve(test, connections_max=5)


def test_each_address_keeps_its_share(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        one = [await bench.connect() for _ in range(3)]
        other = [await bench.connect("127.0.0.2") for _ in range(2)]
        late, refused = await bench.connect("127.0.0.2")
        assert await late.read() == b"", "three and two are even: the newcomer is refused"
        for reader, writer in (*one, *other):
            writer.write(frame(b"Ehello"))
            assert await read_frame(reader) == b"hello"
        third = await bench.connect("127.0.0.3")
        assert await one[0][0].read() == b""
        for _, writer in (*one, *other, third):
            writer.close()
        refused.close()

    serve(test, connections_max=5)


def test_clients_that_have_not_logged_in_make_way_first(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        taken = [await bench.connect() for _ in range(4)]
        for number, (reader, writer) in enumerate(taken):
            writer.write(frame(b"Luser" if number != 3 else b"Ehello"))
            assert await read_frame(reader) == b"hello"
        reader, writer = await bench.connect("127.0.0.2")
        writer.write(frame(b"Ehello"))
        assert await read_frame(reader) == b"hello"
        assert await taken[3][0].read() == b""
        for _, one in (*taken, (reader, writer)):
            one.close()

    serve(test, connections_max=4, endpoint=LOGIN)


def test_an_idle_connection_is_closed(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"Ehello"))
        assert await read_frame(reader) == b"hello"
        half, unfinished = await bench.connect()
        unfinished.write(frame(b"Ehello")[:-1])
        assert await reader.read() == b""
        assert await half.read() == b""
        writer.close()
        unfinished.close()

    serve(test, connections_max_idle_ms=100, endpoint=IDLE)


@pytest.mark.parametrize("idle_ms", [0, -1])
def test_idle_connections_may_stay(serve: Run, idle_ms: int) -> None:
    serve(_stays, connections_max_idle_ms=idle_ms, endpoint=IDLE)


def test_idle_connections_stay_where_clients_are_silent_for_long(serve: Run) -> None:
    serve(_stays, connections_max_idle_ms=50)


async def _stays(bench: Bench) -> None:
    _, writer = await bench.connect()
    await until(lambda: bool(bench.sessions))
    limits = bench.listeners._limits
    for _ in range(3):
        await asyncio.sleep(0.05)
        limits._sweep_due()
        limits.stop_sweeping()
    await turns()
    assert bench.metrics.connections_closed == 0
    writer.close()


def test_who_waits_or_is_pushed_to_is_not_idle(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        waiting, first = await bench.connect()
        first.write(frame(b"Pone"))
        await until(lambda: "one" in bench.places)
        pushed, second = await bench.connect()
        await until(lambda: len(bench.sessions) == 2)
        bench.sessions[1].context.known.pushed_to = True
        idle, third = await bench.connect()
        assert await idle.read() == b""
        third.close()
        await until(lambda: bench.metrics.connections_closed == 1)
        bench.places["one"].fill(frame(b"late"))
        assert await read_frame(waiting) == b"late"
        bench.sessions[1].replies.send(frame(b"news"))
        assert await read_frame(pushed) == b"news"
        for writer in (first, second):
            writer.close()

    serve(test, connections_max_idle_ms=200, endpoint=IDLE)


def test_a_peer_that_does_not_read_is_closed_in_time(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        await bench.loop.sock_connect(peer, bench.address)
        await bench.loop.sock_sendall(peer, frame(b"A20000000") + frame(b"H"))
        await until(lambda: bench.metrics.connections_closed == 1)
        peer.close()

    serve(test, hang_up_timeout_ms=100, connection_reply_bytes_max=100 << 20)


def test_a_peer_that_reads_slowly_gets_its_last_answers(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"A8000000") + frame(b"H"))
        received = 0
        for _ in range(100):
            # A pause per piece: together they take longer than the time to hang up.
            received += len(await reader.read(400_000))
            await asyncio.sleep(0.01)
        while piece := await reader.read(1 << 20):
            received += len(piece)
        assert received == 8_000_000 + 4 + len(frame(b"bye"))
        writer.close()

    serve(test, hang_up_timeout_ms=400, connection_reply_bytes_max=100 << 20)


def test_frames_before_a_login_are_small(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"E" + bytes(60_000)))
        assert len(await read_frame(reader)) == 60_000
        writer.write(frame(b"Luser") + frame(b"E" + bytes(500_000)))
        assert await read_frame(reader) == b"hello"
        assert len(await read_frame(reader)) == 500_000
        writer.close()
        other, stranger = await bench.connect()
        stranger.write(frame(b"E" + bytes(80_000)))
        assert await _end_of(other) == b""
        stranger.close()
        assert bench.served == 3
        await until(lambda: bench.metrics.connections_closed == 2)
        assert bench.listeners._limits._strangers.used_bytes == 0

    serve(test, endpoint=LOGIN)


def test_clients_before_their_login_share_little_memory(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        strangers = [await bench.connect() for _ in range(6)]
        for _, writer in strangers:
            writer.write(frame(b"E" + bytes(50_000))[:40_000])
        # 80 KiB are enough for one of them.
        await until(lambda: bench.metrics.connections_closed >= 4)
        reader, writer = await bench.connect()
        writer.write(frame(b"Luser"))
        assert await read_frame(reader) == b"hello"
        writer.write(frame(b"E" + bytes(500_000)))
        assert len(await read_frame(reader)) == 500_000
        for _, one in (*strangers, (reader, writer)):
            one.close()
        await until(lambda: bench.metrics.connections_closed == 7)
        assert bench.listeners._limits._strangers.used_bytes == 0

    serve(test, endpoint=LOGIN, receive_bytes_max=8 << 20, frame_bytes_max=1 << 20)


def test_little_is_queued_before_a_login(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.setblocking(False)
            await bench.loop.sock_connect(peer, bench.address)
            await bench.loop.sock_sendall(peer, frame(b"A500000") * 100)
            await until(lambda: bool(bench.sessions) and bench.sessions[0].calls > 0)
            await turns(500)
            assert bench.served < 100
            (connection,) = bench.listeners._connections
            assert connection.queued_bytes <= 600_000

    serve(test, endpoint=LOGIN)


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
