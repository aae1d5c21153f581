"""What was measured lately, kept in memory: rates by door, lag by group, the broker's metrics."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from pentalog.console.observed import Sample

SAMPLES_MAX: Final = 900
GROUPS_MAX: Final = 500
SERIES_MAX: Final = 2_000

COUNTERS: Final = ("received_records", "sent_records", "received_bytes", "sent_bytes", "requests")


class Point(NamedTuple):
    time_ms: int
    value: float


class DoorRates(NamedTuple):
    """Per second, between two looks at the broker."""

    time_ms: int
    connections: int
    rates: Mapping[str, float]


class Lags:
    """By group or pipeline."""

    def __init__(self) -> None:
        self._points: OrderedDict[str, deque[Point]] = OrderedDict()

    def note(self, name: str, time_ms: int, lag: float) -> list[Point]:
        """Remember a lag; returns those known so far."""
        points = self._points.setdefault(name, deque(maxlen=SAMPLES_MAX))
        self._points.move_to_end(name)
        if not points or time_ms - points[-1].time_ms >= 500:
            points.append(Point(time_ms, lag))
        while len(self._points) > GROUPS_MAX:
            self._points.popitem(last=False)
        return list(points)


class History:
    def __init__(self, lags: Lags) -> None:
        self.doors: dict[str, deque[DoorRates]] = {}
        self._lags = lags
        self.series: OrderedDict[tuple[str, str], deque[Point]] = OrderedDict()
        self._before: Mapping[str, Any] | None = None
        self.listeners: dict[str, Mapping[str, str]] = {}
        self.started_ms = 0

    def note_rates(self, answer: Mapping[str, Any]) -> None:
        """An answer of the broker; two in a row make a rate."""
        before, self._before = self._before, answer
        self.started_ms = int(answer["started_ms"])
        for door in answer["doors"]:
            self.listeners[door["door"]] = door["listeners"]
        if before is None or before["started_ms"] != answer["started_ms"]:
            return
        seconds = (answer["time_ms"] - before["time_ms"]) / 1000
        if seconds <= 0:
            return
        was = {door["door"]: door for door in before["doors"]}
        for door in answer["doors"]:
            last = was.get(door["door"], {})
            rates = {
                name: max(0.0, (door[name] - last.get(name, 0)) / seconds) for name in COUNTERS
            }
            points = self.doors.setdefault(door["door"], deque(maxlen=SAMPLES_MAX))
            points.append(DoorRates(int(answer["time_ms"]), int(door["connections"]), rates))

    def note_metrics(self, time_ms: int, samples: Sequence[Sample]) -> None:
        """Every series of the broker, but for the inner bounds of histograms."""
        lags: dict[str, float] = {}
        for sample in samples:
            if sample.name.endswith("_bucket"):
                continue
            if sample.name == "pentalog_group_lag_records" and "group" in sample.labels:
                name = sample.labels["group"]
                lags[name] = lags.get(name, 0) + sample.value
            labels = ", ".join(f"{name} {value}" for name, value in sorted(sample.labels.items()))
            points = self.series.setdefault((sample.name, labels), deque(maxlen=SAMPLES_MAX))
            self.series.move_to_end((sample.name, labels))
            points.append(Point(time_ms, sample.value))
        for name, lag in lags.items():
            self._lags.note(f"group {name}", time_ms, lag)
        while len(self.series) > SERIES_MAX:
            self.series.popitem(last=False)


def per_second(points: Iterable[Point]) -> list[Point]:
    """A total that only grows, as a rate."""
    found = []
    for before, after in pairwise(points):
        seconds = (after.time_ms - before.time_ms) / 1000
        if seconds > 0:
            found.append(Point(after.time_ms, max(0.0, after.value - before.value) / seconds))
    return found
