"""A partition of the smallest batches there are: its readers look at a bounded number in a turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile import cursus_wire, rustlog_wire
from tests.hostile.fluvio_wire import SPU_VERSION, STREAM_FETCH, FluvioClient, stream_fetch
from tests.hostile.kafka_topics import create_topic
from tests.hostile.longest_turn import UNSYNCED, TimedBroker
from tests.hostile.rustlog_wire import RustLogClient
from tests.hostile.test_batches import NOW_MS, produce
from tests.server.broker_process import answer

from pentalog.model import batch, compression
from pentalog.model.types import Record

BATCHES = 40_000
AT_ONCE = 1_000
READERS = 10


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TimedBroker]:
    """One with a topic whose first batch is compressed, so that all of them must be opened."""
    listeners = ("fluvio-spu", "cursus", "rustlog")
    with TimedBroker(tmp_path / "data", *listeners, arguments=UNSYNCED) as made:
        create_topic(made, "small", 1)
        packed = batch.build([Record(b"v")], timestamp_ms=NOW_MS, codec=compression.GZIP)
        plain = batch.build([Record(b"")], timestamp_ms=NOW_MS)
        with made.connect() as client:
            client.sendall(produce("small", packed))
            answer(client)
            for _ in range(BATCHES // AT_ONCE):
                client.sendall(produce("small", plain) * AT_ONCE)
                for _ in range(AT_ONCE):
                    answer(client)
        yield made


def test_fluvio_streams(broker: TimedBroker) -> None:
    def read() -> None:
        for _ in range(READERS):
            with FluvioClient(broker.connect("fluvio-spu"), SPU_VERSION) as client:
                client.send(STREAM_FETCH, stream_fetch("small", bytes_max=2 << 20))
                client.receive()

    turn = broker.measure(read)
    assert turn.short, turn


def test_cursus_pages(broker: TimedBroker) -> None:
    def read() -> None:
        for _ in range(READERS):
            with broker.connect("cursus") as client:
                command = "CONSUME topic=small partition=0 offset=0 member=m batch=8192"
                assert b"ERROR" not in cursus_wire.ask(client, command)[:100]

    turn = broker.measure(read)
    assert turn.short, turn


def test_rustlog_pages(broker: TimedBroker) -> None:
    fetch = rustlog_wire.packed(
        0x02, "", "small", tail=rustlog_wire.numbers(0, 0, 16 << 20, wide=1)
    )

    def read() -> None:
        for _ in range(READERS):
            with RustLogClient(broker.connect("rustlog")) as client:
                assert len(client.ask(fetch)) > AT_ONCE

    turn = broker.measure(read)
    assert turn.short, turn
