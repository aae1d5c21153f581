"""Lines that strangers cause, over and over: the first is written, the others are counted.

What was counted is written at the end of each minute, so that nobody fills a disk by being
refused, and no refusal goes uncounted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pentalog.runtime import Runtime, Timer

WINDOW_MS: Final = 60_000
LINES_MAX: Final = 100
"""Different ones of one name at one address in a window; all others are one."""
ENTRIES_MAX: Final = 4_096
"""Different ones of everybody."""
OTHERS: Final = "others"

Fields = Mapping[str, str]


class Repetitions:
    def __init__(self, runtime: Runtime, write: Callable[[Fields], None]) -> None:
        self._runtime = runtime
        self._write = write
        self._repeated: dict[tuple[tuple[str, str], ...], int] = {}
        """How often each line would have been written again."""
        self._lines: dict[tuple[str, str], int] = {}
        """How many different ones each name at each address caused."""
        self._timer: Timer | None = None

    def say(self, fields: Fields) -> None:
        """Write a line, or count it if that was done already; `who` and `host` are its cause."""
        key = tuple(fields.items())
        if key in self._repeated:
            self._repeated[key] += 1
            return
        source = (fields["who"], fields["host"])
        lines = self._lines.get(source, 0)
        full = len(self._repeated) >= ENTRIES_MAX
        if full or lines >= LINES_MAX:
            who, host = (OTHERS, OTHERS) if full else source
            rest = {"who": who, "host": host, "event": fields["event"], "what": OTHERS}
            key = tuple(rest.items())
            self._repeated[key] = self._repeated.get(key, 0) + 1
            return
        self._lines[source] = lines + 1
        self._repeated[key] = 0
        if self._timer is None:
            self._timer = self._runtime.after(WINDOW_MS, self.close)
        self._write(fields)

    def close(self) -> None:
        """Write what was counted, and begin anew."""
        repeated, self._repeated = self._repeated, {}
        self._lines = {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key, count in repeated.items():
            if count:
                self._write({**dict(key), "repeated": str(count)})
