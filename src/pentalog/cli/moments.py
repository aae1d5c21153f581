"""Points in time as people write them on a command line."""

from __future__ import annotations

import datetime
import re
from typing import Final

from pentalog.cli.output import Misused

UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO: Final = re.compile(r"-?(\d+)(ms|s|m|h|d)")
_MS_MIN: Final = 10**11
"""Fewer milliseconds than this are a time of 1973: hardly ever meant."""


def parse_moment(text: str, option: str, *, now_ms: int) -> int:
    """Milliseconds since 1970 of `10m` (ago), `now`, a time in ISO 8601, or of themselves."""
    if text == "now":
        return now_ms
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * UNITS_MS[ago[2]]
    if text.isdecimal() and int(text) >= _MS_MIN:
        return int(text)
    try:
        return round(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise Misused(
            f"{option} {text!r} is none of: 10m, 2h or 3d (ago), now, a time such as "
            "2025-01-31T12:00 or milliseconds since 1970"
        ) from None
