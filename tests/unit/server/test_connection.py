"""Connections over real sockets: framing, order, files, limits, ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import struct
import sys
from pathlib import Path

import pytest
from echo_bench import RANGE, Bench, Run, frame, read_frame, turns, until


async def ask(bench: Bench, *payloads: bytes) -> list[bytes]:
    reader, writer = await bench.connect()
    writer.write(b"".join(frame(payload) for payload in payloads))
    answers = [await read_frame(reader) for _ in payloads]
    writer.close()
    await writer.wait_closed()
    return answers


def test_frames_may_be_cut_at_every_byte(serve: Run) -> None:
    stream = frame(b"Eone") + frame(b"E") + frame(b"Ethree" * 5)

    async def test(bench: Bench) -> None:
        for cut in range(1, len(stream)):
            reader, writer = await bench.connect()
            # The second write waits until the first has arrived, or they would be one.
            come = bench.traffic.received_bytes
            writer.write(stream[:cut])
            await until(lambda goal=come + cut: bench.traffic.received_bytes == goal)
            writer.write(stream[cut:])
            assert [await read_frame(reader) for _ in range(3)] == [
                b"one",
                b"",
                b"three" + b"Ethree" * 4,
            ]
            writer.close()

    serve(test)


def test_a_stream_may_come_byte_by_byte(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        for byte in frame(b"Eslowly") + frame(b"Ebut surely"):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.001)
        assert await read_frame(reader) == b"slowly"
        assert await read_frame(reader) == b"but surely"
        writer.close()

    serve(test)


def test_pipelined_requests_are_answered_in_order(serve: Run) -> None:
    wishes = [b"%d" % number * (number % 50) for number in range(5000)]

    async def test(bench: Bench) -> None:
        assert await ask(bench, *(b"E" + wish for wish in wishes)) == wishes
        # One call per read, not one per request.
        assert bench.sessions[0].calls < 500

    serve(test)


@pytest.mark.parametrize("size", [1, 8 << 10, 100_000, 256 << 10, 1 << 20, 5_000_000])
def test_frames_of_every_size_arrive_whole(serve: Run, size: int) -> None:
    content = random.Random(size).randbytes(size)

    async def test(bench: Bench) -> None:
        answers = await ask(bench, b"Efirst", b"E" + content, b"E" + content, b"Elast")
        assert answers == [b"first", content, content, b"last"]

    serve(test)


def test_large_receive_memory_is_given_back(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"E" + bytes(20 << 20)))
        await read_frame(reader)
        await until(lambda: bench.listeners._limits.receive_bytes <= 256 << 10)
        for _ in range(2):
            bench.listeners._limits.sweep()
        assert bench.listeners._limits.receive_bytes <= 8 << 10
        writer.write(frame(b"Estill here"))
        assert await read_frame(reader) == b"still here"
        writer.close()
        await until(lambda: bench.listeners._limits.receive_bytes == 0)

    serve(test)


def test_places_keep_the_order_however_they_are_filled(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        for payload in (b"E1", b"P2", b"E3", b"P4", b"P5", b"E6"):
            writer.write(frame(payload))
        await until(lambda: bench.served == 6)
        assert await read_frame(reader) == b"1"
        bench.places["5"].fill(frame(b"5"))
        bench.places["4"].fill()  # a silent answer
        await turns()
        assert not reader._buffer  # type: ignore[attr-defined]
        bench.places["2"].fill(frame(b"2"))
        assert [await read_frame(reader) for _ in range(4)] == [b"2", b"3", b"5", b"6"]
        writer.close()

    serve(test)


def test_out_of_order_endpoints_answer_as_they_can(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        for payload in (b"P1", b"P2", b"E3"):
            writer.write(frame(payload))
        assert await read_frame(reader) == b"3"
        bench.places["2"].fill(frame(b"2"))
        assert await read_frame(reader) == b"2"
        bench.places["1"].fill(frame(b"1"))
        assert await read_frame(reader) == b"1"
        writer.close()

    serve(test, endpoint={"in_order": False})


def test_a_place_filled_after_the_end_is_ignored(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        _, writer = await bench.connect()
        writer.write(frame(b"P1") + frame(b"P2"))
        await until(lambda: bench.served == 2)
        writer.close()
        await until(lambda: bench.metrics.connections_closed == 1)
        assert bench.sessions[0].closed == 1
        bench.places["1"].fill(b"nobody reads this")
        with pytest.raises(AssertionError, match="once"):
            bench.places["1"].fill(b"again")

    serve(test)


@pytest.mark.parametrize("length", [0, 1, 10_000, 16 << 10, 100_000, 3_000_000])
def test_file_ranges_are_sent_between_bytes(serve: Run, length: int) -> None:
    content = random.Random(length).randbytes(3_100_000)

    async def test(bench: Bench) -> None:
        wishes = [b"F" + RANGE.pack(position, length) for position in (0, 77, 100_000)]
        answers = await ask(bench, b"Ebefore", *wishes, b"Eafter")
        assert answers[0] == b"before"
        assert answers[-1] == b"after"
        for position, answer in zip((0, 77, 100_000), answers[1:-1], strict=True):
            assert answer == b"head" + content[position : position + length] + b"tail"
        assert bench.traffic.sent_bytes == sum(len(answer) + 4 for answer in answers)

    serve(test, file_content=content)


def test_files_and_places_mix(serve: Run) -> None:
    content = random.Random(1).randbytes(2_000_000)

    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        for payload in (b"Pone", b"F" + RANGE.pack(5, 1_500_000), b"Ptwo", b"Eend"):
            writer.write(frame(payload))
        await until(lambda: bench.served == 4)
        assert bench.file is not None
        from pentalog.model.types import FilePiece

        bench.places["two"].fill(struct.pack(">I", 9), FilePiece(bench.file, 0, 4), b"+rest")
        bench.places["one"].fill(frame(b"one"))
        assert await read_frame(reader) == b"one"
        assert await read_frame(reader) == b"head" + content[5:1_500_005] + b"tail"
        assert await read_frame(reader) == content[:4] + b"+rest"
        assert await read_frame(reader) == b"end"
        writer.close()

    serve(test, file_content=content)


@pytest.mark.parametrize("length", [5000, 500_000])
def test_a_file_shorter_than_promised_ends_the_connection(serve: Run, length: int) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"F" + RANGE.pack(0, length)))
        answer = await reader.read()
        assert len(answer) < length + 12
        await until(lambda: bench.metrics.connections_closed == 1)
        writer.close()

    serve(test, file_content=bytes(1000))


def test_a_peer_that_never_reads_costs_no_more_than_its_queue(serve: Run) -> None:
    limit = 1 << 20

    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"A%d" % 100_000) * 1000)
        # Being full is a moment: the socket may still take a little.  Half full it stays.
        await until(
            lambda: any(one.queued_bytes > limit / 2 for one in bench.listeners._connections)
        )
        await turns()
        (connection,) = bench.listeners._connections
        assert connection.queued_bytes < limit + 200_000
        assert bench.served < 200
        # Once it reads it gets everything, although it sends nothing more.
        for _ in range(1000):
            assert len(await read_frame(reader)) == 100_000
        assert bench.served == 1000
        assert connection.queued_bytes == 0
        writer.close()

    serve(test, connection_reply_bytes_max=limit)


def test_reading_stops_at_the_limit_of_places_and_goes_on_later(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(b"".join(frame(b"P%d" % number) for number in range(100)))
        await until(lambda: bench.served >= 10)
        await turns()
        assert bench.served == 10
        for number in range(100):
            await until(lambda number=number: str(number) in bench.places)  # type: ignore[misc]
            assert len(bench.places) <= number + 10
            bench.places[str(number)].fill(frame(b"%d" % number))
            assert await read_frame(reader) == b"%d" % number
        writer.close()

    serve(test, endpoint={"in_flight_max": 10})


def test_one_place_at_a_time(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(b"".join(frame(b"P%d" % number) for number in range(5)))
        for number in range(5):
            await until(lambda number=number: str(number) in bench.places)  # type: ignore[misc]
            assert len(bench.places) == number + 1
            bench.places[str(number)].fill(frame(b"%d" % number))
            assert await read_frame(reader) == b"%d" % number
        writer.close()

    serve(test, endpoint={"in_flight_max": 1})


def test_hang_up_comes_after_what_was_queued(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"A5000000") + frame(b"P1") + frame(b"H") + frame(b"Enever") * 1000)
        await until(lambda: "1" in bench.places)
        served = bench.served
        bench.places["1"].fill(frame(b"one"))
        assert len(await read_frame(reader)) == 5_000_000
        assert await read_frame(reader) == b"one"
        assert await read_frame(reader) == b"bye"
        assert await reader.read() == b""
        writer.close()
        await until(lambda: bench.metrics.connections_closed == 1)
        assert bench.sessions[0].closed == 1
        assert served <= 1003

    serve(test)


def test_a_mistake_in_a_session_closes_only_its_connection(
    serve: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"X"))
        assert await reader.read() == b""
        writer.close()
        assert await ask(bench, b"Egoes on") == [b"goes on"]

    with caplog.at_level(logging.ERROR, "pentalog.server"):
        serve(test)
    assert "ZeroDivisionError: the session has a bug" in caplog.text


def test_a_peer_that_resets_is_forgotten(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        with socket.create_connection(bench.address) as client:
            client.sendall(frame(b"A4000000") * 3)
            await until(lambda: bench.served >= 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: bench.metrics.connections_closed == 1)
        assert bench.sessions[0].closed == 1

    serve(test)


def test_a_half_closed_peer_still_gets_its_answers(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"A5000000") + frame(b"Elast"))
        writer.write_eof()
        assert len(await read_frame(reader)) == 5_000_000
        assert await read_frame(reader) == b"last"
        assert await reader.read() == b""
        writer.close()

    serve(test)


def test_too_many_connections_are_refused(serve: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        kept = [await bench.connect() for _ in range(3)]
        await until(lambda: bench.metrics.connections_opened == 3)
        for _ in range(5):
            reader, writer = await bench.connect()
            assert await reader.read() == b""
            writer.close()
        assert bench.metrics.connections_refused == 5
        kept[0][1].close()
        await until(lambda: bench.metrics.connections_closed == 1)
        assert await ask(bench, b"Ewelcome") == [b"welcome"]
        for _, writer in kept:
            writer.close()

    with caplog.at_level(logging.WARNING, "pentalog.server"):
        serve(test, connections_max=3)
    assert caplog.text.count("connections_max=3") == 1  # a flood is one line


def test_too_many_connections_from_one_address_are_refused(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        _, first = await bench.connect()
        reader, second = await bench.connect()
        assert await reader.read() == b""
        assert bench.metrics.connections_refused == 1
        first.close()
        second.close()

    serve(test, connections_per_address_max=1)


def test_receive_memory_is_shared_and_waited_for(serve: Run) -> None:
    size = 900_000

    async def one(bench: Bench) -> None:
        assert [len(answer) for answer in await ask(bench, b"E" + bytes(size))] == [size]

    async def test(bench: Bench) -> None:
        highest = 0

        async def watch() -> None:
            nonlocal highest
            while True:
                highest = max(highest, bench.listeners._limits.receive_bytes)
                await asyncio.sleep(0)

        watcher = asyncio.ensure_future(watch())
        await asyncio.gather(*(one(bench) for _ in range(5)))
        watcher.cancel()
        assert size < highest <= 3_000_000

    serve(test, receive_bytes_max=3_000_000)


def test_whoever_stops_in_mid_frame_loses_to_those_who_wait(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        stuck_reader, stuck = await bench.connect()
        stuck.write(frame(b"E" + bytes(900_000))[:800_000])
        await until(lambda: bench.traffic.received_bytes == 800_000)
        wish = asyncio.ensure_future(ask(bench, b"E" + bytes(900_000)))
        limits = bench.listeners._limits
        await until(lambda: bool(limits._waiting))
        for _ in range(4):
            limits.sweep()
            await asyncio.sleep(0.05)
        assert [len(answer) for answer in await wish] == [900_000]
        assert await stuck_reader.read() == b""
        stuck.close()

    serve(test, receive_bytes_max=1_500_000)


def test_those_who_wait_for_each_other_do_not_wait_for_ever(serve: Run) -> None:
    size = 900_000

    async def test(bench: Bench) -> None:
        clients = [await bench.connect() for _ in range(4)]
        for _, writer in clients:
            writer.write(frame(b"E" + bytes(size))[:-1])
        limits = bench.listeners._limits
        await until(lambda: sum(map(len, limits._waiting.values())) >= 3)
        held = limits.receive_bytes
        assert held <= 1_100_000
        # Each has a part of its frame and none has room for the rest.
        while len(limits._waiting) > 0:
            limits.sweep()
            await asyncio.sleep(0.02)
        assert bench.metrics.connections_closed in (1, 2, 3)
        for _, writer in clients:
            writer.close()

    serve(test, receive_bytes_max=1_100_000)


def test_one_address_cannot_hold_the_receive_memory_of_others(serve: Run) -> None:
    size = 900_000

    async def test(bench: Bench) -> None:
        hogs = [await bench.connect() for _ in range(12)]
        for _, writer in hogs:
            writer.write(frame(b"E" + bytes(size))[:-1])
        limits = bench.listeners._limits
        await until(lambda: bool(limits._waiting))
        assert limits.receive_bytes <= 5_100_000
        # Of another address a frame is served at once, although the hogs wait in front of it.
        reader, writer = await bench.connect("127.0.0.2")
        writer.write(frame(b"E" + bytes(size)))
        assert len(await read_frame(reader)) == size
        for _, one in (*hogs, (reader, writer)):
            one.close()
        await until(lambda: limits.receive_bytes == 0)

    serve(test, receive_bytes_max=10_000_000, frame_bytes_max=1_000_000)


def test_a_frame_that_drips_loses_to_those_who_wait(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        stuck_reader, stuck = await bench.connect()
        stuck.write(frame(b"E" + bytes(900_000))[:800_000])
        await until(lambda: bench.traffic.received_bytes == 800_000)
        wish = asyncio.ensure_future(ask(bench, b"E" + bytes(900_000)))
        limits = bench.listeners._limits
        await until(lambda: bool(limits._waiting))
        for _ in range(4):
            if bench.metrics.connections_closed == 0:
                stuck.write(b"\0")
            await asyncio.sleep(0.05)
            limits.sweep()
        assert [len(answer) for answer in await wish] == [900_000]
        with contextlib.suppress(ConnectionResetError):
            assert await stuck_reader.read() == b""
        stuck.close()

    serve(test, receive_bytes_max=1_500_000)


def test_a_busy_connection_yields_to_others(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        turns: list[int] = []
        receive = None
        writer.write(frame(b"E" + bytes(1000)) * 20_000)
        await until(lambda: bool(bench.sessions))
        receive = bench.sessions[0].receive

        def counted(data: memoryview) -> int:
            turns.append(len(data))
            return receive(data)

        bench.sessions[0].receive = counted  # type: ignore[method-assign]
        answers = await ask(bench, b"Equick")
        assert answers == [b"quick"]
        for _ in range(20_000):
            await read_frame(reader)
        assert turns
        assert max(turns) <= (512 << 10) + (256 << 10)
        writer.close()

    serve(test)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_thousand_idle_connections_are_cheap(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        before = _resident_bytes()
        clients = []
        for _ in range(1000):
            client = socket.socket()
            client.setblocking(False)
            await bench.loop.sock_connect(client, bench.address)
            client.sendall(frame(b"Ehello"))
            clients.append(client)
        await until(lambda: bench.served == 1000)
        grown = _resident_bytes() - before
        for client in clients:
            client.close()
        await until(lambda: bench.metrics.connections_closed == 1000)
        assert grown < 40 << 20

    serve(test)


def test_closing_lets_accepted_requests_finish(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        idle_reader, idle_writer = await bench.connect()
        writer.write(frame(b"P1"))
        await until(lambda: bench.served == 1)
        closing = asyncio.ensure_future(bench.listeners.close(timeout_ms=5000))
        await turns()
        writer.write(frame(b"Etoo late"))
        bench.places["1"].fill(frame(b"in time"))
        assert await reader.read() == frame(b"in time")
        assert await idle_reader.read() == b""
        with pytest.raises(OSError):
            await bench.connect()
        writer.close()
        idle_writer.close()
        await closing
        assert bench.served == 1

    serve(test)


def test_closing_does_not_wait_for_ever(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"P1"))
        await until(lambda: bench.served == 1)
        await bench.listeners.close(timeout_ms=50)
        assert await reader.read() == b""
        writer.close()

    serve(test)
