"""A bar on the terminal for whatever takes more than a second."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_SILENT_S: Final = 1.0


class Progress:
    """Silent in its first second, and wherever stderr is no terminal."""

    def __init__(self, text: str, total: int | None = None, *, in_bytes: bool = False) -> None:
        """`total` None: how much there is to do is not known."""
        self._text = text
        self._total = total
        self._in_bytes = in_bytes
        self._done = 0
        self._started = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._wanted = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int = 1) -> None:
        self._done += count
        if not self._wanted:
            return
        if self._bar is None:
            if time.monotonic() - self._started < _SILENT_S:
                return
            self._show()
        assert self._bar is not None
        assert self._task is not None
        self._bar.update(self._task, completed=self._done)

    def _show(self) -> None:
        # Imported here: it takes longer to load than most commands take to run.
        from rich import progress
        from rich.console import Console

        amount: progress.ProgressColumn = progress.MofNCompleteColumn()
        if self._in_bytes:
            amount = progress.DownloadColumn()
        elif self._total is None:
            amount = progress.TextColumn("{task.completed:,}")
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            amount,
            progress.TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self._text, total=self._total)
        self._bar.start()
