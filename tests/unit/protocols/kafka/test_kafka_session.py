"""The connection: framing, what ends it, order, and stopping when replies are full."""

from __future__ import annotations

import random
import struct

import pytest
from kafka_requests import fetch, produce, request
from kafka_world import Line, World, answer_of, records

from pentalog.protocols.kafka.api import APIS

VERSIONS_ASKED = request(18, 0, {})


def world() -> World:
    made = World()
    made.topics.add("orders", 2)
    return made


def bare(key: int, version: int, rest: bytes = b"") -> bytes:
    payload = struct.pack(">hhih", key, version, 7, -1) + rest
    return len(payload).to_bytes(4, "big") + payload


def stream() -> bytes:
    """Produce in runs and alone, fetches and questions, all answered without a wait."""
    parts = []
    for number in range(12):
        parts.append(produce(9, [("orders", 0, records(2))], correlation_id=number))
        if number % 3 == 0:
            parts.append(fetch(12, [("orders", 0, 0)], correlation_id=100 + number))
        if number % 4 == 0:
            both = [("orders", 0, records()), ("orders", 1, records())]
            parts.append(produce(7, both, correlation_id=200 + number))
            parts.append(request(3, 1, {"topics": None}, correlation_id=300 + number))
    return b"".join(parts)


@pytest.mark.parametrize("seed", range(20))
def test_answers_do_not_depend_on_how_the_stream_was_cut(seed: int) -> None:
    whole, cut = world(), world()
    data = stream()
    whole.feed(data)
    dice = random.Random(seed)
    left = b""
    position = 0
    while position < len(data):
        size = dice.choice((1, 3, 50, 200, 1000))
        left += data[position : position + size]
        position += size
        buffer = bytearray(left)
        used = cut.session.receive(memoryview(buffer))
        # What is left is given again as the session left it, not as it came.
        left = bytes(buffer[used:])
    assert left == b""
    assert cut.line.frames() == whole.line.frames()


@pytest.mark.parametrize("seed", range(20))
def test_a_session_that_stops_for_full_replies_loses_nothing(seed: int) -> None:
    whole, halting = world(), world()
    data = stream()
    whole.feed(data)
    dice = random.Random(seed)

    class Moody(Line):
        @property
        def full(self) -> bool:
            return dice.random() < 0.5

        @full.setter
        def full(self, value: bool) -> None: ...

    halting.line = Moody()
    halting.session = halting.connect(halting.line)
    left = bytearray(data)
    calls = 0
    while left:
        used = halting.session.receive(memoryview(left))
        left = left[used:]
        calls += 1
        assert calls < 1000
    assert calls > 1
    assert halting.line.frames() == whole.line.frames()


def test_full_replies_stop_before_the_next_question() -> None:
    made = world()
    made.line.full = True
    assert made.feed(VERSIONS_ASKED * 3) == 0
    made.line.full = False
    assert made.feed(VERSIONS_ASKED * 3) == len(VERSIONS_ASKED) * 3
    assert len(made.line.frames()) == 3


def test_the_size_of_an_incomplete_frame_is_wanted() -> None:
    made = world()
    assert made.feed(VERSIONS_ASKED[:3]) == 0
    assert made.session.wanted == 0
    assert made.feed(VERSIONS_ASKED[:-1]) == 0
    assert made.session.wanted == len(VERSIONS_ASKED)


@pytest.mark.parametrize(
    "violation",
    [
        bare(4, 0),
        bare(9999, 0),
        bare(-1, 0),
        bare(3, 14),
        bare(3, -1),
        bare(0, 2),
        bare(1, 3),
        bare(3, 1, b"\0\0\0\5"),
        b"\0\0\0\0",
        b"\0\0\0\4\0\x12\0\0",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\x0a\0\x12\0\0\0\0\0\7\0\1",
    ],
)
def test_a_violation_ends_the_connection_after_what_came_before(violation: bytes) -> None:
    made = world()
    data = VERSIONS_ASKED + violation + VERSIONS_ASKED
    assert made.feed(data) == len(data)
    assert made.line.hung_up
    assert len(made.line.frames()) == 1
    assert made.metrics.request_errors == 1
    assert made.feed(VERSIONS_ASKED) == len(VERSIONS_ASKED)
    assert len(made.line.frames()) == 1


@pytest.mark.parametrize("version", [5, 6, 99, -1])
def test_an_unknown_api_versions_is_answered_in_the_oldest_form(version: int) -> None:
    made = world()
    made.feed(bare(18, version, b"\0\1\2"))
    answer = answer_of(18, 0, made.line.frames()[0])
    assert answer.error_code == 35
    assert [(one.api_key, one.min_version, one.max_version) for one in answer.api_keys] == [
        (18, 0, 4)
    ]
    assert not made.line.hung_up


def test_a_request_too_large_for_objects_is_refused() -> None:
    made = world()
    made.feed(bare(3, 1, bytes(5 << 20)))
    assert made.line.hung_up


@pytest.mark.parametrize("key", sorted(APIS))
def test_cut_bodies_never_raise(key: int) -> None:
    """Every prefix of nothing: a body that ends at once is a hang-up or an answer."""
    api = APIS[key]
    for version in range(api.version_min, api.version_max + 1):
        made = world()
        made.feed(bare(key, version))
        assert made.line.hung_up or made.line.frames()


def test_nothing_sent_is_a_view_of_what_was_received() -> None:
    made = world()
    both = [("orders", 0, records()), ("orders", 1, records())]
    data = bytearray(produce(9, [("orders", 0, records())]) + produce(9, both))
    made.session.receive(memoryview(data))
    before = made.line.sent()
    data[:] = b"\0" * len(data)
    assert made.line.sent() == before
    # A buffer that is still looked at cannot be resized.
    data += b"more"
