"""The text of MetricsFetch: the original's names, with values that count.

What passes through this door is counted here, what the log does for all doors by the broker.
Names of the original that nothing here counts are left out rather than shown as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pentalog.broker.security import Kind
from pentalog.metrics import Metrics
from pentalog.model.errors import BrokerError
from pentalog.protocols.rustlog.door import Door
from pentalog.session import Context

_PERCENTILES: Final = (50, 95, 99)
_LAGS_MAX: Final = 10_000


def text(door: Door, context: Context) -> str:
    lines: list[str] = []
    for name, kind, meaning, value in _values(door, context.metrics):
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value}"]
    lines.append("# HELP consumer_lag Records between a group's committed offset and the end.")
    lines.append("# TYPE consumer_lag gauge")
    lines += _lags(context)
    return "\n".join(lines) + "\n"


def _values(door: Door, metrics: Metrics) -> Iterator[tuple[str, str, str, int]]:
    counter, gauge = "counter", "gauge"
    yield "messages_produced_total", counter, "Records produced here.", door.produced
    yield "messages_fetched_total", counter, "Records fetched here.", door.fetched
    yield "bytes_in_total", counter, "Bytes of requests.", door.received_bytes
    yield "bytes_out_total", counter, "Bytes of replies.", door.sent_bytes
    yield "active_connections", gauge, "Connections open here.", door.connections
    meaning = "Times a connection was not served until it took its replies."
    yield "slow_consumers_total", counter, meaning, door.stalls
    meaning = "Segments deleted, through any door's topics."
    yield "segments_deleted_total", counter, meaning, metrics.segments_deleted
    meaning = "Segments compacted, of any door's topics."
    yield "compaction_segments_rewritten_total", counter, meaning, metrics.segments_compacted
    kinds = (("fetch", door.fetch_latencies), ("produce", door.produce_latencies))
    for kind, latencies in kinds:
        for percent, value in zip(
            _PERCENTILES, latencies.percentiles_ns(_PERCENTILES), strict=True
        ):
            name = f"{kind}_latency_ns_p{percent}"
            yield name, gauge, f"Nanoseconds a {kind} took, {percent} % of the latest.", value


def _lags(context: Context) -> Iterator[str]:
    broker, access = context.broker, context.access
    left = _LAGS_MAX
    for group in sorted(broker.groups.offsets.groups()):
        if not access.sees(Kind.GROUP, group):
            continue
        for at, committed in sorted(broker.groups.offsets.committed(group).items()):
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
            labels = (
                f'topic="{_escaped(at.topic)}",partition="{at.index}",group="{_escaped(group)}"'
            )
            yield f"consumer_lag{{{labels}}} {max(0, end - committed.offset)}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
