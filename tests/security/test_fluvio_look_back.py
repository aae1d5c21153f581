"""A SmartModule tells what it is shown: to let it look back takes the right to read."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.hostile import wasm_programs
from tests.security.guarded_world import GuardedBroker, guarded
from tests.unit.protocols.fluvio.fluvio_world import (
    ad_hoc,
    chain,
    produce,
    request,
    their_batch,
)

from pentalog.broker.security import ANY, Kind, Operation, Principal, Rule
from pentalog.model.types import Partition
from pentalog.protocols.fluvio.codec import Reader

EDGE = Principal("User", "edge")
WRITE, READ = (
    Rule(Kind.TOPIC, ANY, False, EDGE, ANY, operation, True)
    for operation in (Operation.WRITE, Operation.READ)
)
VERSION = 24
PERMISSION_DENIED, CHAIN_REFUSED = 13, 6005


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with guarded(
        tmp_path_factory.mktemp("back"),
        ("fluvio-sc", "fluvio-spu"),
        super_users="User:admin",
        listener_principals="fluvio-sc=User:edge,fluvio-spu=User:edge",
        flush_interval_ms=0,
    ) as started:
        started.topic("orders")
        yield started
        started.hang_up()


def written(broker: GuardedBroker, modules: bytes) -> Reader:
    """The answer to a Produce of one record, from its error code on."""
    now_ms = int(time.time() * 1000)
    sent = produce("orders", their_batch(b"secret", timestamp_ms=now_ms), modules=modules)
    told = broker.connect("fluvio-spu").ask(request(0, sent, VERSION, 1)[4:])
    reader = Reader(memoryview(told), 4, len(told), VERSION)
    assert (reader.u32(), reader.text(), reader.u32(), reader.u32()) == (1, "orders", 1, 0)
    return reader


def test_who_may_only_write_is_told_nothing_of_older_records(broker: GuardedBroker) -> None:
    broker.set_rules([WRITE])
    assert written(broker, chain()).i16() == 0
    looking = chain(ad_hoc(wasm_programs.telling(), lookback=5))
    answer = written(broker, looking)
    code = answer.i16()
    assert code == PERMISSION_DENIED, bytes(answer.data)
    assert b"secret" not in bytes(answer.data)
    broker.set_rules([WRITE, READ])
    answer = written(broker, looking)
    assert answer.i16() == CHAIN_REFUSED
    assert "secret" in answer.text()
    assert broker.call(lambda: broker.facade.log.marks(Partition("orders", 0)).end) == 1
