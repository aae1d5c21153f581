"""Pipelines from topics into tables, as they stand: by their files, or as they tell themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pentalog.clients.kafka import Cluster


class PipelinesNotShown(Exception):
    """Pipelines cannot be looked at here; the text says why and what to do."""


def describe(files: tuple[Path, ...]) -> list[dict[str, Any]]:
    """Every pipeline of these files: its state, tables, lag, last batch; slow, for a thread.

    A pipeline that cannot be described has `failure` instead.
    """
    try:
        from pentalog.tables import status
        from pentalog.tables.pipeline import PipelineError, load
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
                found.append(status.describe_whole(pipeline))
            except status.TROUBLES as error:
                found.append({"pipeline": name, "failure": str(error)})
    return found


def announced(cluster: Cluster) -> list[dict[str, Any]]:
    """Every pipeline that has told the broker of itself."""
    try:
        from pentalog.tables import announcing
    except ImportError as error:
        raise PipelinesNotShown(
            f"Tables need more than is installed ({error}); pip install 'pentalog[spark]'"
        ) from error
    return announcing.announced(cluster)
