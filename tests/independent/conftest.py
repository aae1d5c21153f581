"""A broker for each protocol; the captured conversation is the first thing it hears."""

from __future__ import annotations

from collections.abc import Iterator

import blipmq_captured
import blipmq_socket
import pytest
import rustlog_captured
import rustlog_socket
from captured import exchanges
from stage import Stage, stage_of
from tests.server.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def rustlog_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    data = tmp_path_factory.mktemp("rustlog")
    with BrokerProcess(data, "--listen", "rustlog=127.0.0.1:0") as broker:
        stage = stage_of(broker, "rustlog")
        with rustlog_socket.Connection(stage.port) as connection:
            for exchange in exchanges(rustlog_captured.CONVERSATION):
                connection.send(exchange.request)
                stage.recorded.append(rustlog_socket.frame(connection.receive()))
        yield stage


@pytest.fixture(scope="session")
def blipmq_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    data = tmp_path_factory.mktemp("blipmq")
    # Long enough for a machine that is busy; what is tested about leases says how long they are.
    lease = ("--topic-defaults", "subscription.lease.ms=60000")
    with BrokerProcess(data, "--listen", "blipmq=127.0.0.1:0", *lease) as broker:
        stage = stage_of(broker, "blipmq")
        with blipmq_socket.Connection(stage.port) as connection:
            for exchange in exchanges(blipmq_captured.CONVERSATION):
                frames = connection.answers_to_bytes(exchange.request)
                stage.recorded.append(b"".join(frame.encode() for frame in frames))
        yield stage
