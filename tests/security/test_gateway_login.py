"""Gateways log in to the cluster behind them; our own Kafka door stands for it."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from secured import ADMIN, PASSWORDS, Secured
from tests.support.blipmq_world import AUTH, HELLO

import pentalog
from pentalog.app import StartFailed
from pentalog.clients.kafka import Cluster
from pentalog.cluster import engine
from pentalog.config import Config, ConfigError, parse_listen
from pentalog.gateway import Gateway
from pentalog.security_settings import Secrets
from pentalog.server import lifecycle


def settings(secured: Secured, listener: str, mechanism: str, **others: Any) -> Config:
    given = {
        "engine": f"{listener}://{secured.address(listener)}",
        "listen": (parse_listen("rustlog=127.0.0.1:0"),),
        "engine_ca": str(secured.ca_file),
        "engine_mechanism": mechanism,
        "engine_user": ADMIN,
        "engine_password": Secrets((PASSWORDS[ADMIN],)),
        **others,
    }
    return Config(**given)


async def said(gateway: Gateway, **fields: Any) -> Any:
    at = gateway.addresses["rustlog"]
    reader, writer = await asyncio.open_connection(at.host, at.port)
    frame = json.dumps(fields).encode()
    writer.write(struct.pack(">I", len(frame)) + frame)
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    answer = json.loads(await reader.readexactly(size))
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["kafka+sasl", "kafka+sasl+tls"])
def test_every_way_of_logging_in(secured: Secured, listener: str, mechanism: str) -> None:
    topic = f"{listener}-{mechanism}".replace("+", "-")

    async def talk(loop: lifecycle.Loop) -> None:
        gateway = Gateway(settings(secured, listener, mechanism), loop)
        await gateway.start()
        try:
            made = await said(gateway, type="CreateTopic", topic=topic, partition_count=1)
            assert made["success"]
            asked = {"type": "Produce", "topic": topic, "partition": 0, "records": ["aGVsbG8="]}
            assert (await said(gateway, **asked))["base_offset"] == 0
        finally:
            assert await gateway.stop()

    lifecycle.run(talk)


def failure(config: Config) -> str:
    async def start(loop: lifecycle.Loop) -> str:
        gateway = Gateway(config, loop)
        with pytest.raises(StartFailed) as failed:
            await gateway.start()
        return str(failed.value)

    return lifecycle.run(start)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_wrong_passwords(secured: Secured, mechanism: str) -> None:
    wrong = Secrets(("guessed",))
    text = failure(settings(secured, "kafka+sasl", mechanism, engine_password=wrong))
    assert f"refuses the login by {mechanism}" in text
    assert "see engine_user and engine_password" in text
    assert "guessed" not in text


def test_a_certificate_of_somebody_else(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "START_PATIENCE_MS", 100)
    text = failure(settings(secured, "kafka+sasl+tls", "PLAIN", engine_ca=""))
    assert "cannot be reached" in text
    assert "CERTIFICATE_VERIFY_FAILED" in text


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({"engine_mechanism": "OAUTHBEARER"}, "engine_mechanism is 'OAUTHBEARER'; accepted are"),
        ({"engine_user": ""}, "needs engine_user and engine_password"),
        ({"engine_ca": "/nowhere.pem"}, "engine_ca is '/nowhere.pem', which cannot be used"),
    ],
)
def test_settings_that_cannot_be(secured: Secured, others: dict[str, str], text: str) -> None:
    config = settings(secured, "kafka+sasl+tls", "PLAIN", **others)

    async def make(loop: lifecycle.Loop) -> None:
        with pytest.raises(ConfigError, match=text):
            Gateway(config, loop)

    lifecycle.run(make)


@pytest.mark.parametrize("listener", ["kafka+sasl", "kafka+sasl+tls"])
def test_move_logs_in_too(secured: Secured, tmp_path: Path, listener: str) -> None:
    topic = f"moved-{listener}".replace("+", "-")
    with (
        pentalog.Broker(tmp_path, listen=("kafka=127.0.0.1:0",)) as broker,
        Cluster(broker.address()) as source,
    ):
        source.create_topic(topic, 1)
        environment = {
            **os.environ,
            "PENTALOG_ENGINE_USER": ADMIN,
            "PENTALOG_ENGINE_PASSWORD": PASSWORDS[ADMIN],
            "PENTALOG_ENGINE_CA": str(secured.ca_file),
        }
        to = f"{listener}://{secured.address(listener)}"
        words = (sys.executable, "-m", "pentalog", "move", "--server", broker.address(), "--to", to)
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "moved 1 topics, 0 records, 0 groups" in done.stdout
        del environment["PENTALOG_ENGINE_USER"]
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 2
        assert "needs PENTALOG_ENGINE_USER" in done.stderr


async def subscribed(gateway: Gateway, trusted: ssl.SSLContext) -> int:
    """The number of a new subscription, by BlipMQ with TLS."""
    at = gateway.addresses["blipmq+tls"]
    reader, writer = await asyncio.open_connection(at.host, at.port, ssl=trusted)
    writer.write(HELLO + AUTH + bytes.fromhex("000000100400000000000000030004") + b"demo\1")
    answers = await reader.readexactly(3 * 21)
    writer.close()
    await writer.wait_closed()
    assert answers[4::21] == b"\5\5\5"
    return int.from_bytes(answers[-8:], "big")


def test_gateways_call_each_other_with_tls(secured: Secured) -> None:
    listen = (parse_listen("blipmq+tls=127.0.0.1:0"),)
    server = {"tls_certificate": str(secured.server.chain), "tls_key": str(secured.server.key)}
    config = settings(secured, "kafka+sasl+tls", "PLAIN", listen=listen, **server)
    trusted = ssl.create_default_context(cafile=str(secured.ca_file))

    async def run(loop: lifecycle.Loop) -> None:
        gateways = [Gateway(config, loop), Gateway(config, loop)]
        try:
            for gateway in gateways:
                await gateway.start()
            first, second = [await subscribed(gateway, trusted) for gateway in gateways]
            assert second == first + 1
        finally:
            for gateway in gateways:
                assert await gateway.stop()

    lifecycle.run(run)
