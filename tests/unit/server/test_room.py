"""A session that pushes is told when there is room again."""

from __future__ import annotations

from echo_bench import LENGTH, Bench, Run, frame, read_frame, turns, until

CHUNK = bytes(64 << 10)
LARGE = bytes(48 << 20)


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


def test_an_answer_waits_for_memory_that_others_have_not_read(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        other_reader, other_writer = await bench.connect()
        await until(lambda: len(bench.sessions) == 2)
        unread, waiting = (session.replies for session in bench.sessions)
        # More than the buffers of two sockets take.
        unread.send(LENGTH.pack(len(LARGE)), LARGE)
        await turns()
        reserved = waiting.reserve(len(CHUNK) * 2)
        assert not reserved.ready
        assert waiting.full
        order: list[str] = []
        reserved.then(lambda _: order.append("reserved"))
        waiting.when_room(lambda: order.append("room"))
        # A small answer does not wait.
        waiting.send(LENGTH.pack(2), b"ok")
        assert await read_frame(other_reader) == b"ok"
        await turns()
        assert order == []
        assert len(await read_frame(reader)) == len(LARGE)
        await until(lambda: order == ["reserved", "room"])
        reserved.value()
        writer.close()
        other_writer.close()

    serve(test, reply_bytes_max=1 << 20)


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


def test_an_answer_is_reserved_although_others_stand_behind_its_place(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        await until(lambda: bool(bench.sessions))
        replies = bench.sessions[0].replies
        first = replies.place()
        # These cannot leave before the first one has.
        for _ in range(3):
            replies.send(LENGTH.pack(len(CHUNK)), CHUNK)
        await turns()
        reserved = replies.reserve(len(CHUNK))
        reserved.then(lambda _: first.fill(LENGTH.pack(2), b"ok"))
        assert await read_frame(reader) == b"ok"
        reserved.value()
        for _ in range(3):
            assert await read_frame(reader) == CHUNK
        writer.close()

    serve(test, connection_reply_bytes_max=2 * len(CHUNK))


def test_a_reservation_is_made_after_what_was_sent_in_the_same_turn(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        small = bytes(1000)
        writer.write(frame(b"E" + small) + frame(b"R%d" % len(CHUNK)) + frame(b"Eafter"))
        assert await read_frame(reader) == small
        assert await read_frame(reader) == b"reserved"
        assert await read_frame(reader) == b"after"
        writer.close()

    serve(test, connection_reply_bytes_max=1500)


def test_an_answer_that_has_left_in_part_is_charged_as_a_whole(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        _, writer = await bench.connect()
        await until(lambda: bool(bench.sessions))
        replies = bench.sessions[0].replies
        replies.send(LENGTH.pack(len(LARGE)), LARGE)
        await turns()
        assert bench.reply_memory.used_bytes >= len(LARGE)
        # The part that has left is still there, whatever is queued behind it.
        replies.send(CHUNK)
        assert bench.reply_memory.used_bytes >= len(LARGE) + len(CHUNK)
        writer.close()
        await until(lambda: bench.reply_memory.used_bytes == 0)

    serve(test)
