"""A broker for the administrative requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admin_line import AdminLine, QueueRuntime

from pentalog.broker.live_settings import LocalSettings
from pentalog.broker.log import LocalLog
from pentalog.broker.port import Broker
from pentalog.broker.producers import LocalProducers
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.topics import LocalTopics
from pentalog.config import Config
from pentalog.log.files import RealFiles
from pentalog.log.store import Store
from pentalog.metrics import Metrics


@pytest.fixture
def line(tmp_path: Path) -> Iterator[AdminLine]:
    runtime = QueueRuntime()
    config = Config(
        data=tmp_path, node_id=3, default_partitions=2, topic_defaults={"retention.ms": "9"}
    )
    metrics = Metrics()
    store = Store(tmp_path, RealFiles(), runtime, metrics, config)
    store.open()
    state = State(tmp_path / FILE_NAME, runtime)
    state.open()
    settings = LocalSettings(state, config)
    settings.open()
    topics = LocalTopics(store, state, runtime, settings.live)
    topics.open()
    settings.watch(topics.reconfigure, topics.check_defaults)
    nobody: Any = None
    broker = Broker(
        state.cluster_id,
        LocalLog(store, runtime, metrics),
        topics,
        LocalProducers(state),
        nobody,
        nobody,
        settings=settings,
    )
    yield AdminLine(broker, state, runtime, config)
    state.close()
    store.close()
    runtime.run()
