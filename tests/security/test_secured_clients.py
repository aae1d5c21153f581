"""Real Kafka clients log in every way they can, write and read."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens
from secured import ADMIN, PASSWORDS, Certificate, Secured

pytestmark = pytest.mark.clients

TIMEOUT_S = 180
WAYS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def listener_of(way: str, *, tls: bool) -> str:
    return "kafka+tls" if way == "mTLS" else f"kafka+sasl{'+tls' if tls else ''}"


def confluent(secured: Secured, way: str, certificate: Certificate, *, tls: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap.servers": secured.address(listener_of(way, tls=tls)),
        "security.protocol": f"SASL_{'SSL' if tls else 'PLAINTEXT'}",
        "ssl.ca.location": str(secured.ca_file),
        "sasl.mechanism": way,
    }
    if way == "mTLS":
        del found["sasl.mechanism"]
        found["security.protocol"] = "SSL"
        found["ssl.certificate.location"] = str(certificate.chain)
        found["ssl.key.location"] = str(certificate.key)
    elif way == "OAUTHBEARER":
        found["oauth_cb"] = lambda _: (secured.keys.token(ADMIN), time.time() + 300)
    else:
        found |= {"sasl.username": ADMIN, "sasl.password": PASSWORDS[ADMIN]}
    return found


@pytest.fixture(scope="module")
def certificate(secured: Secured) -> Certificate:
    return secured.client_certificate(ADMIN)


CASES = [*((way, tls) for way in WAYS for tls in (False, True)), ("mTLS", True)]


@pytest.mark.parametrize(("way", "tls"), CASES)
def test_confluent_kafka(secured: Secured, certificate: Certificate, way: str, tls: bool) -> None:
    settings = confluent(secured, way, certificate, tls=tls)
    topic = f"confluent-{way}-{tls}"
    producer = Producer(settings)
    producer.produce(topic, b"hello " * 1000)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**settings, "group.id": f"readers-{way}", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.error() is None
    assert message.value() == b"hello " * 1000
    consumer.commit(asynchronous=False)
    consumer.close()


def test_confluent_kafka_is_told_that_its_password_is_wrong(
    secured: Secured, certificate: Certificate
) -> None:
    errors: list[Any] = []
    settings = confluent(secured, "SCRAM-SHA-256", certificate, tls=False)
    producer = Producer(
        {**settings, "sasl.username": "bob", "sasl.password": "wrong", "error_cb": errors.append}
    )
    deadline = time.monotonic() + TIMEOUT_S
    while not any("_AUTHENTICATION" in error.name() for error in errors):
        assert time.monotonic() < deadline
        producer.poll(0.1)
    with secured.connect() as client:
        assert client.plain("bob") == 0


class _KafkaPythonTokens(KafkaPythonTokens):  # type: ignore[misc]
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def token(self) -> str:
        return self._token()


@pytest.mark.parametrize(("way", "tls"), CASES)
def test_kafka_python(secured: Secured, certificate: Certificate, way: str, tls: bool) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": secured.address(listener_of(way, tls=tls)),
        "security_protocol": f"SASL_{'SSL' if tls else 'PLAINTEXT'}",
        "ssl_cafile": str(secured.ca_file),
        "sasl_mechanism": way,
        "sasl_plain_username": ADMIN,
        "sasl_plain_password": PASSWORDS[ADMIN],
    }
    if way == "mTLS":
        del settings["sasl_mechanism"]
        settings["security_protocol"] = "SSL"
        settings["ssl_certfile"] = str(certificate.chain)
        settings["ssl_keyfile"] = str(certificate.key)
    elif way == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = _KafkaPythonTokens(
            lambda: secured.keys.token(ADMIN)
        )
    topic = f"kafka-python-{way}-{tls}"
    with KafkaProducer(**settings) as producer:
        producer.send(topic, b"hello").get(timeout=TIMEOUT_S)
    consumer = KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_S * 1000
    )
    assert next(consumer).value == b"hello"
    consumer.close()


class _AioTokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token()


@pytest.mark.parametrize(("way", "tls"), CASES)
def test_aiokafka(secured: Secured, certificate: Certificate, way: str, tls: bool) -> None:
    context = ssl.create_default_context(cafile=str(secured.ca_file))
    settings: dict[str, Any] = {
        "bootstrap_servers": secured.address(listener_of(way, tls=tls)),
        "security_protocol": f"SASL_{'SSL' if tls else 'PLAINTEXT'}",
        "ssl_context": context if tls else None,
        "sasl_mechanism": way,
        "sasl_plain_username": ADMIN,
        "sasl_plain_password": PASSWORDS[ADMIN],
    }
    if way == "mTLS":
        del settings["sasl_mechanism"]
        settings["security_protocol"] = "SSL"
        context.load_cert_chain(certificate.chain, certificate.key)
    elif way == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = _AioTokens(lambda: secured.keys.token(ADMIN))
    topic = f"aiokafka-{way}-{tls}"

    async def talk() -> bytes:
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"hello")
        async with AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer:
            message = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
            return bytes(message.value)

    assert asyncio.run(talk()) == b"hello"
