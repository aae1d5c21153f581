"""Judges what clients were told: a history goes in, a list of anomalies comes out.

Every record has a value that exists once in a run.  The history holds what each producer tried, in
order, with what it was told; and what each reader received, poll by poll.  The checker knows
nothing of brokers or clients, so it can be tested with histories that somebody made up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Fate(Enum):
    """What a producer knows about something it tried."""

    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    """The broker said no, or the producer took it back itself: it must never be seen."""
    UNKNOWN = "unknown"
    """No answer, a crash: may have happened, but only entirely."""


@dataclass(slots=True)
class Written:
    """One record a producer handed over; `offset` is the place it was told, if it was told."""

    partition: int
    value: str
    offset: int | None = None
    fate: Fate = Fate.UNKNOWN


@dataclass(slots=True)
class Attempt:
    """Records that belong together: one transaction, or the whole life of a plain producer."""

    producer: str
    transactional: bool
    records: list[Written] = field(default_factory=list)
    fate: Fate = Fate.UNKNOWN
    """How the transaction ended; a plain producer's records have their own."""


@dataclass(frozen=True, slots=True)
class Received:
    partition: int
    offset: int
    value: str


@dataclass(slots=True)
class Reading:
    """What one reader got; each session starts where the reader itself chose to start."""

    reader: str
    committed_only: bool
    sessions: list[list[Received]] = field(default_factory=list)
    complete: bool = False
    """It read every partition from the beginning to the end after everything was over."""


@dataclass(slots=True)
class History:
    attempts: list[Attempt] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)


Place = tuple[int, int]


def anomalies(history: History) -> list[str]:
    """Everything in the history that no correct broker does; empty is good."""
    return [
        *_reused_offsets(history),
        *_non_monotonic(history),
        *_disagreements(history),
        *_strangers(history),
        *_duplicates(history),
        *_misplaced(history),
        *_lost(history),
        *_reordered(history),
        *_torn(history),
        *_aborted_but_seen(history),
    ]


def _reused_offsets(history: History) -> Iterator[str]:
    """Two records were told the same place."""
    told: dict[Place, str] = {}
    for record in _records(history):
        if record.offset is None:
            continue
        at = (record.partition, record.offset)
        before = told.setdefault(at, record.value)
        if before != record.value:
            yield f"offset reused: {before} and {record.value} were both told {_named(at)}"


def _non_monotonic(history: History) -> Iterator[str]:
    for reading in history.readings:
        for session in reading.sessions:
            last: dict[int, int] = {}
            for one in session:
                if one.offset <= last.get(one.partition, -1):
                    yield (
                        f"non-monotonic poll: {reading.reader} got offset {one.offset} of"
                        f" partition {one.partition} after {last[one.partition]}"
                    )
                last[one.partition] = one.offset


def _disagreements(history: History) -> Iterator[str]:
    """The same place held different records at different times or for different readers."""
    held: dict[Place, tuple[str, str]] = {}
    for reading in history.readings:
        for one in _all_received(reading):
            at = (one.partition, one.offset)
            value, by = held.setdefault(at, (one.value, reading.reader))
            if value != one.value:
                yield (
                    f"offset reused: {_named(at)} was {value} for {by}"
                    f" and {one.value} for {reading.reader}"
                )


def _strangers(history: History) -> Iterator[str]:
    known = {record.value for record in _records(history)}
    for reading in history.readings:
        for one in _all_received(reading):
            if one.value not in known:
                yield f"invented: {reading.reader} got {one.value}, which nobody wrote"


def _duplicates(history: History) -> Iterator[str]:
    places: dict[str, set[Place]] = defaultdict(set)
    for reading in history.readings:
        for one in _all_received(reading):
            places[one.value].add((one.partition, one.offset))
    for value, found in places.items():
        if len(found) > 1:
            yield f"duplicated: {value} is at {', '.join(map(_named, sorted(found)))}"


def _misplaced(history: History) -> Iterator[str]:
    told = {
        record.value: (record.partition, record.offset)
        for record in _records(history)
        if record.offset is not None
    }
    for reading in history.readings:
        for one in _all_received(reading):
            at = (one.partition, one.offset)
            if told.get(one.value, at) != at:
                yield (
                    f"moved: {one.value} was told {_named(told[one.value])}"
                    f" but {reading.reader} got it at {_named(at)}"
                )


