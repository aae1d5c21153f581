"""What lies beside a pipeline's tables: Spark's progress, ours, and what operators asked for.

| file | written by | holds |
|---|---|---|
| `<query>/offsets/<batch>` | Spark, before the batch runs | where the batch ends |
| `<query>/metadata` | Spark | the id of the query |
| `<query>.start.json` | us, before the first batch | where the first batch begins |
| `<query>.floor.json` | `rebuild`, for gold | windows that are not to be written again |
| `<query>.progress.json` | us, after every batch | rate, lag and times, for `status` |
| `replay-dlq.json` | `replay-dlq`, until it is done | what it is about to commit |
| `control.json` | `pause` and `resume` | what the runner should do |
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pentalog.model.types import Partition
from pentalog.tables.positions import from_json, to_json
from pentalog.tables.sinks import Range, SinkRefused
from pentalog.tables.storage import for_spark

INGEST: Final = "ingest"
_CONTROL: Final = "control.json"
_BATCHES_TOLD: Final = 100
"""As many as Spark keeps the progress of."""


def gold_query(name: str) -> str:
    return f"gold-{name}"


class Checkpoint:
    """The files of one query of a pipeline."""

    def __init__(self, folder: str, query: str) -> None:
        self.folder = Path(folder)
        self.query = query
        self._told: dict[int, Mapping[str, Any]] = {}

    @property
    def location(self) -> str:
        """What Spark is given."""
        return for_spark(str((self.folder / self.query).absolute()))

    def tell(self, batch: int, counts: Mapping[str, Any]) -> None:
        """What a batch did, for whoever reports its progress, which Spark knows only in part."""
        self._told[batch] = counts
        while len(self._told) > _BATCHES_TOLD:
            self._told.pop(next(iter(self._told)))

    def told(self, batch: int) -> Mapping[str, Any]:
        return self._told.pop(batch, {})

    def begun(self) -> bool:
        """Whether a first batch has been planned, so that Spark goes on by itself."""
        return (self.folder / self.query / "offsets" / "0").exists() or bool(self._batches())

    def query_id(self) -> str:
        text = (self.folder / self.query / "metadata").read_text(encoding="utf-8")
        return str(json.loads(text)["id"])

    def starting(self) -> dict[Partition, int] | None:
        found = read_json(self.folder / f"{self.query}.start.json")
        return None if found is None else from_json(found)

    def set_starting(self, offsets: Mapping[Partition, int]) -> None:
        write_json(self.folder / f"{self.query}.start.json", to_json(offsets))

    def floor_us(self) -> int | None:
        """Gold that was rebuilt: windows that end here or earlier are in the table already."""
        found = read_json(self.folder / f"{self.query}.floor.json")
        return None if found is None else int(found["floor_us"])

    def set_floor(self, floor_us: int) -> None:
        write_json(self.folder / f"{self.query}.floor.json", {"floor_us": floor_us})

    def ranges(self, batch: int) -> dict[Partition, Range]:
        """What a batch covers, from the plan that Spark wrote before running it."""
        ends = self.ends(batch)
        if batch == 0:
            starting = self.starting() or {}
            return {at: Range(starting.get(at, 0), end) for at, end in ends.items()}
        starts = self.ends(batch - 1)
        # The source lets a new partition begin with an empty range.
        return {at: Range(starts.get(at, end), end) for at, end in ends.items()}

    def ends(self, batch: int) -> dict[Partition, int]:
        path = self.folder / self.query / "offsets" / str(batch)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            text = f"{path}: Spark's plan of batch {batch} cannot be read: {error}"
            raise SinkRefused(text) from error
        # A version, a line about the batch, then one line for every source: there is one.
        return from_json(json.loads(lines[2]))

    def last_ends(self) -> dict[Partition, int]:
        """Where the newest planned batch ends."""
        batches = self._batches()
        return self.ends(batches[-1]) if batches else {}

    def progress(self) -> dict[str, Any]:
        return read_json(self.folder / f"{self.query}.progress.json") or {}

    def set_progress(self, value: Mapping[str, Any]) -> None:
        write_json(self.folder / f"{self.query}.progress.json", value)

    def remove(self) -> None:
        """Forget everything: the next run takes its start from the table."""
        shutil.rmtree(self.folder / self.query, ignore_errors=True)
        for name in ("start", "progress", "floor"):
            (self.folder / f"{self.query}.{name}.json").unlink(missing_ok=True)

    def _batches(self) -> list[int]:
        folder = self.folder / self.query / "offsets"
        if not folder.is_dir():
            return []
        return sorted(int(one.name) for one in folder.iterdir() if one.name.isdecimal())


def is_paused(folder: str) -> bool:
    return bool((read_json(Path(folder) / _CONTROL) or {}).get("paused"))


def set_paused(folder: str, *, paused: bool) -> None:
    write_json(Path(folder) / _CONTROL, {"paused": paused})


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found if isinstance(found, dict) else None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file at once: readers in other processes see the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(dict(value), file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
