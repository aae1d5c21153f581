"""Frames: cut, slow, large, compressed, in either dialect, in any order."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from pathlib import Path

import cramjam
import pytest
from tests.support.cursus_world import Client, CursusBroker, Message, batch, frame, messages_of

from pentalog.model import compression as codecs
from pentalog.protocols.cursus.compression import (
    REGISTRY,
    Algorithm,
    Registry,
    holds_raw_snappy,
    starts_with,
)

PLAIN = batch([Message(b"hello", seq=1, producer=b"p1", key=b"k1", epoch=5), Message(b"world")])


@pytest.fixture(autouse=True)
def topic(client: Client) -> None:
    assert client.text("CREATE topic=orders partitions=2").startswith("OK topic=orders")


def test_frames_may_come_byte_by_byte(client: Client) -> None:
    data = frame(PLAIN) + frame(b"LIST") + frame(b"\0\0LIST")
    for byte in data:
        client.feed(bytes([byte]))
    client.broker.step()
    ack, *lists = client.frames()
    assert ack.startswith(b'{"status":"OK","last_offset":1')
    assert lists == [b"OK count=1 topics=orders"] * 2


def test_the_size_of_a_frame_is_known_early(client: Client) -> None:
    client.feed(struct.pack(">I", 1000) + b"LIST")
    assert client.session.wanted == 1004
    client.feed(b" " * 996)
    assert client.session.wanted == 0


def test_a_gap_between_head_and_body_does_no_harm(client: Client) -> None:
    data = frame(PLAIN)
    client.feed(data[:4])
    client.broker.advance(60_000)
    client.feed(data[4:])
    client.broker.step()
    assert client.frames()[0].startswith(b'{"status":"OK"')


def test_pipelined_answers_keep_their_order(client: Client) -> None:
    durable = batch([Message(b"a")], acks="-1")
    client.feed(frame(durable) + frame(b"LIST") + frame(PLAIN) + frame(b"HELP"))
    client.broker.step()
    first, second, third, fourth = client.frames()
    assert b'"last_offset":0' in first
    assert second.startswith(b"OK count=")
    assert b'"last_offset":2' in third
    assert fourth.startswith(b"OK commands=")


def test_nothing_is_served_while_the_answers_are_not_read(client: Client) -> None:
    client.line.full = True
    assert client.ask(b"LIST") == []
    client.line.full = False
    client.feed(b"")
    client.broker.step()
    assert client.frames() == [b"OK count=1 topics=orders"]


def test_too_large_a_frame_ends_the_connection(client: Client) -> None:
    client.feed(frame(b"LIST") + struct.pack(">I", (64 << 20) + 1) + b"x")
    client.broker.step()
    answers = client.frames()
    assert answers[0] == b"OK count=1 topics=orders"
    assert answers[1].startswith(b"ERROR: message_too_large size=67108865")
    assert client.line.hung_up


def test_an_empty_frame_is_answered(client: Client) -> None:
    assert client.ask(b"") == [b'ERROR: decode_failed reason="data too short"']


@pytest.mark.parametrize("body", [b"\0", b"\0\x09abc", b"\0\0", b"   ", b"\0\0 \0\r\n"])
def test_flawed_envelopes_are_answered(client: Client, body: bytes) -> None:
    (answer,) = client.ask(body)
    assert answer.startswith(b"ERROR: ")
    assert client.ask(b"LIST") == [b"OK count=1 topics=orders"]


def xerial(data: bytes) -> bytes:
    return codecs.compress(codecs.SNAPPY, data)


COMPRESSED = {
    "gzip": gzip.compress,
    "lz4": lambda data: bytes(cramjam.lz4.compress(data)),
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "snappy-xerial": xerial,
}


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("document", [False, True])
def test_compressed_batches_are_opened(client: Client, name: str, document: bool) -> None:
    body = batch([Message(b"x" * 1000, seq=1, producer=b"p")], document=document)
    assert client.publish(COMPRESSED[name](body))["status"] == "OK"
    (message,) = client.read("CONSUME orders 0 0")
    assert message.payload == b"x" * 1000


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd"])
def test_compressed_commands_are_opened(client: Client, name: str) -> None:
    assert client.ask(COMPRESSED[name](b"\0\0LIST")) == [b"OK count=1 topics=orders"]


def test_a_snappy_block_that_begins_like_a_batch(client: Client) -> None:
    """A batch of 15930 bytes gives a raw block that starts with the magic."""
    room = 15930 - len(batch([Message(b"")]))
    body = batch([Message(b"x" * room)])
    assert len(body) == 15930
    block = bytes(cramjam.snappy.compress_raw(body))
    assert block[:2] == b"\xba\x7c"
    assert client.publish(block)["status"] == "OK"
    assert client.read("CONSUME orders 0 0")[0].payload == b"x" * room


@pytest.mark.parametrize("name", ["lz4", "snappy"])
def test_a_large_compressed_frame_is_copied_in_parts(client: Client, name: str) -> None:
    noise = random.Random(name).randbytes(7 << 20)
    body = frame(COMPRESSED[name](batch([Message(noise)])))
    client.feed(body)
    parts = 1
    while client._left:
        assert client._left == body
        client.broker.step()
        client.feed(b"")
        parts += 1
    assert parts > 1
    client.broker.step()
    (answer,) = client.frames()
    assert answer.startswith(b'{"status":"OK"')
    assert client.read("CONSUME orders 0 0")[0].payload == noise


@pytest.mark.parametrize("name", COMPRESSED)
def test_bombs_are_refused(client: Client, name: str) -> None:
    bomb = COMPRESSED[name](batch([Message(bytes(65 << 20))]))
    assert len(bomb) < 8 << 20
    answer = client.publish(bomb)
    assert answer["status"] == "ERROR"
    assert answer["error"].startswith(("batch_decode_failed", "decode_failed"))


@pytest.mark.parametrize("name", COMPRESSED)
def test_damaged_compression_is_answered(client: Client, name: str) -> None:
    whole = COMPRESSED[name](batch([Message(b"some text that is long enough")] * 20))
    (answer,) = client.ask(whole[: len(whole) * 2 // 3])
    assert b'"status":"ERROR"' in answer


def test_a_second_layer_is_refused(client: Client) -> None:
    (answer,) = client.ask(gzip.compress(gzip.compress(PLAIN)))
    assert b"compressed more than once" in answer


def test_further_algorithms_can_be_added(client: Client) -> None:
    def open_deflate(data: memoryview, *, bytes_max: int) -> bytes:
        return zlib.decompressobj().decompress(data, bytes_max)

    registry = Registry()
    registry.register(Algorithm("zlib", starts_with(b"\x78\x9c"), open_deflate))
    client.session.door.registry = registry
    assert client.publish(zlib.compress(PLAIN))["last_offset"] == 1
    assert "gzip" in REGISTRY.names
    assert registry.names == ("zlib",)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80" * 6, b"\x00", b"\x05", b"\x05\x01ab"])
def test_raw_snappy_is_not_seen_where_it_is_not(data: bytes) -> None:
    assert not holds_raw_snappy(memoryview(data))


def test_no_command_looks_compressed(client: Client) -> None:
    for verb in (b"CREATE topic=a", b"\0\0LIST", b" LIST", PLAIN):
        assert REGISTRY.recognise(memoryview(verb)) is None


def test_both_dialects_alternate_on_one_connection(client: Client) -> None:
    for number in range(6):
        document = number % 2 == 1
        body = batch([Message(b"%d" % number, seq=1, producer=b"p")], document=document)
        answer = client.publish(body)
        assert answer["last_offset"] == number
        assert ("leader" in answer) is document
    real = client.read("CONSUME topic=orders partition=0 offset=0 member=m")
    assert [message.payload for message in real] == [b"%d" % number for number in range(6)]
    (answer,) = client.ask("CONSUME orders 0 0")
    assert answer[10:13] == b"\x00\x010"
    assert messages_of(answer) == real


def test_a_reply_never_exceeds_16_mib(broker: CursusBroker, client: Client) -> None:
    for _ in range(18):
        body = batch([Message(b"m" * (1 << 20))], acks="0")
        assert client.publish(body)["status"] == "OK"
    offset = frames = 0
    while offset < 18:
        command = f"CONSUME topic=orders partition=0 offset={offset} member=m"
        (answer,) = client.ask(command)
        assert len(answer) <= 16 << 20
        messages = messages_of(answer)
        assert [message.offset for message in messages] == list(
            range(offset, offset + len(messages))
        )
        offset += len(messages)
        frames += 1
    assert frames >= 2


def test_a_frame_larger_than_the_configuration_allows(tmp_path: Path) -> None:
    broker = CursusBroker(tmp_path / "small", frame_bytes_max=1024)
    client = broker.connect()
    client.feed(struct.pack(">I", 1025))
    assert client.line.hung_up
    broker.close()


@pytest.mark.parametrize("body", [b"  LIST\r\n", b"\0\0 \tLIST\0", b"LIST" + b" " * 65_000])
def test_blanks_around_a_command_are_passed_over(client: Client, body: bytes) -> None:
    assert client.ask(body) == [b"OK count=1 topics=orders"]


@pytest.mark.parametrize("body", [b"LIST" + b" " * 66_000, b" " * 66_000 + b"LIST", b" " * 70_000])
def test_very_many_blanks_are_refused(client: Client, body: bytes) -> None:
    (answer,) = client.ask(body)
    assert answer.startswith(b"ERROR: malformed_input")
    assert client.text("HELP").startswith("OK")
