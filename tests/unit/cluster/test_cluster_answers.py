"""Answers that are read by hand: any bytes are an answer, or none that can be read."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentalog.cluster import heartbeats, polling
from pentalog.cluster.refusals import Lost
from pentalog.cluster.transactions import describe_body, read_described
from pentalog.model.types import Aborted, Identity, Marks, Partition

FETCHED = (
    struct.pack(">ihii", 0, 0, 0, 1)
    + struct.pack(">h2si", 2, b"ab", 1)
    + struct.pack(">ihqqq", 3, 0, 9, 8, 1)
    + struct.pack(">iqq", 1, 77, 5)
    + struct.pack(">ii4s", -1, 4, b"data")
)
DESCRIBED = (
    b"\0" + struct.pack(">i", 0) + b"\x02" + struct.pack(">h", 0) + b"\x03tx\x08Ongoing"
    + struct.pack(">iqqh", 60_000, -1, 4711, 7) + b"\1\0\0"
)  # fmt: skip


def test_answers_as_nodes_send_them() -> None:
    (found,) = polling.read_answer(memoryview(FETCHED))
    assert found.at == Partition("ab", 3)
    assert found.marks == Marks(1, 8, 9, 9)
    assert found.aborted == [Aborted(77, 5)]
    assert bytes(found.data) == b"data"
    described = read_described(memoryview(DESCRIBED))
    assert (described.phase, described.who) == ("Ongoing", Identity(4711, 7))
    assert describe_body("tx") == (b"\0\x02\x03tx\0",)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_bytes(data: st.DataObject) -> None:
    answer = bytearray(data.draw(st.sampled_from((FETCHED, DESCRIBED))))
    for _ in range(data.draw(st.integers(0, 4))):
        answer[data.draw(st.integers(0, len(answer) - 1))] = data.draw(st.integers(0, 255))
    answer = answer[: data.draw(st.integers(0, len(answer)))]
    for read in (polling.read_answer, read_described):
        try:
            read(memoryview(answer))
        except Lost:
            continue


@pytest.mark.parametrize("name", ["a", "web-0123456789ab", "7a43afa7-0000-4000-8000-000000000001"])
def test_ids_are_known_again_and_names_are_no_ids(name: str) -> None:
    assert not heartbeats.given_out(name)
    assert heartbeats.given_out(heartbeats.sealed(name, "0123456789ab"))
