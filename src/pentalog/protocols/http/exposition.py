"""Everything the broker counts, in Prometheus' text format 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from pentalog.metrics import LABEL_CHARACTERS_MAX, Histogram, Metrics, label_value
from pentalog.model.errors import BrokerError
from pentalog.model.types import Partition
from pentalog.observation import DoorView, Observation
from pentalog.session import Context

TOPICS_MAX: Final = 200
PARTITIONS_MAX: Final = 2000
"""Topics are told of one by one until there have been as many of them, or of their partitions."""
GROUPS_MAX: Final = 200
"""Groups of a cluster that are asked for at once: each takes a request."""
LAGS_MAX: Final = 1000
"""Group, topic and partition, told of one by one."""


class Family(NamedTuple):
    """One metric."""

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()


def _counters() -> dict[str, Family]:
    meanings = {
        "connections_opened": "Connections accepted.",
        "connections_closed": "Connections ended, by either side.",
        "connections_refused": "Connections turned away by a limit.",
        "appended_batches": "Batches written.",
        "appended_records": "Records written.",
        "appended_bytes": "Bytes of batches written.",
        "duplicate_batches": "Repetitions of idempotent producers that were recognised.",
        "read_bytes": "Bytes of batches given to readers.",
        "cold_reads": "Reads that had to wait for the disk.",
        "syncs": "Times the disk was asked to confirm.",
        "journal_bytes": "Bytes written to the journal.",
        "damaged_batches": "Stretches of a segment that failed their checksum.",
        "unreadable_batches": "Batches that readers skipped because their records are malformed.",
        "unshown_records": "Records skipped by readers whose protocol cannot hold them.",
        "segments_deleted": "Segments removed by retention.",
        "segments_deleted_bytes": "Bytes of the segments removed by retention.",
        "segments_deleted_unread": "Segments given up though a reader had a lease on them.",
        "retention_walks_in_vain": "Times retention found nothing to delete.",
        "compactions": "Compactions of partitions.",
        "segments_compacted": "Segments rewritten by compaction.",
        "segments_compacted_bytes": "Bytes of the segments that took their place.",
        "segments_not_compacted": "Segments a compaction left as they were.",
        "records_compacted": "Records dropped because a newer one has their key.",
        "damaged_checkpoints": "Checkpoints found damaged at a start.",
        "journal_entries_rejected": "Entries of the journal that could not be applied at a start.",
        "throttles": "Times a client was held back by a quota.",
        "subscriptions_opened": "Subscriptions made.",
        "subscriptions_expired": "Subscriptions closed because nobody used them.",
        "deliveries": "Records delivered to subscriptions.",
        "redeliveries": "Of these, those delivered before.",
        "acknowledgements": "Deliveries acknowledged.",
        "dead_letters": "Records a subscription gave up and set aside.",
    }
    return {
        field: Family(f"pentalog_{field}_total", "counter", meaning)
        for field, meaning in meanings.items()
    }


def _per_door() -> dict[str, Family]:
    meanings = {
        "received_bytes": "Bytes read from clients.",
        "sent_bytes": "Bytes written to clients.",
        "requests": "Requests served.",
        "request_errors": "Requests answered with an error, or by hanging up.",
        "received_records": "Records that came in and were written.",
        "sent_records": "Records that were given to readers.",
    }
    return {
        field: Family(f"pentalog_door_{field}_total", "counter", meaning, ("door",))
        for field, meaning in meanings.items()
    }


COUNTERS: Final[Mapping[str, Family]] = _counters()
"""By the field of `Metrics` each shows."""
PER_DOOR: Final[Mapping[str, Family]] = _per_door()
"""By the field of `Traffic` each shows."""
HISTOGRAMS: Final[Mapping[str, Family]] = {
    "sync_seconds": Family(
        "pentalog_sync_seconds", "histogram", "How long the disk took to confirm."
    ),
    "loop_delay_seconds": Family(
        "pentalog_loop_delay_seconds", "histogram", "How late the event loop came to a timer."
    ),
}
"""By the field of `Metrics` each shows."""
HELD: Final = Family(
    "pentalog_retention_held_bytes",
    "gauge",
    "Bytes kept at present only because a reader has a lease on them.",
)
CONNECTIONS: Final = Family(
    "pentalog_connections", "gauge", "Connections that are open.", ("door",)
)
START: Final = Family("pentalog_start_time_seconds", "gauge", "When the broker started.")
READY: Final = Family("pentalog_ready", "gauge", "1 if every listener is open.")
DISK_TOTAL: Final = Family("pentalog_disk_total_bytes", "gauge", "Size of the disk.")
DISK_USABLE: Final = Family(
    "pentalog_disk_usable_bytes", "gauge", "What may still be written to the disk."
)
TOPICS: Final = Family("pentalog_topics", "gauge", "Topics there are.")
TOPIC_RECORDS: Final = Family(
    "pentalog_topic_records_total",
    "counter",
    "Offsets given to records of the topic since it was made.",
    ("topic",),
)
TOPIC_BYTES: Final = Family(
    "pentalog_topic_appended_bytes_total",
    "counter",
    "Bytes of batches written to the topic.",
    ("topic",),
)
TOPIC_SIZE: Final = Family(
    "pentalog_topic_size_bytes", "gauge", "Bytes of the topic's segments on disk.", ("topic",)
)
LAG: Final = Family(
    "pentalog_group_lag_records",
    "gauge",
    "Records between a group's committed offset and the end.",
    ("group", "topic", "partition"),
)
LEFT_OUT: Final = Family(
    "pentalog_series_left_out",
    "gauge",
    "Topics, and groups, that are too many to be told of.",
    ("of",),
)
FAMILIES: Final[tuple[Family, ...]] = (
    *COUNTERS.values(),
    *PER_DOOR.values(),
    *HISTOGRAMS.values(),
    HELD, CONNECTIONS, START, READY, DISK_TOTAL, DISK_USABLE, TOPICS, TOPIC_RECORDS, TOPIC_BYTES,
    TOPIC_SIZE, LAG, LEFT_OUT,
)  # fmt: skip


def text(context: Context, observation: Observation, *, surveyed: bool = True) -> str:
    """Topics and groups are left out if they could not be asked for."""
    lines: list[str] = []
    metrics = context.totals
    for field, family in COUNTERS.items():
        lines += _family(family, [((), getattr(metrics, field))])
    lines += _family(HELD, [((), metrics.retention_held_bytes)])
    lines += _doors(observation.doors())
    lines += _histograms(metrics)
    lines += _family(START, [((), observation.started_ms / 1000)])
    lines += _family(READY, [((), int(observation.ready))])
    if surveyed:
        lines += _disk(context)
        lines += _owned(context)
    return "\n".join(lines) + "\n"


def _doors(views: Iterable[DoorView]) -> Iterator[str]:
    views = list(views)
    yield from _family(CONNECTIONS, [((view.door,), view.connections) for view in views])
    for field, family in PER_DOOR.items():
        yield from _family(family, [((view.door,), getattr(view.traffic, field)) for view in views])


def _histograms(metrics: Metrics) -> Iterator[str]:
    for field, family in HISTOGRAMS.items():
        histogram: Histogram = getattr(metrics, field)
        yield from _opening(family)
        for bound, count in histogram.cumulative():
            yield f'{family.name}_bucket{{le="{bound}"}} {count}'
        yield f'{family.name}_bucket{{le="+Inf"}} {histogram.count}'
        yield f"{family.name}_sum {histogram.sum_s}"
        yield f"{family.name}_count {histogram.count}"


def _disk(context: Context) -> Iterator[str]:
    try:
        volume = context.broker.log.volume()
    except BrokerError:
        return  # what cannot be told is not told
    yield from _family(DISK_TOTAL, [((), volume.total_bytes)])
    yield from _family(DISK_USABLE, [((), volume.usable_bytes)])


def _owned(context: Context) -> Iterator[str]:
    """What is not counted but asked of its owners now."""
    log = context.broker.log
    every = context.broker.topics.all()
    told = (topic for topic in every if len(topic.name) <= LABEL_CHARACTERS_MAX)
    topics = sorted(told, key=lambda topic: topic.name)
    yield from _family(TOPICS, [((), len(every))])
    records, appended, sizes = [], [], []
    partitions_left = PARTITIONS_MAX
    shown = 0
    for topic in topics[:TOPICS_MAX]:
        partitions_left -= topic.partitions
        if partitions_left < 0:
            break
        shown += 1
        parts = [Partition(topic.name, index) for index in range(topic.partitions)]
        try:
            records.append(((topic.name,), sum(log.marks(at).end for at in parts)))
            appended.append(((topic.name,), sum(log.appended_bytes(at) for at in parts)))
            sizes.append(((topic.name,), sum(log.size_bytes(at) for at in parts)))
        except BrokerError:
            continue  # a partition whose disk failed
    yield from _family(TOPIC_RECORDS, records)
    yield from _family(TOPIC_BYTES, appended)
    yield from _family(TOPIC_SIZE, sizes)
    lags, groups_left = _lags(context)
    yield from _family(LAG, lags)
    left = [(("topics",), len(every) - shown), (("groups",), groups_left)]
    yield from _family(LEFT_OUT, left)


def _lags(context: Context) -> tuple[list[tuple[tuple[str, ...], int]], int]:
    """How far groups are behind, and how many groups there was no room for."""
    log, offsets = context.broker.log, context.broker.groups.offsets
    lags: list[tuple[tuple[str, ...], int]] = []
    groups = tuple(offsets.names())
    all_known = context.broker.knowledge.current
    known = {topic.name for topic in context.broker.topics.all()[:TOPICS_MAX]}
    for number, group in enumerate(groups):
        room = LAGS_MAX - len(lags) + 1
        committed = {
            at: place
            for at, place in islice(offsets.walk(group), room)
            if len(group) + len(at.topic) <= LABEL_CHARACTERS_MAX
        }
        if len(committed) == room or (number == GROUPS_MAX and not all_known):
            return lags, len(groups) - number
        for at, place in sorted(committed.items()):
            if at.topic not in known and not all_known:
                continue  # where it ends was not asked for
            try:
                end = log.marks(at).end
            except BrokerError:
                continue  # committed for a partition that is not there
            lags.append(((group, at.topic, str(at.index)), max(0, end - place.offset)))
    return lags, 0


def _family(family: Family, values: Iterable[tuple[tuple[str, ...], int | float]]) -> Iterator[str]:
    yield from _opening(family)
    for labels, value in values:
        named = ",".join(
            f'{name}="{label_value(label)}"'
            for name, label in zip(family.labels, labels, strict=True)
        )
        yield f"{family.name}{{{named}}} {value}" if named else f"{family.name} {value}"


def _opening(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.meaning}"
    yield f"# TYPE {family.name} {family.kind}"
