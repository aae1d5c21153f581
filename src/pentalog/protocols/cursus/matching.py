"""Patterns over the names of topics, `*` for any text and `?` for any character.

Names and patterns can be so long, and topics so many, that one search takes longer than others may
wait.  So it is made in steps before its command is served, and the command finds its result here.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from pentalog.protocols.cursus.errors import Refused, quoted

WILD: Final = re.compile(r"[*?]")
MATCHES_MAX: Final = 1_000
"""Topics that a pattern may match before it is refused for that."""
_STEP_CHARACTERS: Final = 4_000
"""Of names, searched in one step: about 2 ms for the worst pattern."""
_SEARCHES_MAX: Final = 64
"""Searches whose result is kept."""
_STARS: Final = re.compile(r"\*+")
_STARS_MAX: Final = 8
_PATTERN_CHARACTERS_MAX: Final = 249


class Matches:
    """What patterns have found lately; up to `MATCHES_MAX` and one more topic each."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, tuple[int, list[str]]] = OrderedDict()

    def knows(self, name: str, names: str, version: int | None) -> bool:
        """Return whether `find` is quick; with `version`, only as of that state of the topics."""
        found = self._found.get(name)
        if len(names) <= _STEP_CHARACTERS:
            return True
        return found is not None and version in (None, found[0])

    def find(self, name: str, names: str) -> list[str]:
        """Return the topics that a pattern means, in their order; refuses some patterns."""
        known = self._found.get(name)
        if known is not None and len(names) > _STEP_CHARACTERS:
            return known[1]
        return [found[0] for found in islice(pattern_of(name).finditer(names), MATCHES_MAX + 1)]

    def search(self, name: str, names: str, version: int) -> Iterator[None]:
        """Search in steps; `find` returns the result afterwards."""
        pattern = pattern_of(name)
        found: list[str] = []
        start = 0
        while start < len(names) and len(found) <= MATCHES_MAX:
            end = names.find("\n", start + _STEP_CHARACTERS)
            end = len(names) if end < 0 else end
            found += [match[0] for match in pattern.finditer(names, start, end)]
            start = end + 1
            yield
        self._found.pop(name, None)
        self._found[name] = version, found[: MATCHES_MAX + 1]
        if len(self._found) > _SEARCHES_MAX:
            self._found.popitem(last=False)


def pattern_of(name: str) -> re.Pattern[str]:
    """Compile a pattern for one line of many; refuses one that costs too much."""
    pieces = _STARS.split(name[:_PATTERN_CHARACTERS_MAX])
    if len(pieces) > _STARS_MAX + 1:
        reason = f"a pattern with {len(pieces) - 1} stars; {_STARS_MAX} are accepted"
        raise Refused(f"command_failed reason={quoted(reason)}")
    texts = [re.escape(piece).replace(r"\?", "[^\n]") for piece in pieces]
    # Once found, the first place of a piece is right: looking for others never helps.
    middle = "".join(f"(?>[^\n]*?{text})" for text in texts[1:-1])
    last = f"[^\n]*{texts[-1]}" if len(texts) > 1 else ""
    return re.compile(f"^{texts[0]}{middle}{last}$", re.MULTILINE)
