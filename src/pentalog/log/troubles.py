"""What keeps failing, told once a minute instead of every time: a full disk fails every write."""

from __future__ import annotations

import logging
from typing import Final

from pentalog.runtime import Runtime

log = logging.getLogger("pentalog.log")

SILENCE_S: Final = 60.0
_KINDS_MAX: Final = 100


class Troubles:
    """Of one data directory; all its parts tell of theirs here."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._told: dict[tuple[str, int | None], tuple[float, int]] = {}
        """By what was tried and the error's number: when it was told, and how often not since."""

    def tell(self, level: int, action: str, what: str, error: OSError) -> None:
        """Log that `what` cannot be done, unless the same was said of anything a moment ago.

        `action` is the kind of thing that was tried; there are only a few of these.
        """
        kind = (action, error.errno)
        now = self._runtime.monotonic()
        told_at, silent = self._told.get(kind, (now - SILENCE_S, 0))
        if now - told_at < SILENCE_S:
            self._told[kind] = (told_at, silent + 1)
            return
        if len(self._told) >= _KINDS_MAX:
            self._told.clear()
        self._told[kind] = (now, 0)
        reason = error.strerror or error
        if silent:
            log.log(level, "cannot %s: %s; %d times more meanwhile", what, reason, silent)
        else:
            log.log(level, "cannot %s: %s", what, reason)
