"""The Kafka client's own bytes: requests, answers, sequences, and proofs of a password."""

from __future__ import annotations

import io
import struct
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from pentalog.clients.kafka import ClientOptions, KafkaFailed, ProducerId, authentication
from pentalog.clients.kafka.authentication import authenticate
from pentalog.clients.kafka.connection import parse_servers
from pentalog.clients.kafka.fetch import read_answer, request_body
from pentalog.clients.kafka.transactions import stamp
from pentalog.kernels import batch_header, check_batches
from pentalog.model import batch, pieces
from pentalog.model.types import Partition, Record


def test_a_fetch_is_what_the_schema_says() -> None:
    body = request_body(Partition("örders", 3), 12, 4096, 250)
    request = entity_reader(load_request_schema(1, 11))(body, 0)[0]
    assert (request.max_bytes, request.isolation_level) == (4096, 1)
    assert request.max_wait == timedelta(milliseconds=250)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (topic.topic, partition.partition) == ("örders", 3)
    assert (partition.fetch_offset, partition.partition_max_bytes) == (12, 4096)


def answer(records: bytes | None, aborted: Any = None, code: int = 0) -> bytes:
    schema = load_response_schema(1, 11)
    topic = _inner(schema, "responses")
    partition = _inner(topic, "partitions")
    lost = _inner(partition, "aborted_transactions")
    entity = schema(
        throttle_time=timedelta(0),
        error_code=ErrorCode(0),
        session_id=0,
        responses=(
            topic(
                topic="orders",
                partitions=(
                    partition(
                        partition_index=3,
                        error_code=ErrorCode(code),
                        high_watermark=90,
                        last_stable_offset=80,
                        log_start_offset=7,
                        aborted_transactions=None
                        if aborted is None
                        else tuple(lost(producer_id=one, first_offset=at) for one, at in aborted),
                        preferred_read_replica=-1,
                        records=records,
                    ),
                ),
            ),
        ),
    )
    out = io.BytesIO()
    out.write(struct.pack(">i", 5))
    entity_writer(schema)(out, entity)
    return out.getvalue()


def _inner(kind: Any, name: str) -> Any:
    import typing

    hint = typing.get_type_hints(kind)[name]
    choices = [hint, *typing.get_args(hint)]
    return next(
        part
        for choice in choices
        for part in typing.get_args(choice)
        if isinstance(part, type) and hasattr(part, "__flexible__")
    )


@pytest.mark.parametrize("aborted", [None, [], [(4, 9), (6, 11)]])
def test_an_answer_to_fetch_is_read_where_it_lies(aborted: list[tuple[int, int]] | None) -> None:
    data = memoryview(answer(b"batches", aborted))
    found = read_answer(data)
    assert (found.code, found.stable, found.start) == (ErrorCode(0), 80, 7)
    assert found.aborted == (aborted or [])
    assert bytes(found.data) == b"batches"
    assert found.data.obj is data.obj
    refused = read_answer(memoryview(answer(None, None, 1)))
    assert refused.code is ErrorCode.offset_out_of_range


@settings(deadline=None)
@given(st.data())
def test_a_cut_answer_is_refused(data: st.DataObject) -> None:
    whole = answer(b"", [(4, 9)])
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(KafkaFailed):
        read_answer(memoryview(whole[:size]))


def test_batches_get_a_producer_and_its_sequences() -> None:
    made = [batch.build([Record(b"x")] * count, timestamp_ms=5) for count in (3, 2)]
    data = bytearray(b"".join(made))
    assert stamp(data, ProducerId(77, 4), 10) == 15
    facts = check_batches(data, 0, len(data))
    assert facts.flaw == 0
    assert facts.chained
    assert (facts.producer_id, facts.producer_epoch) == (77, 4)
    assert (facts.sequence_first, facts.sequence_last) == (10, 14)
    assert batch_header(data, 0).attributes & batch.TRANSACTIONAL


def test_aborted_transactions_end_at_their_markers() -> None:
    def transactional(base: int, producer_id: int) -> bytearray:
        data = batch.build(
            [Record(b"x")], timestamp_ms=5, producer_id=producer_id, transactional=True
        )
        struct.pack_into(">q", data, 0, base)
        return data

    def marker(base: int, producer_id: int) -> bytearray:
        data = batch.build_marker(
            commit=False, producer_id=producer_id, producer_epoch=0, timestamp_ms=5
        )
        struct.pack_into(">q", data, 0, base)
        return data

    data = b"".join((transactional(5, 1), transactional(6, 2), marker(7, 1), transactional(8, 1)))
    found = pieces.aborted_in(data, [(2, 6), (1, 3), (9, 40)])
    assert list(struct.iter_unpack("=qqq", found)) == [(1, 3, 7), (2, 6, (1 << 63) - 1)]
    assert pieces.aborted_in(data, []) == b""


