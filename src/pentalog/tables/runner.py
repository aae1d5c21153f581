"""Pipelines in one long-lived driver: started, watched, paused, started again, and ended."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pentalog.tables import checkpoint, job
from pentalog.tables.checkpoint import Checkpoint
from pentalog.tables.pipeline import Pipeline, PipelineError
from pentalog.tables.positions import from_json
from pentalog.tables.quality import RuleBroken
from pentalog.tables.sinks import SinkRefused, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("pentalog.tables")
_LOOK_S: Final = 0.2
_STOP_S_MAX: Final = 60.0
_RETRY_S_MAX: Final = 60.0
_FINAL: Final = (SinkRefused.__name__, RuleBroken.__name__, PipelineError.__name__)
"""Refusals that another attempt would only repeat."""


class PipelineFailed(Exception):
    """A pipeline ended by itself; the text is Spark's, which holds ours."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"pipeline {name}: {text}")
        self.name = name
        self.text = text


@dataclass(slots=True)
class _Running:
    """One query of one pipeline."""

    pipeline: Pipeline
    name: str
    begin: Callable[[], StreamingQuery]
    kept: Checkpoint
    query: StreamingQuery | None = None
    batch: int = -1
    tries: int = 0
    again_s: float = 0.0
    done: bool = False
    progress: dict[str, Any] = field(default_factory=dict)


class Runner:
    """Runs until every pipeline has reached its end, or until it is told to stop."""

    def __init__(
        self,
        spark: SparkSession,
        pipelines: Iterable[Pipeline],
        *,
        once: bool,
        report: Callable[[Mapping[str, Any]], None],
        reason: Callable[[str], str] = str,
    ) -> None:
        """`report` is told of every batch; `reason` finds what matters in Spark's errors."""
        self._once = once
        self._report = report
        self._reason = reason
        self._stopping = False
        self._failed: list[PipelineFailed] = []
        self._all = [
            _Running(pipeline, name, begin, kept)
            for pipeline in pipelines
            for name, begin, kept in job.queries(spark, pipeline, once=once)
        ]

    def stop(self) -> None:
        """End after the batches that are running; may be called from a signal handler."""
        self._stopping = True

    def run(self) -> bool:
        """True if every pipeline came to its end; raises what ended the first that failed.

        That is raised last: one pipeline at fault keeps no other from its records.
        """
        finished = False
        try:
            while not self._stopping and not finished:
                for one in self._all:
                    self._look_after(one)
                finished = all(one.done for one in self._all)
                if not finished:
                    time.sleep(_LOOK_S)
        finally:
            for one in self._all:
                self._end(one)
        if self._failed:
            raise self._failed[0]
        return finished or not self._once

    def _look_after(self, one: _Running) -> None:
        if one.done:
            return
        paused = checkpoint.is_paused(one.pipeline.checkpoint)
        if one.query is None:
            if not paused and time.monotonic() >= one.again_s:
                self._begin(one)
            elif paused and self._once:
                _log.warning("pipeline %s is paused; resume it first", one.pipeline.name)
                one.done = True
            return
        # In this order, so that the last batch of one that has ended is told of as well.
        active = one.query.isActive
        self._take_progress(one)
        if not active:
            self._ended(one)
        elif paused:
            self._end(one)
            one.kept.set_progress({**one.progress, "pid": os.getpid(), "resting": True})

    def _begin(self, one: _Running) -> None:
        """One that has failed before may find its store, or its catalog, still away."""
        try:
            one.query = one.begin()
        except (Unreachable, OSError) as error:
            if one.tries == 0:
                raise
            self._put_off(one, str(error))

    def _ended(self, one: _Running) -> None:
        """A query came to its end by itself: at the present end, or by a failure."""
        assert one.query is not None
        error = one.query.exception()
        one.query = None
        if error is None:
            one.done = self._once
            return
        text = str(error)
        why = self._reason(text)
        if not self._once and not any(name in text for name in _FINAL):
            self._put_off(one, why)
            return
        self._failed.append(PipelineFailed(one.name, text))
        one.done = True
        one.kept.set_progress({**one.progress, "failed": why})
        if not all(other.done for other in self._all):
            _log.error("pipeline %s has stopped, the others go on: %s", one.name, why)

    def _put_off(self, one: _Running, why: str) -> None:
        one.tries += 1
        pause_s = min(_RETRY_S_MAX, 2.0 ** min(one.tries, 10))
        one.again_s = time.monotonic() + pause_s
        _log.warning("pipeline %s failed and starts again in %d s: %s", one.name, pause_s, why)

    def _end(self, one: _Running) -> None:
        """Stop between batches; one that takes too long is interrupted, which it survives."""
        query = one.query
        if query is None:
            return
        until_s = time.monotonic() + _STOP_S_MAX
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        query.stop()
        self._take_progress(one)
        one.query = None

    def _take_progress(self, one: _Running) -> None:
        assert one.query is not None
        last = one.query.lastProgress
        if last is None or last.batchId <= one.batch:
            return  # all that Spark keeps is much to fetch several times a second
        newest = one.query.recentProgress
        for progress in newest:
            found = json.loads(progress.json)
            if found["batchId"] > one.batch:
                one.batch, one.tries = found["batchId"], 0
                one.progress = _told(one.name, found, one.kept.told(one.batch))
                one.kept.set_progress({**one.progress, "pid": os.getpid()})
                self._report(one.progress)


def _told(name: str, progress: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
    """What people and programs want to know of a batch."""
    source = progress["sources"][0]
    reached = _positions(source.get("endOffset"))
    latest = _positions(source.get("latestOffset"))
    lag = sum(max(0, end - reached.get(at, 0)) for at, end in latest.items())
    # Of what tasks read by themselves Spark counts nothing.
    rows = counts.get("rows") or progress["numInputRows"]
    batch_ms = progress["durationMs"].get("triggerExecution", 0)
    rate = rows * 1000 / batch_ms if batch_ms else 0.0
    return {
        "pipeline": name,
        "batch": progress["batchId"],
        "time": progress["timestamp"],
        "rows": rows,
        "rows_per_second": round(rate, 1),
        "batch_ms": batch_ms,
        "lag": lag,
        "eta_s": round(lag / rate) if rate and lag else 0,
        **{key: counts[key] for key in ("dead_letters", "dropped", "versions") if key in counts},
    }


def _positions(text: Any) -> dict[Any, int]:
    value = json.loads(text) if isinstance(text, str) else text
    return dict(from_json(value)) if isinstance(value, dict) else {}
