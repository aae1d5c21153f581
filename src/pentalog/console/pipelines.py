"""Pipelines from topics into tables, as they stand: from their files and what lies beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_ENTRIES_SHOWN: Final = 50


class PipelinesNotShown(Exception):
    """Pipelines cannot be looked at here; the text says why and what to do."""


def describe(files: tuple[Path, ...]) -> list[dict[str, Any]]:
    """Every pipeline of these files: its state, tables, lag, last batch; slow, for a thread.

    A pipeline that cannot be described has `failure` instead.
    """
    if not files:
        raise PipelinesNotShown(
            "No pipeline file is named. Start the broker with --console-pipelines pipeline.toml,"
            " several with commas between them, to see what they do here."
        )
    try:
        from pentalog.tables import status
        from pentalog.tables.pipeline import PipelineError, load
        from pentalog.tables.storage import StorageError
    except ImportError as error:
        raise PipelinesNotShown(
            f"Tables need more than is installed ({error}); pip install 'pentalog[spark]'"
        ) from error
    found: list[dict[str, Any]] = []
    for file in files:
        try:
            pipelines = load(file)
        except (PipelineError, OSError) as error:
            found.append({"pipeline": file.name, "failure": str(error)})
            continue
        for name, pipeline in pipelines.items():
            try:
                one = status.describe(pipeline)
                one["topics"] = list(pipeline.topics) or [pipeline.pattern]
                ledger = ledger_of(pipeline)
                one["dead_letters"] = sum(
                    entry["rows"] for entry in ledger if entry["layer"] == "dead_letters"
                )
                one["ledger"] = ledger[:_ENTRIES_SHOWN]
            except (PipelineError, StorageError, OSError, ValueError) as error:
                one = {"pipeline": name, "failure": str(error)}
            found.append(one)
    return found


def ledger_of(pipeline: Any) -> list[Mapping[str, Any]]:
    """The commits of every layer that its tables remember, newest first."""
    from pentalog.tables.pipeline import LAYERS
    from pentalog.tables.sinks import open_table
    from pentalog.tables.sinks.state import name_of

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
