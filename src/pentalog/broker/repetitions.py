"""Lines that strangers cause, over and over: the first hundred are written, others are counted.

What was counted is written at the end of each minute, so that nobody fills a disk by being
refused, and no refusal goes uncounted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pentalog.runtime import Runtime, Timer

WINDOW_MS: Final = 60_000
LINES_MAX: Final = 100
"""Of one name at one address in a window; what it causes beyond that is counted."""
LINES_ALL: Final = 10_000
"""Of everybody in a window."""
ENTRIES_MAX: Final = 4_096
"""Sources that have lines of their own, and different lines that are counted."""
OTHERS: Final = "others"

Fields = Mapping[str, str]


class Repetitions:
    def __init__(self, runtime: Runtime, write: Callable[[Fields], None]) -> None:
        self._runtime = runtime
        self._write = write
        self._counted: dict[tuple[tuple[str, str], ...], int] = {}
        """How often each line was not written."""
        self._lines: dict[tuple[str, str], int] = {}
        """How many each name at each address caused."""
        self._written = 0
        self._timer: Timer | None = None

    def say(self, fields: Fields) -> None:
        """Write a line, or count it; `who` and `host` are its cause."""
        if self._timer is None:
            self._timer = self._runtime.after(WINDOW_MS, self.close)
        source = (fields["who"], fields["host"])
        if self._may_write(source):
            self._lines[source] = self._lines.get(source, 0) + 1
            self._written += 1
            self._write(fields)
            return
        key = tuple(fields.items())
        if key not in self._counted and len(self._counted) >= ENTRIES_MAX:
            rest = {"who": OTHERS, "host": OTHERS, "event": fields["event"], "what": OTHERS}
            key = tuple(rest.items())
        self._counted[key] = self._counted.get(key, 0) + 1

    def _may_write(self, source: tuple[str, str]) -> bool:
        known = source in self._lines or len(self._lines) < ENTRIES_MAX
        mine = self._lines.get(source, 0)
        return known and mine < LINES_MAX and self._written < LINES_ALL

    def close(self) -> None:
        """Write what was counted, and begin anew."""
        counted, self._counted = self._counted, {}
        self._lines = {}
        self._written = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key, count in counted.items():
            self._write({**dict(key), "repeated": str(count)})
