"""The text of MetricsFetch: the original's names, with values that count.

What passes through this door is counted here, what the log does for all doors by the broker.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from pentalog.broker.security import Kind
from pentalog.metrics import LABEL_CHARACTERS_MAX, Metrics, label_value
from pentalog.model.errors import BrokerError
from pentalog.protocols.rustlog.door import Door
from pentalog.session import Context

_PERCENTILES: Final = (50, 95, 99)
_LAGS_MAX: Final = 10_000


def text(door: Door, context: Context) -> Generator[None, None, str]:
    """The text, made in steps."""
    lines: list[str] = []
    for name, kind, meaning, value in _values(door, context.totals):
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value}"]
    lines.append("# HELP consumer_lag Records between a group's committed offset and the end.")
    lines.append("# TYPE consumer_lag gauge")
    for line in _lags(context):
        if line:
            lines.append(line)
        yield
    return "\n".join(lines) + "\n"


def _values(door: Door, metrics: Metrics) -> Iterator[tuple[str, str, str, int]]:
    counter, gauge = "counter", "gauge"
    yield "messages_produced_total", counter, "Records produced here.", door.produced
    yield "messages_fetched_total", counter, "Records fetched here.", door.fetched
    yield "bytes_in_total", counter, "Bytes of requests.", door.received_bytes
    yield "bytes_out_total", counter, "Bytes of replies.", door.sent_bytes
    yield "active_connections", gauge, "Connections open here.", door.connections
    meaning = "Times a client of any door was held back by a quota."
    yield "throttled_consumers_total", counter, meaning, metrics.throttles
    meaning = "Times a connection was not served until it took its replies."
    yield "slow_consumers_total", counter, meaning, door.stalls
    meaning = "Segments deleted, through any door's topics."
    yield "segments_deleted_total", counter, meaning, metrics.segments_deleted
    meaning = "Bytes of the segments deleted."
    yield "bytes_reclaimed_total", counter, meaning, metrics.segments_deleted_bytes
    meaning = "Compactions of partitions, of any door's topics."
    yield "compaction_runs_total", counter, meaning, metrics.compactions
    meaning = "Segments a compaction left as they were."
    yield "compaction_skipped_segments_total", counter, meaning, metrics.segments_not_compacted
    meaning = "Times retention found nothing to delete."
    yield "retention_noop_runs_total", counter, meaning, metrics.retention_walks_in_vain
    meaning = "Checkpoints found damaged at the start."
    yield "checkpoint_corruption_total", counter, meaning, metrics.damaged_checkpoints
    meaning = "Segments compacted, of any door's topics."
    yield "compaction_segments_rewritten_total", counter, meaning, metrics.segments_compacted
    meaning = "Records dropped because a newer one has their key."
    yield "compaction_records_dropped_total", counter, meaning, metrics.records_compacted
    meaning = "Bytes of the segments that compactions wrote."
    yield "compaction_bytes_rewritten_total", counter, meaning, metrics.segments_compacted_bytes
    kinds = (("fetch", door.fetch_latencies), ("produce", door.produce_latencies))
    for kind, latencies in kinds:
        for percent, value in zip(
            _PERCENTILES, latencies.percentiles_ns(_PERCENTILES), strict=True
        ):
            name = f"{kind}_latency_ns_p{percent}"
            yield name, gauge, f"Nanoseconds a {kind} took, {percent} % of the latest.", value


def _lags(context: Context) -> Iterator[str]:
    """A line for each group and partition; an empty one for each that is not told."""
    broker, access = context.broker, context.access
    left = _LAGS_MAX
    offsets = broker.groups.offsets
    for group in offsets.names():
        yield ""
        if not access.sees(Kind.GROUP, group):
            continue
        for at, committed in offsets.walk(group):
            yield ""
            if len(group) + len(at.topic) > LABEL_CHARACTERS_MAX:
                continue
            if not access.sees(Kind.TOPIC, at.topic):
                continue
            try:
                end = broker.log.marks(at).end
            except BrokerError:
                continue  # committed for a partition that is not there
            if left == 0:
                yield f"# more than {_LAGS_MAX} are not shown"
                return
            left -= 1
            topic, name = label_value(at.topic), label_value(group)
            labels = f'topic="{topic}",partition="{at.index}",group="{name}"'
            yield f"consumer_lag{{{labels}}} {max(0, end - committed.offset)}"
