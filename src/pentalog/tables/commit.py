"""The one place where a batch becomes part of a table: all of it, once, or not at all.

A table accepts a batch only if the batch continues the offsets the table covers.  That is
looked at before anything is written, and again under the commit: of several drivers with the
same batch one succeeds, and the others find it done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from pentalog.model.types import Partition
from pentalog.tables.sinks import Busy, File, Range, Sink, SinkRefused, State, Step
from pentalog.tables.steps import reached

_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.05

T = TypeVar("T")
StepOf = Callable[[State], Step | None]


def lacking(
    state: State, query: str, batch: int, ranges: Mapping[Partition, Range], *, table: str
) -> dict[Partition, Range]:
    """What of `ranges` the table does not hold yet; nothing if the batch is there already."""
    found: dict[Partition, Range] = {}
    for at, wanted in ranges.items():
        end = state.end(at)
        if end is None:
            found[at] = wanted
        elif wanted.end > end:
            if wanted.start > end:
                raise SinkRefused(
                    f"{table}: batch {batch} begins at offset {wanted.start} of {at}, but the"
                    f" table ends at {end}; remove the checkpoint, and the pipeline goes on from"
                    " where the table ends"
                )
            found[at] = Range(max(wanted.start, end), wanted.end)
    last = state.batches.get(query)
    if found and last is not None and batch <= last:
        raise SinkRefused(
            f"{table}: batch {batch} is recorded, but not with these offsets:"
            f" {_shown(ranges)} against {_shown(state.covered)}; this checkpoint is not of this"
            " table, remove it"
        )
    return found


def settle(
    sink: Sink,
    query: str,
    batch: int,
    ranges: Mapping[Partition, Range],
    wanted: Mapping[Partition, Range],
    files: Sequence[File],
    dropped: Mapping[Partition, int] | None = None,
) -> bool:
    """Commit a batch whose files hold the rows of `wanted`; False if another driver has done so."""
    table = sink.at.uri

    def step(state: State) -> Step | None:
        needed = lacking(state, query, batch, ranges, table=table)
        if not needed:
            return None
        if needed != wanted:
            raise SinkRefused(
                f"{table}: another driver writes this table: batch {batch} was prepared for"
                f" {_shown(wanted)}, now {_shown(needed)} is missing"
            )
        return Step(
            query,
            batch,
            needed,
            {at: _grown(state, at, one) for at, one in needed.items()},
            {at: state.dropped.get(at, 0) + count for at, count in (dropped or {}).items()},
        )

    reached(f"before-commit:{sink.at.layer}")
    done = commit(sink, query, ranges, files, step)
    if done:
        reached(f"after-commit:{sink.at.layer}")
    return done


def commit(
    sink: Sink,
    query: str,
    partitions: Iterable[Partition],
    files: Sequence[File],
    step_of: StepOf,
    *,
    write: Callable[[Sequence[File], Step], None] | None = None,
) -> bool:
    """Look, decide, commit; look again whenever another commit came between.

    `step_of` says what to record after a look at the state, or that there is nothing to do.
    """
    chosen = write or (sink.merge if sink.at.key else sink.append)

    def once() -> bool:
        sink.announce(query, partitions)
        step = step_of(sink.state())
        if step is not None:
            chosen(files, step)
        return step is not None

    done = insisting(sink, once)
    # Of a merge, and of a batch that was there already, no row refers to the files.
    if not done or (sink.at.key and write is None):
        sink.discard(files)
    return done


def insisting(sink: Sink, once: Callable[[], T]) -> T:
    """Try again while other commits come first."""
    for attempt in range(_ATTEMPTS):
        try:
            return once()
        except Busy:
            time.sleep(_PAUSE_S * (attempt + 1))
    raise SinkRefused(f"{sink.at.uri}: other writers came first {_ATTEMPTS} times; try again later")


def _grown(state: State, at: Partition, added: Range) -> Range:
    covered = state.covered.get(at)
    return Range(covered.start, added.end) if covered else added


def _shown(ranges: Mapping[Partition, Range]) -> str:
    return ", ".join(f"{at} {one.start}..{one.end}" for at, one in sorted(ranges.items()))
