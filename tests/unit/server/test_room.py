"""A session that pushes is told when there is room again."""

from __future__ import annotations

from echo_bench import LENGTH, Bench, Run, turns, until

CHUNK = bytes(64 << 10)


def test_a_push_goes_on_when_the_peer_has_read(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        await until(lambda: bool(bench.sessions))
        replies = bench.sessions[0].replies
        pushed = 0

        def push() -> None:
            nonlocal pushed
            while pushed < 2000 and not replies.full:
                replies.send(LENGTH.pack(len(CHUNK)), CHUNK)
                pushed += 1
            if pushed < 2000:
                replies.when_room(push)

        replies.when_room(push)
        await until(lambda: pushed > 0)
        await turns()
        assert pushed < 2000, "a peer that does not read was pushed everything"
        for _ in range(2000):
            assert LENGTH.unpack(await reader.readexactly(4)) == (len(CHUNK),)
            await reader.readexactly(len(CHUNK))
        assert pushed == 2000
        writer.close()

    serve(test)


def test_it_runs_in_a_later_turn_and_never_after_the_end(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        _, writer = await bench.connect()
        await until(lambda: bool(bench.sessions))
        session = bench.sessions[0]
        runs: list[str] = []
        session.replies.when_room(lambda: runs.append("once"))
        assert runs == []
        await until(lambda: bool(runs))
        writer.close()
        await until(lambda: session.closed > 0)
        session.replies.when_room(lambda: runs.append("never"))
        await turns()
        assert runs == ["once"]

    serve(test)
