"""One run: clients, trouble, and the history of what they were told."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from tests.history.checker import History, Reading, anomalies, copy_anomalies, counts
from tests.history.copier import Copier
from tests.history.readers import Reader
from tests.history.transactional import PATIENCE_S
from tests.history.trouble import Victim, trouble
from tests.history.writers import PlainWriter, TransactionalWriter, Writer

TOPIC = "history"
COPY = "copy"
PARTITIONS = 3
PLAIN, TRANSACTIONAL, COPIERS = 2, 4, 2
RECORDS_MIN = 201
"""Written by a run, at least: fewer say little about the broker."""


@dataclass(frozen=True, slots=True)
class Outcome:
    anomalies: Sequence[str]
    counts: Mapping[str, int]
    trouble: Sequence[str]
    history: History

    def __str__(self) -> str:
        numbers = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"{numbers}; {' '.join(self.trouble)}"


def run(directory: Path, seed: int, *, duration_s: float = 4.0) -> Outcome:
    """What one seed brings; timing differs from run to run, decisions do not."""
    choice = random.Random(seed)
    victim = Victim(directory)
    try:
        _create_topics(victim.address)
        writers, readers = _clients(victim.address, choice)
        copiers = [
            Copier(victim.address, TOPIC, COPY, f"copier{i}", choice.randrange(1 << 30))
            for i in range(COPIERS)
        ]
        for thread in (*writers, *readers, *copiers):
            thread.start()
        done = trouble(victim, choice, duration_s, partial(_tried_enough, writers))
        for copier in copiers:
            copier.leave_alone()
        late = _finished(writers)
        for reader in readers:
            reader.finish()
            reader.join(PATIENCE_S)
        last = _last_readers(victim.address)
        copy = _copied(victim.address, copiers, last[0].reading)
    finally:
        victim.close()
    history = History(
        [attempt for writer in writers for attempt in writer.attempts],
        [reader.reading for reader in (*readers, *last)],
    )
    complaints = [complaint for writer in writers for complaint in writer.complaints]
    unread = [
        f"blocked: {reader.name} could not read to the end"
        for reader in (*last, copy)
        if not reader.reading.complete
    ]
    copying = _judged_copy(last[0].reading, copy.reading)
    found = [*complaints, *late, *unread, *anomalies(history), *copying]
    return Outcome(found, counts(history), done, history)


def _tried_enough(writers: Sequence[Writer]) -> bool:
    """Whether transactions were committed, and enough records written, in the trouble so far."""
    found = counts(History([one for writer in writers for one in tuple(writer.attempts)], []))
    return found["committed"] > 0 and found["records"] >= RECORDS_MIN


def _create_topics(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    made = admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (TOPIC, COPY)])
    for one in made.values():
        one.result(30)


def _judged_copy(source: Reading, copy: Reading) -> list[str]:
    wanted, got = (sum(len(session) for session in reading.sessions) for reading in (source, copy))
    found = copy_anomalies(source, copy)
    if got >= wanted:
        return found
    late = f"stuck: {got} of {wanted} records were copied in {PATIENCE_S:.0f} s"
    return [late, *(one for one in found if not one.startswith("copy lost"))]


def _copied(address: str, copiers: Sequence[Copier], source: Reading) -> Reader:
    """The whole copy, once it is as long as what was to be copied, or time is up."""
    wanted = sum(len(session) for session in source.sessions)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        reader = Reader(address, COPY, PARTITIONS, "copy", 0, committed=True)
        reader.read_all(PATIENCE_S)
        got = sum(len(session) for session in reader.reading.sessions)
        if got >= wanted or time.monotonic() > deadline:
            break
    for copier in copiers:
        copier.finish()
        copier.join(PATIENCE_S)
    return reader


def _clients(address: str, choice: random.Random) -> tuple[list[Writer], list[Reader]]:
    names = [(PlainWriter, f"plain{i}") for i in range(PLAIN)]
    more = [(TransactionalWriter, f"transactional{i}") for i in range(TRANSACTIONAL)]
    writers = [
        kind(address, TOPIC, PARTITIONS, name, choice.randrange(1 << 30))
        for kind, name in [*names, *more]
    ]
    readers = [
        Reader(address, TOPIC, PARTITIONS, f"live{i}", choice.randrange(1 << 30), committed=i > 0)
        for i in range(3)
    ]
    return writers, readers


def _finished(writers: Sequence[Writer]) -> list[str]:
    for writer in writers:
        writer.finish()
    late = []
    for writer in writers:
        writer.join(2 * PATIENCE_S)
        if writer.is_alive():
            late.append(f"stuck: {writer.name} did not come to an end")
    return late


def _last_readers(address: str) -> list[Reader]:
    """They read everything once nothing happens any more; transactions have all been ended."""
    last = [
        Reader(address, TOPIC, PARTITIONS, f"last-{name}", 0, committed=name == "committed")
        for name in ("committed", "all")
    ]
    for reader in last:
        reader.read_all(PATIENCE_S)
    return last
