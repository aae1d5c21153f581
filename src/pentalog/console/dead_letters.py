"""Records that were given up, as the broker and pipelines set them aside, and sending them back."""

from __future__ import annotations

from typing import Final, NamedTuple

from pentalog.clients.kafka import Cluster
from pentalog.console.records import Header, Row
from pentalog.model import batch
from pentalog.model.types import Offset, Partition, Record

SUFFIX: Final = ".dlq"

_PREFIXES: Final = ("dead.", "pentalog.")


class Letter(NamedTuple):
    row: Row
    reason: str
    attempts: str
    source: Partition
    source_offset: Offset
    subscription: str


def source_of(topic: str) -> str:
    """The topic whose dead letters these are."""
    return topic.removesuffix(SUFFIX)


def read_letter(row: Row) -> Letter:
    """What the headers of a dead letter say; what they do not say is guessed from its topic."""
    notes: dict[str, str] = {}
    for name, value in row.headers:
        for prefix in _PREFIXES:
            if name.startswith(prefix):
                notes[name[len(prefix) :]] = (value or b"").decode("utf-8", "replace")
    return Letter(
        row,
        notes.get("reason", "not said"),
        notes.get("attempts", ""),
        Partition(notes.get("topic", source_of(row.at.topic)), _number(notes.get("partition"), -1)),
        _number(notes.get("offset"), -1),
        notes.get("subscription", ""),
    )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() else otherwise


def replay(cluster: Cluster, letter: Letter) -> tuple[Partition, Offset]:
    """Send a dead letter back to where it came from, as it was; where it is now."""
    leaders = cluster.topic(letter.source.topic).partitions
    index = letter.source.index if letter.source.index in leaders else min(leaders)
    at = Partition(letter.source.topic, index)
    headers: tuple[Header, ...] = tuple(
        (name, value) for name, value in letter.row.headers if not name.startswith(_PREFIXES)
    )
    record = Record(letter.row.value, letter.row.key, headers, letter.row.timestamp_ms)
    built = batch.build([record], timestamp_ms=max(0, letter.row.timestamp_ms))
    return at, cluster.produce(at, bytes(built))
