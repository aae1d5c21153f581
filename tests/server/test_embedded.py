"""`pentalog.Broker`: a whole broker inside this process."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from broker_process import answer, connect, request

import pentalog
from pentalog.app import StartFailed
from pentalog.config import ConfigError


def _topics(broker: pentalog.Broker, *create: str) -> bytes:
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in create)
    count = len(create) if create else -1
    with connect(int(broker.address().rpartition(":")[2])) as client:
        client.sendall(request(3, 1, 1, struct.pack(">i", count) + names))
        return answer(client)[1]


def test_a_temporary_broker_serves_and_leaves_nothing() -> None:
    others = set(threading.enumerate())
    with pentalog.Broker() as broker:
        assert broker.address("kafka").startswith("127.0.0.1:")
        data = broker.data
        assert data.is_dir()
        assert b"demo" in _topics(broker, "demo")
    assert not data.exists()
    left = set(threading.enumerate()) - others
    assert not [thread for thread in left if thread.name.startswith("pentalog")]
    with pytest.raises(KeyError, match="not started"):
        broker.address("kafka")


def test_two_brokers_at_a_time() -> None:
    with pentalog.Broker() as one, pentalog.Broker() as two:
        assert one.address("kafka") != two.address("kafka")
        _topics(one, "only-here")
        assert b"only-here" not in _topics(two)


def test_data_is_kept_where_it_was_asked_for(tmp_path: Path) -> None:
    broker = pentalog.Broker(tmp_path / "data", default_partitions=3)
    for _ in range(2):
        broker.start()
        _topics(broker, "kept")
        broker.stop()
    assert sorted(entry.name for entry in (tmp_path / "data").glob("kept-*")) == [
        "kept-0",
        "kept-1",
        "kept-2",
    ]


def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    with pentalog.Broker(tmp_path), pytest.raises(StartFailed, match="another broker"):
        pentalog.Broker(tmp_path).start()
    with pytest.raises(ConfigError, match="node_id"):
        pentalog.Broker(node_id=-1)
    with pytest.raises(ConfigError, match="unknown setting 'colour'"):
        pentalog.Broker(colour="red")
    with pytest.raises(ConfigError, match="this broker has: kafka"):
        pentalog.Broker(listen=["pigeon=127.0.0.1:0"]).start()


def test_importing_the_package_is_cheap() -> None:
    script = (
        "import sys, pentalog; print([m for m in ('asyncio', 'kio', 'typer') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, env=os.environ
    )
    assert run.stdout.strip() == "[]", run.stderr
    with pytest.raises(AttributeError, match="Brocker"):
        pentalog.Brocker  # noqa: B018


def test_a_broker_loads_no_library_it_has_no_use_for() -> None:
    """They would take longer to load than a broker to start."""
    script = (
        "import sys, pentalog.embedded, pentalog.clients.kafka; "
        "heavy = ('hypothesis', 'pyarrow', 'pyspark', 'pytest', 'typer', 'wasmtime'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert run.stdout.strip() == "[]", run.stderr
