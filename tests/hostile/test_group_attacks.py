"""Patterns, groups and transactional ids: what one small request makes the broker do and keep."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from itertools import islice, product
from pathlib import Path

import pytest
from tests.hostile.hostile_world import (
    HostileWorld,
    ask,
    compact,
    flexible,
    request,
    string,
    uvarint,
)

INVALID_REGULAR_EXPRESSION = 128
NESTED_EMPTY = "((" + "()" * 476 + "){1000}){60}"
"""Nothing, 28 million times."""
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def list_transactions(pattern: str) -> bytes:
    return flexible(66, 2, 7, b"\1\1" + struct.pack(">q", -1) + compact(pattern) + b"\0")


def init_producer_id(name: str) -> bytes:
    return flexible(22, 4, 7, compact(name) + struct.pack(">iqh", 60_000, -1, -1) + b"\0")


def beat(group: str, *, names: list[str] | None = None, pattern: str | None = None) -> bytes:
    """A member that joins a group that the broker plans."""
    topics = b"\0"
    if names is not None:
        topics = uvarint(len(names) + 1) + b"".join(map(compact, names))
    regex = b"\0" if pattern is None else compact(pattern)
    head = compact(group) + compact("member") + struct.pack(">i", 0) + b"\0\0"
    tail = struct.pack(">i", 60_000) + topics + regex + b"\0" + b"\1" + b"\0"
    return flexible(68, 1, 7, head + tail)


def join(group: str, protocols: int) -> bytes:
    head = string(group) + struct.pack(">ii", 6_000, 6_000) + string("") + string("consumer")
    return request(11, 2, 7, head + struct.pack(">i", protocols) + bytes(6 * protocols))


def short_names(count: int) -> list[str]:
    """As many different names as fit in few bytes."""
    return ["".join(each) for each in islice(product(DIGITS, repeat=4), count)]


def ask_and_leave(world: HostileWorld, *frames: bytes) -> list[bytes]:
    """Ask and hang up; a broker that hangs up first has answered enough."""
    answers = []
    with world.connect() as client, contextlib.suppress(EOFError, ConnectionError):
        answers.extend(ask(client, frame) for frame in frames)
    return answers


@pytest.mark.parametrize("text", [NESTED_EMPTY, "((a?){30}){30}" * 70, r"\pL{1000}" * 110])
def test_a_pattern_bomb_is_refused_at_no_cost(tmp_path: Path, text: str) -> None:
    with HostileWorld(tmp_path) as world:
        answers: list[bytes] = []

        def attack() -> None:
            with world.connect() as client:
                answers.append(ask(client, list_transactions(text)))
                answers.append(ask(client, beat("g", pattern=text)))

        cost = world.measure(attack)
        print(cost)
        # The tagged fields of the header, the throttle time, the code.
        assert [struct.unpack_from(">h", each, 5)[0] for each in answers] == [
            INVALID_REGULAR_EXPRESSION,
            INVALID_REGULAR_EXPRESSION,
        ]
        cost.assert_bounded(rulers=1, memory_mib=16)


def test_patterns_keep_little_of_the_names_they_met(tmp_path: Path) -> None:
    chosen = random.Random(7)
    name = "".join(chosen.choice("ab") for _ in range(32_000))
    with HostileWorld(tmp_path) as world:

        def attack() -> None:
            with world.connect() as client:
                for each in (name, name[:1_000]):
                    ask(client, init_producer_id(each))
                for count in (900, 901, 902):
                    ask(client, list_transactions(f"[ab]*a[ab]{{{count}}}.*"))

        before = world.memory_bytes()
        cost = world.measure(attack)
        print(cost, (world.memory_bytes() - before) >> 20, "MiB kept")
        cost.assert_bounded(rulers=1, memory_mib=16)


@pytest.mark.parametrize("kind", ["join", "beat"])
def test_a_member_that_says_too_much_leaves_nothing(tmp_path: Path, kind: str) -> None:
    frame = join("g", 640_000)
    if kind == "beat":
        frame = beat("g", names=short_names(700_000))
    with HostileWorld(tmp_path) as world:
        before = world.memory_bytes()
        cost = world.measure(lambda: ask_and_leave(world, frame))
        first = world.memory_bytes() - before
        for _ in range(3):
            ask_and_leave(world, frame)
        grown = world.memory_bytes() - before - first
        print(cost, first >> 20, "MiB kept,", grown >> 20, "MiB more by repetitions")
        # What the allocator keeps for the next frame is used by it; what is leaked is not.
        assert grown <= 16 << 20


def test_ids_that_are_never_used_are_limited(tmp_path: Path) -> None:
    """Each JoinGroup without an id reserves one for the session timeout."""
    options = ("--group-bytes-max", "1000000")
    with HostileWorld(tmp_path, arguments=options) as world, world.connect() as client:
        codes = {_join_code(client, f"g{number}") for number in range(500)}
    member_id_required, group_full = 79, 81
    assert codes == {member_id_required, group_full}


def _join_code(client: socket.socket, group: str) -> int:
    body = string(group) + struct.pack(">ii", 60_000, 60_000) + string("")
    body += string("consumer") + struct.pack(">i", 1) + string("range") + bytes(4)
    # A throttle time comes before the code.
    code: int = struct.unpack_from(">h", ask(client, request(11, 4, 7, body)), 4)[0]
    return code
