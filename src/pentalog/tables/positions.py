"""Places in topics: what options name, what a checkpoint keeps, and how far one trigger goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pentalog.model.types import Offset, Partition
from pentalog.tables.options import OptionRefused, SourceOptions
from pentalog.tables.origins import Origin

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Positions = dict[Partition, Offset]


class LostRecords(Exception):
    """Records that were to be read are gone; the text has the exact range."""

    def __init__(self, at: Partition, first: Offset, behind: Offset, why: str) -> None:
        super().__init__(
            f"{at}: offsets {first}..{behind - 1} are lost ({why}); nothing was skipped. Start "
            f"anew behind them, or set failOnDataLoss=false to go on without them"
        )
        self.at = at
        self.first = first
        self.behind = behind


def to_json(positions: Mapping[Partition, Offset]) -> dict[str, int]:
    """As Spark's checkpoint keeps them: `{"topic/partition": offset}`."""
    return {f"{at.topic}/{at.index}": offset for at, offset in sorted(positions.items())}


def from_json(kept: Mapping[str, int]) -> Positions:
    found: Positions = {}
    for key, offset in kept.items():
        topic, _, index = key.rpartition("/")
        found[Partition(topic, int(index))] = int(offset)
    return found


def resolve(
    origin: Origin, partitions: list[Partition], options: SourceOptions, *, ending: bool
) -> Positions:
    """Where to begin, or where to end, in each partition."""
    asked = _asked(partitions, options, ending=ending)
    earliest = [at for at, where in asked.items() if where == EARLIEST]
    latest = [at for at, where in asked.items() if where == LATEST]
    times = {at: where.ms for at, where in asked.items() if isinstance(where, _Time)}
    found = origin.starts(earliest) | origin.ends(latest) | origin.at_time(times)
    given = {at: where for at, where in asked.items() if isinstance(where, int)}
    return {at: found[at] if at in found else given[at] for at in partitions}


class _Time:
    def __init__(self, ms: int) -> None:
        self.ms = ms


_Where = int | str | _Time


def _asked(
    partitions: list[Partition], options: SourceOptions, *, ending: bool
) -> dict[Partition, _Where]:
    name, text = ("ending", options.ending) if ending else ("starting", options.starting)
    time_ms = options.ending_timestamp_ms if ending else options.starting_timestamp_ms
    if time_ms is not None:
        return dict.fromkeys(partitions, _Time(time_ms))
    if not text.startswith("{"):
        return dict.fromkeys(partitions, _where(name, text))
    try:
        given = json.loads(text)
    except ValueError as error:
        raise OptionRefused(f"{name} = {text!r}: not JSON ({error})") from error
    found: dict[Partition, _Where] = dict.fromkeys(partitions, LATEST if ending else EARLIEST)
    for topic, inner in given.items():
        places = inner if isinstance(inner, dict) else {topic.rpartition("/")[2]: inner}
        title = topic if isinstance(inner, dict) else topic.rpartition("/")[0]
        for index, where in places.items():
            at = Partition(title, int(index)) if str(index).isdecimal() else None
            if at not in found:
                raise OptionRefused(f"{name}: {title}/{index} is not among the partitions read")
            found[at] = _where(name, where)
    return found


def _where(name: str, where: Any) -> _Where:
    if isinstance(where, int) and not isinstance(where, bool) and where >= 0:
        return where
    if isinstance(where, str):
        if where.lower() in (EARLIEST, LATEST):
            return where.lower()
        try:
            moment = datetime.fromisoformat(where)
        except ValueError:
            pass
        else:
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return _Time(int(moment.timestamp() * 1000))
    raise OptionRefused(
        f"{name} = {where!r}: accepted are earliest, latest, an ISO 8601 time such as"
        " 2026-01-31T08:00:00Z, or JSON such as {'orders': {'0': 42}}"
    )


def check_start(at: Partition, first: Offset, start: Offset, *, fail: bool) -> Offset:
    """Where reading can begin; refused if something before was to be read and is gone."""
    if first >= start:
        return first
    if fail:
        raise LostRecords(at, first, start, f"the log starts at {start}")
    return start


def shares(lags: Mapping[Partition, int], rows_max: int) -> dict[Partition, int]:
    """Divide a number of rows by how much each partition has waiting; together never more."""
    waiting = {at: lag for at, lag in lags.items() if lag > 0}
    total = sum(waiting.values())
    if total <= rows_max:
        return waiting
    exact = {at: rows_max * lag / total for at, lag in waiting.items()}
    found = {at: int(share) for at, share in exact.items()}
    by_rest = sorted(exact, key=lambda at: (found[at] - exact[at], at))
    for at in by_rest[: rows_max - sum(found.values())]:
        found[at] += 1
    return found
