"""Processes killed while topics are derived, and clients that stall: nothing lost, nobody waits."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent))

from fluvio_wire import Wire, ends, make_topic, read, store_module, write
from fluvio_world import ad_hoc, chain, create_topic, stream_fetch
from wat_modules import module

import brokers
from pentalog.protocols.fluvio.codec import Reader
from pentalog.testing.ports import reserve_port

KILLS = int(os.environ.get("PENTALOG_CYCLES", "4"))

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180 + 5 * KILLS)]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    Wire.close_all()


def start(directory: Path, sc: int, spu: int, **settings: str) -> brokers.Broker:
    listen = (f"--listen=fluvio-sc=127.0.0.1:{sc}", f"--listen=fluvio-spu=127.0.0.1:{spu}")
    return brokers.start_pentalog(directory, arguments=listen, settings=settings)


def derive(broker: brokers.Broker) -> None:
    from pentalog.cli.client import Client

    settings = {"derived.from": "raw", "derived.smartmodule": "only-a"}
    with Client(broker.address) as client:
        client.create_topic("clean", 1, settings)


def test_a_derived_topic_has_every_record_once_whenever_the_process_is_killed(
    tmp_path: Path,
) -> None:
    dice = random.Random(7)
    sc_port, spu_port = reserve_port(), reserve_port()
    broker = start(tmp_path, sc_port, spu_port)
    sc = Wire(sc_port, 19)
    make_topic(sc, "raw")
    store_module(sc, "only-a", module("filter"))
    derive(broker)
    number = 0
    for _ in range(KILLS):
        spu = Wire(spu_port, 24)
        until_s = time.monotonic() + dice.uniform(0.1, 0.5)
        while time.monotonic() < until_s:
            letters = [b"a%06d" % n if n % 3 else b"b%06d" % n for n in range(number, number + 5)]
            write(spu, "raw", *letters)
            number += 5
        broker.kill()
        broker = start(tmp_path, sc_port, spu_port)
    with brokers.stopping(broker):
        expected = [b"a%06d" % n for n in range(number) if n % 3]
        last = Wire(spu_port, 24)
        assert ends(last, "raw") == (0, number)
        # Records that were derived twice would be in front of this one.
        write(last, "raw", b"a last")
        assert read(spu_port, "clean", len(expected) + 1) == [*expected, b"a last"]


def text_of(reader: Reader) -> str:
    reader.text(), reader.u32(), reader.u32()
    assert reader.i16() == 6004
    return reader.text()


def test_a_module_that_never_ends_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Its fuel would last for days: time is up, and others are served meanwhile."""
    sc_port, spu_port = reserve_port(), reserve_port()
    settings = {"smart_module_fuel": str(10**15), "smart_module_timeout_ms": "500"}
    broker = start(tmp_path, sc_port, spu_port, **settings)
    with brokers.stopping(broker):
        sc, bad, good = Wire(sc_port, 19), Wire(spu_port, 24), Wire(spu_port, 24)
        make_topic(sc, "demo")
        write(good, "demo", b"~loops")
        modules = chain(ad_hoc(module("filter")))
        stream = bad.send(1003, stream_fetch("demo", modules=modules))
        served = 0
        spent_s = broker.cpu_s
        while broker.cpu_s - spent_s < 0.3:
            write(good, "demo", b"x")
            served += 1
        assert served >= 3
        number, reader = bad.receive()
        assert number == stream
        assert "interrupt" in text_of(reader)


def test_a_client_that_does_not_read_keeps_nobody_waiting(tmp_path: Path) -> None:
    sc_port, spu_port = reserve_port(), reserve_port()
    broker = start(tmp_path, sc_port, spu_port)
    with brokers.stopping(broker):
        sc, good = Wire(sc_port, 19), Wire(spu_port, 24)
        make_topic(sc, "demo")
        for _ in range(20):
            write(good, "demo", *[b"x" * 1000] * 500, durable=False)
        stalled = [Wire(spu_port, 24) for _ in range(5)]
        for wire in stalled:
            for _ in range(50):
                wire.send(1003, stream_fetch("demo"))
        # It watches, and never looks.
        watching = Wire(sc_port, 19)
        watching.send(1004, b"\0\5Topic\0\0\0\x09" + bytes(9))
        for number in range(20):
            answer = sc.ask(1001, create_topic(f"other-{number}"))
            assert (answer.text(), answer.i16()) == (f"other-{number}", 0)
        assert write(good, "demo", b"last") == 10_000
        assert len(read(spu_port, "demo", 10_001)) == 10_001
        # Five connections that hold 8 MiB and a frame each, and some room.
        assert broker.rss_peak_bytes < 400 << 20
        Wire.close_all()  # a stop would wait for them
