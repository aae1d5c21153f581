"""What a topic must keep that is compacted, or deletes records by their age."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.judge import Item, Sent, TopicLife


def check_age(now_ms: float, topic: TopicLife, index: int, first: int, start: int) -> None:
    """No record before the start, from `first` on, may be younger than the topic keeps it."""
    for sent in topic.model(index).sents:
        if sent.required and sent.offset is not None and first <= sent.offset < start:
            age_ms = now_ms - sent.timestamp_ms
            if sent.timestamp_ms >= 0 and age_ms < topic.retention_ms:
                raise Violation("deleted early", f"{sent} is {age_ms:.0f} ms old")


def check_compacted(
    now_ms: float, topic: TopicLife, index: int, found: Mapping[int, tuple[Sent, int]]
) -> None:
    """The newest record of every key must be there, or a newer one.

    `found` has the batch, and the number in it, of the record at each offset.
    """
    newest: dict[bytes | None, tuple[int, Item, Sent]] = {}
    buried: set[bytes | None] = set()
    for sent in topic.model(index).sents:
        if sent.offset is None or not sent.required:
            if now_ms - sent.sent_ms >= topic.tombstones_ms:
                # A tombstone that was never seen may have come and gone.
                buried |= {item.key for item in sent.items if item.value is None}
            continue
        for number, item in enumerate(sent.items):
            at = sent.offset + number
            if at >= newest.get(item.key, (-1,))[0]:
                newest[item.key] = (at, item, sent)
    there: dict[bytes | None, int] = {}
    for at, (owner, number) in found.items():
        key = owner.items[number].key
        there[key] = max(at, there.get(key, -1))
    for at, item, sent in newest.values():
        if there.get(item.key, -1) >= at or item.key in buried:
            continue
        if item.value is None and now_ms - sent.sent_ms >= topic.tombstones_ms:
            continue
        what = "tombstone" if item.value is None else "newest record"
        raise Violation("lost", f"the {what} of key {item.key!r} is missing: {sent}")
