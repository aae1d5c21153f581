"""What a table knows about the log: which offsets it holds, and what each commit added."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pentalog.model.types import Partition


def partition_of(text: str) -> Partition:
    """A partition from the name it has in tables, `topic/number`."""
    topic, _, index = text.rpartition("/")
    return Partition(topic, int(index))


def name_of(at: Partition) -> str:
    return f"{at.topic}/{at.index}"


class Range(NamedTuple):
    """Offsets from `start` up to, but without, `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class State:
    """Everything exactly-once depends on; it changes only together with the rows.

    `covered`: the table holds the records of exactly these offsets.  Batches raise the end,
    backfills lower the start, retention raises it.  `dropped`: rows of silver that a rule
    dropped, ever.  `batches`: the last batch of every query that wrote here.
    """

    covered: Mapping[Partition, Range] = field(default_factory=dict)
    dropped: Mapping[Partition, int] = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)

    def end(self, at: Partition) -> int | None:
        found = self.covered.get(at)
        return found.end if found else None


@dataclass(frozen=True, slots=True)
class Step:
    """One batch of one query, as it is recorded: the state after it, and what it added."""

    query: str
    batch: int
    ranges: Mapping[Partition, Range]
    covered: Mapping[Partition, Range]
    dropped: Mapping[Partition, int] = field(default_factory=dict)
    note: str = "batch"

    def metadata(self, rows: int) -> dict[str, str]:
        """The ledger's entry: what a person, or an auditor, reads in the table's history."""
        return {
            "pentalog.note": self.note,
            "pentalog.query": self.query,
            "pentalog.batch": str(self.batch),
            "pentalog.rows": str(rows),
            "pentalog.ranges": json.dumps(
                {name_of(at): list(one) for at, one in self.ranges.items()}
            ),
        }


class Entry(NamedTuple):
    """One commit of the ledger."""

    version: int
    time_ms: int
    note: str
    query: str
    batch: int
    rows: int
    ranges: Mapping[Partition, Range]


def entry_of(version: int, time_ms: int, metadata: Mapping[str, Any]) -> Entry | None:
    """An entry from the metadata of a commit; None for commits that were not ours."""
    if "pentalog.ranges" not in metadata:
        return None
    ranges = json.loads(metadata["pentalog.ranges"])
    return Entry(
        version,
        time_ms,
        metadata.get("pentalog.note", ""),
        metadata.get("pentalog.query", ""),
        int(metadata.get("pentalog.batch", -1)),
        int(metadata.get("pentalog.rows", 0)),
        {partition_of(at): Range(*pair) for at, pair in ranges.items()},
    )


def partitions_text(partitions: Iterable[Partition]) -> str:
    return json.dumps(sorted(name_of(at) for at in partitions))


def state_as_json(state: State) -> dict[str, Any]:
    return {
        "covered": {name_of(at): list(one) for at, one in state.covered.items()},
        "dropped": {name_of(at): count for at, count in state.dropped.items()},
        "batches": dict(state.batches),
    }


def state_from_json(value: Mapping[str, Any]) -> State:
    return State(
        {partition_of(at): Range(*pair) for at, pair in value.get("covered", {}).items()},
        {partition_of(at): int(count) for at, count in value.get("dropped", {}).items()},
        {query: int(batch) for query, batch in value.get("batches", {}).items()},
    )


def after(state: State, step: Step) -> State:
    """The state once `step` is part of the table."""
    return State(
        {**state.covered, **step.covered},
        {**state.dropped, **step.dropped},
        {**state.batches, step.query: step.batch} if step.batch >= 0 else dict(state.batches),
    )
