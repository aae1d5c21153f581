"""A muted connection: its answers leave, nothing more is read, and it goes on by itself."""

from __future__ import annotations

from echo_bench import Bench, Run, frame, read_frame, turns, until


def test_a_muted_connection_is_not_served_until_its_time_is_over(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"Efirst") + frame(b"Pwaits"))
        assert await read_frame(reader) == b"first"
        await until(lambda: "waits" in bench.places)
        muted_at = bench.loop.time()
        bench.sessions[0].replies.mute(1000)
        writer.write(frame(b"Esecond"))
        bench.places["waits"].fill(frame(b"later"))
        assert await read_frame(reader) == b"later"
        assert bench.served == 2
        assert await read_frame(reader) == b"second"
        assert bench.loop.time() - muted_at >= 0.99
        writer.close()

    serve(test)


def test_the_longest_time_counts(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"E"))
        await read_frame(reader)
        muted_at = bench.loop.time()
        for delay_ms in (50, 300, 50):
            bench.sessions[0].replies.mute(delay_ms)
        writer.write(frame(b"E"))
        await read_frame(reader)
        assert bench.loop.time() - muted_at >= 0.29
        writer.close()

    serve(test)


def test_others_are_served_meanwhile(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        muted, other = await bench.connect(), await bench.connect()
        for reader, writer in (muted, other):
            writer.write(frame(b"E"))
            await read_frame(reader)
        bench.sessions[0].replies.mute(600_000)
        muted[1].write(frame(b"Enever"))
        for _ in range(100):
            other[1].write(frame(b"Enow"))
            assert await read_frame(other[0]) == b"now"
        muted[1].close()
        other[1].close()

    serve(test)


def test_a_muted_connection_does_not_hold_up_the_end(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"E"))
        await read_frame(reader)
        bench.sessions[0].replies.mute(600_000)
        writer.write(frame(b"Enever"))
        await turns()
        await bench.listeners.close(timeout_ms=500)
        assert await reader.read() == b""
        writer.close()

    serve(test)
