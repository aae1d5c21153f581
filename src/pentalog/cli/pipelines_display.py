"""What `pentalog table run` shows: a live table on a terminal, lines in a pipe, JSON if asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import typer


class Display:
    """Shows the newest batch of every pipeline."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._newest: dict[str, Mapping[str, Any]] = {}
        self._live: Any = None

    def __enter__(self) -> Display:
        if not self._as_json and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(self._table(), refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Mapping[str, Any]) -> None:
        self._newest[progress["pipeline"]] = progress
        if self._as_json:
            typer.echo(json.dumps(dict(progress)))
        elif self._live is not None:
            self._live.update(self._table())
        else:
            typer.echo(
                f"{progress['pipeline']}: batch {progress['batch']}, {progress['rows']} rows in"
                f" {progress['batch_ms']} ms, lag {progress['lag']}"
            )

    def show_live(self, progress: Mapping[str, Any]) -> None:
        """For commands whose output is their result: nothing but on a terminal."""
        if self._live is not None:
            self.show(progress)

    def _table(self) -> Any:
        from rich.table import Table

        table = Table("pipeline", "batch", "rows", "rows/s", "batch ms", "lag", "left")
        for name, one in self._newest.items():
            left = f"{one['eta_s']} s" if one["lag"] else ""
            table.add_row(
                name, str(one["batch"]), str(one["rows"]), f"{one['rows_per_second']:,.0f}",
                str(one["batch_ms"]), f"{one['lag']:,}", left,
            )  # fmt: skip
        return table
