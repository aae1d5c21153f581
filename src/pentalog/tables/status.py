"""How far pipelines are, from what lies beside their tables: without Spark, while they run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from pentalog.clients.kafka import KafkaFailed
from pentalog.log.reader import DirectoryUnreadable
from pentalog.security_settings import mask_urls
from pentalog.tables import bronze, checkpoint, group, sources
from pentalog.tables.checkpoint import INGEST, Checkpoint
from pentalog.tables.options import OptionRefused
from pentalog.tables.pipeline import LAYERS, Pipeline, PipelineError
from pentalog.tables.sinks import SinkRefused, open_table
from pentalog.tables.sinks.state import name_of
from pentalog.tables.storage import StorageError

TROUBLES: Final = (PipelineError, StorageError, SinkRefused, OptionRefused, OSError, ValueError)
"""What may come of looking at tables."""
_ENTRIES_SHOWN: Final = 50


def state_of(pipeline: Pipeline) -> str:
    """`paused`, or `pausing` while a batch still runs; `running`, `stopped`, or `new`."""
    progress = Checkpoint(pipeline.checkpoint, INGEST).progress()
    number = int(progress.get("pid", 0))
    alive = bool(number) and _alive(number)
    if checkpoint.is_paused(pipeline.checkpoint):
        return "pausing" if alive and not progress.get("resting") else "paused"
    if alive:
        return "running"
    return "stopped" if open_table(pipeline.table("bronze")).exists() else "new"


def describe(pipeline: Pipeline) -> dict[str, Any]:
    """What is in the tables, how far the log is ahead, and what the last batch was like."""
    tables: dict[str, dict[str, Any]] = {}
    reached: dict[Any, int] = {}
    for layer in pipeline.layers:
        sink = open_table(pipeline.table(layer))
        covered = sink.state().covered if sink.exists() else {}
        tables[layer] = {
            "uri": sink.at.uri,
            "covered": {name_of(at): [one.start, one.end] for at, one in sorted(covered.items())},
        }
        if sink.exists():
            tables[layer]["files"] = len(sink.files())
            ledger = sink.ledger()
            tables[layer]["commits"] = len(ledger)
            tables[layer]["last_commit_ms"] = ledger[-1].time_ms if ledger else 0
        if layer == "bronze":
            reached = {at: one.end for at, one in covered.items()}
    why = sources.trouble(pipeline.servers, pipeline.data)
    return {
        "pipeline": pipeline.name,
        "state": state_of(pipeline),
        "into": mask_urls(pipeline.into),
        "tables": tables,
        "lag": {"unknown": why} if why else _lag(pipeline, reached),
        "group": _group(pipeline, why),
        "last_batch": Checkpoint(pipeline.checkpoint, INGEST).progress(),
    }


def describe_whole(pipeline: Pipeline) -> dict[str, Any]:
    """The same with its topics, its dead letters and the newest entries of its ledger."""
    found = describe(pipeline)
    found["topics"] = list(pipeline.topics) or [pipeline.pattern]
    ledger = ledger_of(pipeline)
    found["dead_letters"] = sum(
        entry["rows"] for entry in ledger if entry["layer"] == "dead_letters"
    )
    found["ledger"] = ledger[:_ENTRIES_SHOWN]
    return found


def ledger_of(pipeline: Pipeline) -> list[Mapping[str, Any]]:
    """The commits of every layer that its tables remember, newest first."""
    found: list[dict[str, Any]] = []
    for layer in LAYERS:
        sink = open_table(pipeline.table(layer))
        if not sink.exists():
            continue
        for entry in sink.ledger():
            ranges = ", ".join(
                f"{name_of(at)} {one.start}..{one.end}" for at, one in sorted(entry.ranges.items())
            )
            found.append(
                {
                    "layer": layer,
                    "time_ms": entry.time_ms,
                    "batch": entry.batch,
                    "rows": entry.rows,
                    "ranges": ranges,
                }
            )
    found.sort(key=lambda one: one["time_ms"], reverse=True)
    return list(found)


def _lag(pipeline: Pipeline, reached: dict[Any, int]) -> dict[str, Any]:
    try:
        ends, starts = bronze.ends(pipeline), bronze.beginning(pipeline)
    except (KafkaFailed, DirectoryUnreadable, OptionRefused) as error:
        return {"unknown": str(error)}
    behind = {at: max(0, end - reached.get(at, starts.get(at, 0))) for at, end in ends.items()}
    return {"records": sum(behind.values()), "by": {name_of(at): one for at, one in behind.items()}}


def _group(pipeline: Pipeline, why: str) -> dict[str, Any]:
    """What Kafka's tools are shown of it; `why` it cannot be asked for, if it cannot."""
    if not pipeline.servers:
        return {}
    if why:
        return {"name": pipeline.group, "unknown": why}
    try:
        shown = group.shown(pipeline)
    except KafkaFailed as error:
        return {"name": pipeline.group, "unknown": str(error)}
    offsets = {name_of(at): offset for at, offset in sorted(shown.items())}
    return {"name": pipeline.group, "offsets": offsets}


def _alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
