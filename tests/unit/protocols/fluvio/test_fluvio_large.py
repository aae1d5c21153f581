"""Batches that hold much more than their size: translated elsewhere than on the loop."""

from __future__ import annotations

import struct

import cramjam
from fluvio_world import (
    FluvioBroker,
    produce,
    read_produced,
    read_streamed,
    stream_fetch,
    their_batch,
)

from pentalog import kernels
from pentalog.model.types import Partition

PRODUCE, STREAM = 0, 1003
MESSAGE_TOO_LARGE = 10


def zipped(*values: bytes) -> bytes:
    plain = their_batch(*values)
    sent = bytearray(plain[:57] + bytes(cramjam.zstd.compress(plain[57:])))
    struct.pack_into(">i", sent, 8, len(sent) - 12)
    struct.pack_into(">h", sent, 21, 4)
    struct.pack_into(">I", sent, 17, kernels.crc32c(bytes(sent[21:])))
    return bytes(sent)


def test_requests_behind_a_large_batch_wait_for_it(demo: FluvioBroker) -> None:
    spu = demo.spu()
    spu.request(PRODUCE, produce("demo", zipped(bytes(1 << 20))))
    spu.request(PRODUCE, produce("demo", their_batch(b"small")))
    assert spu.line.full
    assert not spu.frames(), "neither is there yet"
    spu.run()
    spu.feed(b"")
    spu.run()
    assert [number for number, _ in spu.frames()] == [1, 2]
    spu.request(STREAM, stream_fetch("demo", bytes_max=100))
    spu.run()
    ((_, frame),) = spu.pushed()
    assert [offset for offset, _, _ in read_streamed(frame).records] == [0]
    assert demo.broker.log.marks(Partition("demo", 0)).end == 2


def test_small_batches_that_hold_much_are_refused(demo: FluvioBroker) -> None:
    spu = demo.spu()
    bomb = zipped(bytes(5 << 20))
    (refused,) = read_produced(spu.ask(PRODUCE, produce("demo", bomb, bomb)))[0][1]
    assert refused == (0, MESSAGE_TOO_LARGE, 0), "two of them are too much for one request"
    assert not spu.line.full
    assert demo.broker.log.marks(Partition("demo", 0)).end == 0
