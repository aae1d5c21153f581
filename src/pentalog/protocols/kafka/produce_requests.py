"""Produce requests for several partitions, walked where they lie.

A request for many partitions is copied, so that it can be walked and appended in steps.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from pentalog.model.buffers import join_buffers
from pentalog.protocols.kafka.entities import Budget
from pentalog.protocols.kafka.frames import Walk

PARTS_AT_ONCE: Final = 64
"""A request for more partitions is served in steps."""
_FLEXIBLE: Final = 9
_BY_ID: Final = 13


class Part(NamedTuple):
    """One partition of a request: its number, and where its batches are."""

    number: int
    batches: memoryview | None


class Produce(NamedTuple):
    """A request that was walked, its batches still in the receive buffer."""

    acks: int
    topics: list[tuple[bytes, list[Part]]]
    transactional_id: str | None = None


class Many(NamedTuple):
    """A request for many partitions, copied: it is walked and appended in steps."""

    body: memoryview


def decode(version: int, body: memoryview) -> Produce | Many:
    walking = walk(version, body)
    try:
        next(walking)
    except StopIteration as end:
        produce: Produce = end.value
        return produce
    return Many(memoryview(join_buffers(body)))


def walk(version: int, body: memoryview) -> Generator[None, None, Produce]:
    """Walk a request some partitions at a time; what is short is walked in one go."""
    walked = Walk(body, 0, len(body))
    flexible = version >= _FLEXIBLE
    size = walked.size(flexible=flexible, wide=False)
    transactional_id = str(walked.take(size), "utf-8", "replace") if size >= 0 else None
    acks = walked.int16()
    walked.int32()  # the timeout bounds waiting for replicas, of which there are none
    topics: list[tuple[bytes, list[Part]]] = []
    budget = Budget()
    for _ in range(budget.counted(walked.size(flexible=flexible, wide=True))):
        if version >= _BY_ID:
            name = bytes(walked.take(16))
        else:
            name = bytes(walked.take(walked.size(flexible=flexible, wide=False)))
        parts: list[Part] = []
        for _ in range(budget.counted(walked.size(flexible=flexible, wide=True))):
            index = walked.int32()
            length = walked.size(flexible=flexible, wide=True)
            parts.append(Part(index, walked.take(length) if length >= 0 else None))
            if flexible:
                walked.tags()
            budget.made += 1
            if budget.made >= PARTS_AT_ONCE:
                budget.made = 0
                yield
        topics.append((name, parts))
        if flexible:
            walked.tags()
    if flexible:
        walked.tags()
    return Produce(acks, topics, transactional_id)