def test_compressed_batches_are_opened_and_damaged_ones_left() -> None:
    made = [batch.build([Record(b"x" * 50)] * 9, timestamp_ms=5, codec=codec) for codec in range(5)]
    whole = bytearray(b"".join(made))
    found = pieces.opened(memoryview(whole))
    assert check_batches(found, 0, len(found))[:1] == (0,)
    assert check_batches(found, 0, len(found)).codecs == 1
    whole[len(made[0]) + 70] ^= 0xFF
    damaged = pieces.opened(memoryview(whole))
    assert check_batches(damaged, 0, len(damaged)).flaw != 0
    plain = memoryview(bytes(made[0]))
    assert pieces.opened(plain) is plain


def test_a_scram_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of RFC 7677."""
    nonce = "rOprNGfwEbeRWgbNEkqO"
    monkeypatch.setattr(authentication.secrets, "token_urlsafe", lambda _: nonce)
    said: list[bytes] = []
    both = f"{nonce}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    replies = [
        f"r={both},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(),
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ]

    def exchange(token: bytes) -> bytes:
        said.append(token)
        return replies[len(said) - 1]

    authenticate("SCRAM-SHA-256", "user", "pencil", exchange)
    assert said == [
        f"n,,n=user,r={nonce}".encode(),
        f"c=biws,r={both},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode(),
    ]
    said.clear()
    replies[1] = b"v=AAAATRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    with pytest.raises(KafkaFailed, match="did not prove"):
        authenticate("SCRAM-SHA-256", "user", "pencil", exchange)
    said.clear()
    replies[0] = b"r=somebody-else,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    with pytest.raises(KafkaFailed, match="does not belong"):
        authenticate("SCRAM-SHA-256", "user", "pencil", exchange)


def test_plain_is_one_token() -> None:
    said: list[bytes] = []

    def exchange(token: bytes) -> bytes:
        said.append(token)
        return b""

    authenticate("PLAIN", "me", "secret", exchange)
    assert said == [b"\0me\0secret"]


def test_servers_and_options_are_checked() -> None:
    assert parse_servers("a:1, [::1]:2") == [("a", 1), ("::1", 2)]
    for wrong in ("", "a", "a:0", ":1", "a:b", "a:70000"):
        with pytest.raises(KafkaFailed, match="HOST:PORT"):
            parse_servers(wrong)
    with pytest.raises(KafkaFailed, match="PLAIN, SCRAM"):
        ClientOptions(sasl_mechanism="GSSAPI")
    assert "hidden" not in repr(ClientOptions(username="me", password="hidden"))


@pytest.mark.parametrize(
    ("challenge", "complaint"),
    [
        ("r={nonce}more,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4095", "4095 iterations"),
        ("r={nonce}more,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1", "1 iterations"),
        ("r={nonce}more,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1000001", "1000001 iterations"),
        ("r={nonce}more,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=many", "cannot be read"),
        ("r={nonce}more,s=W22ZaJ0SNY7soEsUEjb6gQ==", "cannot be read"),
        ("r={nonce}more,s=?,i=4096", "cannot be read"),
        ("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not belong"),
        ("r=more{nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not belong"),
        ("\udcff", "not text"),
        ("r={nonce}" + "x" * 9000, "bytes"),
    ],
)
def test_challenges_that_are_not_answered(
    monkeypatch: pytest.MonkeyPatch, challenge: str, complaint: str
) -> None:
    """No proof is shown: an impostor could try passwords against it."""
    monkeypatch.setattr(authentication.secrets, "token_urlsafe", lambda _: "abc")
    said: list[bytes] = []

    def exchange(token: bytes) -> bytes:
        said.append(token)
        return challenge.replace("{nonce}", "abc").encode("utf-8", "surrogateescape")

    with pytest.raises(KafkaFailed, match=complaint):
        authenticate("SCRAM-SHA-256", "user", "pencil", exchange)
    assert said == [b"n,,n=user,r=abc"]


@pytest.mark.parametrize("final", [b"", b"v=", b"v=?", b"e=other-error", b"v=AAAA"])
def test_a_broker_that_proves_nothing_is_not_trusted(final: bytes) -> None:
    def exchange(token: bytes) -> bytes:
        if not token.startswith(b"n,,"):
            return final
        nonce = token.rpartition(b"r=")[2].decode()
        return f"r={nonce}more,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()

    with pytest.raises(KafkaFailed, match="did not prove"):
        authenticate("SCRAM-SHA-512", "user", "pencil", exchange)
