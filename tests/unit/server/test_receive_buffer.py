"""The receive buffer: content stays whole and in one piece whatever happens to the memory."""

from __future__ import annotations

import random

import pytest

from pentalog.server.buffer import BUSY_BYTES, IDLE_BYTES, KEPT_BYTES, ReceiveBuffer

FRAME_MAX = 100 << 20


def receive(buffer: ReceiveBuffer, data: bytes) -> None:
    space = buffer.space()
    assert len(space) >= len(data)
    space[: len(data)] = data
    buffer.received(len(data))


def test_content_is_what_was_received_and_not_used() -> None:
    buffer = ReceiveBuffer()
    receive(buffer, b"hello world")
    buffer.used(6)
    assert bytes(buffer.content()) == b"world"
    receive(buffer, b"!")
    assert bytes(buffer.content()) == b"world!"
    assert len(buffer) == 6
    buffer.used(6)
    assert len(buffer.space()) == IDLE_BYTES


def test_replaced_memory_keeps_the_content_while_old_views_live() -> None:
    buffer = ReceiveBuffer()
    receive(buffer, b"abcdef")
    buffer.used(2)
    old = buffer.content()
    buffer.replace(BUSY_BYTES)
    assert bytes(buffer.content()) == b"cdef"
    old[0] = 0
    assert bytes(buffer.content()) == b"cdef"
    assert buffer.size == BUSY_BYTES


def test_tidy_moves_only_when_the_frame_would_not_fit() -> None:
    buffer = ReceiveBuffer()
    buffer.replace(BUSY_BYTES)
    receive(buffer, bytes(100_000) + b"tail")
    buffer.used(100_000)
    room = len(buffer.space())
    buffer.tidy(1000)
    assert len(buffer.space()) == room
    buffer.tidy(BUSY_BYTES - 50_000)
    assert len(buffer.space()) == BUSY_BYTES - 4
    assert bytes(buffer.content()) == b"tail"


def test_overlapping_content_survives_the_move() -> None:
    buffer = ReceiveBuffer()
    content = random.Random(7).randbytes(IDLE_BYTES)
    receive(buffer, content)
    buffer.used(10)
    assert buffer.stuffed
    buffer.tidy(IDLE_BYTES)
    assert bytes(buffer.content()) == content[10:]
    assert not buffer.stuffed


@pytest.mark.parametrize("frame", [300_000, 1 << 20, 100 << 20])
def test_an_announced_frame_gets_memory_only_as_it_arrives(frame: int) -> None:
    buffer = ReceiveBuffer()
    receive(buffer, b"head")
    assert buffer.size_for(frame, frame_bytes_max=FRAME_MAX) == BUSY_BYTES


def test_growth_ends_with_the_frame_in_one_piece() -> None:
    frame = 3_000_000
    buffer = ReceiveBuffer()
    rounds = 0
    while len(buffer) < frame:
        size = buffer.size_for(frame, frame_bytes_max=FRAME_MAX)
        if size > buffer.size:
            buffer.replace(size)
            rounds += 1
        receive(buffer, bytes(min(len(buffer.space()), frame - len(buffer))))
    assert rounds <= 4
    assert len(buffer.content()) == frame
    assert buffer.size <= 2 * frame


def test_reads_are_bounded() -> None:
    buffer = ReceiveBuffer()
    buffer.replace(4 << 20)
    assert len(buffer.space()) == 512 << 10


def test_a_large_frame_is_not_copied_again_as_it_grows() -> None:
    frame = 40 << 20
    buffer = ReceiveBuffer()
    memory: list[int] = []
    while len(buffer) < frame:
        size = buffer.size_for(frame, frame_bytes_max=FRAME_MAX)
        if buffer.stuffed and size > buffer.size:
            held = len(buffer)
            before = buffer.content().obj
            buffer.replace(size, frame)
            if buffer.content().obj is not before:
                memory.append(held)
        assert len(buffer.space()) <= buffer.size - len(buffer)
        buffer.received(len(buffer.space()))
    assert max(memory) <= KEPT_BYTES
    assert buffer.size == frame
