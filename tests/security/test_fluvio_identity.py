"""The real Fluvio client says who it is by its certificate, on both ports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.security.guarded_world import MAPPING, GuardedBroker, guarded

from pentalog.broker.security import ANY, Kind, Operation, Principal, Rule

pytest.importorskip("fluvio")
pytestmark = pytest.mark.clients

DOMAIN = "fluvio.test"
SCRIPT = """
import json, sys
from fluvio import Fluvio, FluvioAdmin, FluvioConfig, Offset, TopicProducerConfigBuilder

address, domain, key, certificate, authority = sys.argv[1:]
config = FluvioConfig.new(address)
config.set_tls_file_paths(domain, key, certificate, authority)

def said(act):
    try:
        return act()
    except Exception as error:
        return "refused: " + str(error)

def produce():
    patient = TopicProducerConfigBuilder().timeout(60_000).build()
    producer = Fluvio.connect_with_config(config).topic_producer_with_config("orders", patient)
    output = producer.send_string("hello")
    producer.flush()
    output.wait()
    return "produced"

def consume():
    stream = Fluvio.connect_with_config(config).partition_consumer("orders", 0)
    return next(stream.stream(Offset.beginning())).value_string()

def listed():
    return [topic.name() for topic in FluvioAdmin.connect_with_config(config).all_topics()]

def create():
    FluvioAdmin.connect_with_config(config).create_topic("made")
    return "created"

print(json.dumps([said(act) for act in (listed, produce, consume, create)]))
"""


class Bench:
    def __init__(self, broker: GuardedBroker, directory: Path, authority: trustme.CA) -> None:
        self._broker = broker
        self._directory = directory
        self._authority = authority

    def visit(self, name: str, signer: trustme.CA | None = None) -> tuple[Any, str]:
        """What a client with this name is told of everything it tries, and what it complains of."""
        issued = (signer or self._authority).issue_cert(f"{name}@example.org", common_name=name)
        key, certificate = self._directory / f"{name}.key", self._directory / f"{name}.pem"
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(certificate)
        address = self._broker.broker.address("fluvio-sc+tls")
        trusted = self._directory / "ca.pem"
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, address, DOMAIN, key, certificate, trusted],
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ,
        )
        return json.loads(done.stdout or "null"), done.stderr


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("fluvio")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    server = authority.issue_cert(DOMAIN, f"*.{DOMAIN}", "127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    with guarded(
        directory / "data",
        ("fluvio-sc+tls", "fluvio-spu+tls"),
        super_users="User:admin",
        tls_certificate=str(directory / "server.pem"),
        tls_client_ca=str(directory / "ca.pem"),
        tls_client_authentication="required",
        ssl_principal_mapping_rules=MAPPING,
    ) as broker:
        broker.topic("orders")
        broker.topic("hidden")
        rules = {"writer": Operation.WRITE, "reader": Operation.READ}
        broker.set_rules(
            Rule(Kind.TOPIC, "orders", False, Principal("User", name), ANY, operation, True)
            for name, operation in rules.items()
        )
        yield Bench(broker, directory, authority)


def test_rights_are_those_of_the_certificate(bench: Bench) -> None:
    listed, produced, consumed, created = bench.visit("writer")[0]
    assert (listed, produced) == (["orders"], "produced")
    assert consumed.startswith("refused")
    assert created.startswith("refused")
    listed, produced, consumed, created = bench.visit("reader")[0]
    assert (listed, consumed) == (["orders"], "hello")
    assert produced.startswith("refused")
    assert created.startswith("refused")
    listed, produced, consumed, created = bench.visit("admin")[0]
    assert sorted(listed) == ["hidden", "orders"]
    assert (produced, consumed, created) == ("produced", "hello", "created")


def test_a_certificate_of_strangers_opens_nothing(bench: Bench) -> None:
    told, _ = bench.visit("admin", signer=trustme.CA())
    assert all(str(one).startswith("refused") for one in told)
