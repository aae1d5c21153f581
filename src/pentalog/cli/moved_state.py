"""What a move takes along beside records: users, rules, subscriptions, as rows of the state.

A directory keeps them in its state file, the gateways of a cluster in a compacted topic.  Both are
tables of the same shape; nobody may be using either of them meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

from pentalog.broker.state import FILE_NAME
from pentalog.cli.output import Refused
from pentalog.clients.kafka import EARLIEST, LATEST, Cluster
from pentalog.clients.kafka.fetch import FetchFeed
from pentalog.clients.kafka.moving import group_members, seen
from pentalog.cluster.agreement import STATE_TOPIC
from pentalog.cluster.council import GROUP
from pentalog.cluster.state_rows import Change, Tables
from pentalog.cluster.state_topic import SHARED, TOPIC_SETTINGS
from pentalog.model import batch
from pentalog.model.pieces import OPENED_BYTES_MAX, Gone
from pentalog.model.types import Partition, Record

TABLES: Final = (
    "verifiers",
    "keys",
    "rules",
    "tokens",
    "quotas",
    "subscription_ids",
    "subscriptions",
    "subscription_windows",
    "named_producers",
    "shared_rosters",
    "topic_options",
    "aggregates",
    "aggregate_marks",
    "snapshots",
    "smart_modules",
)
"""Everything but topics, offsets, groups and transactions, which a cluster keeps by itself."""
SETTINGS: Final = "topic_settings"
OURS: Final = "subscription."
"""What settings of topics begin with that no cluster knows, so that its gateways keep them."""
TOLD: Final = {
    "users": "SELECT count(DISTINCT name) FROM verifiers",
    "rules": "SELECT count(*) FROM rules",
    "subscriptions": "SELECT count(*) FROM subscriptions",
}
AT: Final = Partition(STATE_TOPIC, 0)
_BATCH_BYTES: Final = 1 << 20


def count(tables: Tables) -> dict[str, int]:
    """What there is, for those who are told."""
    return {name: int(tables.rows(sql)[0][0]) for name, sql in TOLD.items()}


def renamed(tables: Tables, topic_ids: Mapping[str, UUID]) -> None:
    """The same topics have other ids where these rows go."""
    known = [name for (name,) in tables.rows("SELECT DISTINCT topic FROM subscriptions")]
    sql = "UPDATE subscriptions SET topic_id = ? WHERE topic = ?"
    tables.change([Change(sql, (topic_ids[name].bytes, name)) for name in known])


@contextmanager
def of_directory(data: Path) -> Iterator[Tables]:
    """The rows in a directory's state file."""
    tables = Tables()
    with closing(tables), _attached(tables, data):
        tables.change(Change(f"INSERT INTO {one} SELECT * FROM kept.{one}", ()) for one in TABLES)
        tables.change([_settings(f"INSERT INTO {SETTINGS} SELECT * FROM kept.{SETTINGS}")])
        yield tables


@contextmanager
def of_cluster(cluster: Cluster) -> Iterator[Tables]:
    """The rows in the gateways' topic; none if it is not there."""
    tables = Tables()
    with closing(tables):
        if cluster.topics([STATE_TOPIC]):
            for records in _read(cluster):
                tables.apply(records)
        yield tables


def to_directory(tables: Tables, data: Path) -> None:
    """Let the directory's state file have these rows instead of its own."""
    with _attached(tables, data):
        changes = [Change(f"DELETE FROM kept.{one}", ()) for one in TABLES]
        changes += [Change(f"INSERT INTO kept.{one} SELECT * FROM {one}", ()) for one in TABLES]
        changes.append(_settings(f"DELETE FROM kept.{SETTINGS}"))
        changes.append(_settings(f"INSERT INTO kept.{SETTINGS} SELECT * FROM {SETTINGS}"))
        tables.change(changes)
    with of_directory(data) as written:
        _compare(tables, written)


def change_cluster(cluster: Cluster, before: Tables, after: Tables) -> None:
    """Write the rows that differ, all or none; gateways that run take them over."""
    kept = {record.key: record for record in before.all(SHARED)}
    wanted = {record.key: record for record in after.all(SHARED)}
    changed = [Record(None, key) for key in kept if key not in wanted]
    changed += [record for key, record in wanted.items() if kept.get(key) != record]
    if changed:
        _write(cluster, [changed])


def to_cluster(tables: Tables, cluster: Cluster) -> None:
    """Let the gateways' topic have these rows instead of its own."""
    members = group_members(cluster, GROUP)
    if members:
        raise Refused(
            f"{members} gateways use this cluster and would not see what is moved: stop them first"
        )
    wanted = tables.all((*TABLES, SETTINGS))
    keys = {record.key for record in wanted}
    with of_cluster(cluster) as found:
        gone = [
            Record(None, one.key) for one in found.all((*TABLES, SETTINGS)) if one.key not in keys
        ]
    _write(cluster, _parts([*gone, *wanted]))
    with of_cluster(cluster) as written:
        _compare(tables, written)


def _write(cluster: Cluster, batches: Iterable[Sequence[Record]]) -> None:
    cluster.create_topic(STATE_TOPIC, 1, TOPIC_SETTINGS)
    now_ms = int(time.time() * 1000)
    for records in batches:
        cluster.produce(AT, bytes(batch.build(records, timestamp_ms=now_ms)))


def _settings(sql: str) -> Change:
    """The same, for the settings that gateways keep."""
    return Change(f"{sql} WHERE substr(name, 1, {len(OURS)}) = ?", (OURS,))


@contextmanager
def _attached(tables: Tables, data: Path) -> Iterator[None]:
    tables.rows("ATTACH DATABASE ? AS kept", (str(data / FILE_NAME),))
    try:
        yield
    finally:
        tables.rows("DETACH DATABASE kept")


def _compare(ours: Tables, theirs: Tables) -> None:
    if ours.all((*TABLES, SETTINGS)) != theirs.all((*TABLES, SETTINGS)):
        raise Refused(
            "users, rules or subscriptions are not the same on both sides: is the target in use? "
            "Stop whoever uses it and move again"
        )


def _parts(records: Sequence[Record]) -> Iterator[list[Record]]:
    """In order, as many at a time as one batch should hold."""
    part: list[Record] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record.key or b"") + len(record.value or b"")
        if size >= _BATCH_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _read(cluster: Cluster) -> Iterator[list[Record]]:
    first, end = (cluster.offsets({AT: when})[AT] for when in (EARLIEST, LATEST))
    if first >= end:
        return
    with closing(FetchFeed(cluster, AT, first, end)) as feed:
        while True:
            try:
                piece = feed.read()
            except Gone:
                continue  # compacted since
            if piece is None:
                return
            for _, one in seen(piece):
                found = batch.records_of(one, 0, bytes_max=OPENED_BYTES_MAX)
                yield [record for _, record in found if record.key is not None]
