"""Whatever passes a connection, those who read its frames for a watcher read it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentalog.observation import Told
from pentalog.protocols import PROTOCOLS
from pentalog.protocols.cursus.inspection import CursusInspector
from pentalog.protocols.kafka.inspection import KafkaInspector
from pentalog.session import Endpoint

ENDPOINTS = [endpoint for protocol in PROTOCOLS for endpoint in protocol.endpoints]
HEADS = [
    struct.pack(">hhih", key, version, 7, -1) for key in (0, 1, 3, 11, 18, 36) for version in (0, 9)
]
HEADS += [b"\xba\x7c\0\x05order", b"CONSUME topic=t ", b"\0\0", b'{"type":"Fetch",', b"\x02\0\x01g"]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: str(endpoint.name))
@settings(max_examples=150, deadline=None)
@given(head=st.sampled_from([b"", *HEADS]), rest=st.binary(max_size=80), more=st.integers(0, 9))
def test_any_frame_is_read(endpoint: Endpoint, head: bytes, rest: bytes, more: int) -> None:
    assert endpoint.inspector is not None
    inspector = endpoint.inspector()
    payload = memoryview(head + rest)
    for read in (inspector.request, inspector.reply):
        told = read(payload, len(payload) + more)
        assert isinstance(told, Told)
        assert isinstance(told.name, str)


def test_an_answer_has_the_name_of_its_request() -> None:
    inspector = KafkaInspector()
    asked = memoryview(struct.pack(">hhih2s", 18, 0, 7, 2, b"me"))
    assert inspector.request(asked, len(asked)) == Told("ApiVersions", 7, 0, None, "me")
    answer = memoryview(struct.pack(">ih", 7, 0))
    assert inspector.reply(answer, 6) == Told("ApiVersions", 7, 0)
    assert inspector.reply(answer, 6).secret, "nobody knows what was asked"


@pytest.mark.parametrize(
    "payload", [struct.pack(">hhih", 36, 2, 7, -1) + b"\0\0\x05\0u\0pw", b"\0user\0password"]
)
def test_passwords_of_kafka_are_secret(payload: bytes) -> None:
    assert KafkaInspector().request(memoryview(payload), len(payload)).secret


def test_tokens_of_cursus_are_secret() -> None:
    inspector = CursusInspector()
    for text in (b"AUTH principal=me token=abc", b"CONSUME topic=t auth_token=abc partition=0"):
        assert inspector.request(memoryview(text), len(text)).secret
    plain = b"CONSUME topic=t partition=0 offset=0"
    assert inspector.request(memoryview(plain), len(plain)) == Told("CONSUME", topic="t")