def _lost(history: History) -> Iterator[str]:
    for reading in _complete(history):
        seen = {one.value for one in _all_received(reading)}
        for attempt in history.attempts:
            for record in attempt.records:
                if _must_be_seen(attempt, record, reading) and record.value not in seen:
                    yield (
                        f"lost: {record.value} of {attempt.producer} was acknowledged"
                        f" but {reading.reader} never got it"
                    )


def _must_be_seen(attempt: Attempt, record: Written, reading: Reading) -> bool:
    if attempt.transactional and reading.committed_only:
        return attempt.fate is Fate.ACKNOWLEDGED
    return record.fate is Fate.ACKNOWLEDGED


def _reordered(history: History) -> Iterator[str]:
    """Records of one producer in one partition keep the order in which they were handed over."""
    order: dict[str, tuple[str, int, int]] = {}
    for number, attempt in enumerate(history.attempts):
        for place, record in enumerate(attempt.records):
            order[record.value] = (attempt.producer, number, place)
    for reading in history.readings:
        for session in reading.sessions:
            last: dict[tuple[str, int], tuple[int, int, str]] = {}
            for one in session:
                if one.value not in order:
                    continue
                producer, number, place = order[one.value]
                before = last.get((producer, one.partition))
                if before is not None and before[:2] > (number, place):
                    yield f"reordered: {reading.reader} got {one.value} after {before[2]}"
                last[producer, one.partition] = (number, place, one.value)


def _torn(history: History) -> Iterator[str]:
    """Part of a transaction visible: only one who read everything can say so."""
    for reading in _complete(history):
        if not reading.committed_only:
            continue
        seen = {one.value for one in _all_received(reading)}
        for attempt in history.attempts:
            if not attempt.transactional:
                continue
            there = [record.value in seen for record in attempt.records]
            if any(there) and not all(there):
                missing = [record.value for record in attempt.records if record.value not in seen]
                yield (
                    f"torn: of a transaction of {attempt.producer}, {reading.reader} got"
                    f" {sum(there)} of {len(there)} records, not {missing[0]}"
                )


def _aborted_but_seen(history: History) -> Iterator[str]:
    aborted = {
        record.value: attempt.producer
        for attempt in history.attempts
        if attempt.transactional and attempt.fate is Fate.FAILED
        for record in attempt.records
    }
    for reading in history.readings:
        if not reading.committed_only:
            continue
        for value in sorted({one.value for one in _all_received(reading)} & aborted.keys()):
            yield f"aborted but seen: {reading.reader} got {value} of {aborted[value]}"


def copy_anomalies(source: Reading, copy: Reading) -> list[str]:
    """A copy made in transactions is the same, partition by partition, as what was committed."""
    found: list[str] = []
    for partition in sorted({one.partition for one in _all_received(source)}):
        wanted = [one.value for one in _all_received(source) if one.partition == partition]
        got = [one.value for one in _all_received(copy) if one.partition == partition]
        if got == wanted:
            continue
        for value, count in (Counter(got) - Counter(wanted)).items():
            kind = "duplicated" if value in wanted else "invented"
            found.append(f"copy {kind}: {value}, {count} more in partition {partition}")
        found += [
            f"copy lost: {value} of partition {partition}"
            for value in Counter(wanted) - Counter(got)
        ]
        if Counter(got) == Counter(wanted):
            found.append(f"copy reordered: partition {partition} is not in its source's order")
    return found


def counts(history: History) -> Mapping[str, int]:
    """How much happened, to show that a run was worth checking."""
    ends = [attempt.fate for attempt in history.attempts if attempt.transactional]
    return {
        "records": sum(len(attempt.records) for attempt in history.attempts),
        "committed": ends.count(Fate.ACKNOWLEDGED),
        "aborted": ends.count(Fate.FAILED),
        "unknown": ends.count(Fate.UNKNOWN),
        "received": sum(
            len(session) for reading in history.readings for session in reading.sessions
        ),
    }


def _records(history: History) -> Iterator[Written]:
    for attempt in history.attempts:
        yield from attempt.records


def _all_received(reading: Reading) -> Iterator[Received]:
    for session in reading.sessions:
        yield from session


def _complete(history: History) -> Sequence[Reading]:
    return [reading for reading in history.readings if reading.complete]


def _named(at: Place) -> str:
    return f"offset {at[1]} of partition {at[0]}"
