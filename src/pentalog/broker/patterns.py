"""Regular expressions over names, as clients of Kafka give them, within bounds of time and memory.

The syntax is RE2's, as in Kafka, and so is the engine: its time grows with the program that a
pattern becomes and with the name, never faster.  Limits here keep both small.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Protocol

import re2

from pentalog.model.errors import InvalidPattern

LENGTH_MAX: Final = 1_024
"""Characters of a pattern."""
PROGRAM_MAX: Final = 2_000
"""Instructions of the program that a pattern becomes."""
REPEATS_MAX: Final = 2_000
"""Sum of all counts (`{10}`) in a pattern; RE2 itself allows each to be 1000."""
COMPILED_BYTES_MAX: Final = 256 << 10
"""What RE2 may use for one pattern: its program, and the states it remembers while matching."""
COMPILED_MAX: Final = 64
"""Patterns kept compiled, 16 MiB together."""
NAME_CHARACTERS_MAX: Final = 1_000
"""Longer names match no pattern; no topic and no new transactional id has one."""
_CALL_COST: Final = 3
_STEPS_PER_UNIT: Final = 200
"""Instructions times characters that take RE2 a microsecond, where it cannot use its states."""
_SHOWN_MAX: Final = 100

_ESCAPES: Final = re.compile(r"\\Q.*?(?:\\E|\Z)|\\[xpP]\{[^}]*\}?|\\.", re.DOTALL)
_REPEATS: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_GROUP_NAMES: Final = re.compile(r"\(\?P?<(\w+)>")


class _Compiled(Protocol):
    @property
    def programsize(self) -> int: ...

    def fullmatch(self, text: bytes) -> object | None: ...


class Pattern:
    """A compiled expression; a name matches if all of it does."""

    __slots__ = ("_compiled", "_size")

    def __init__(self, text: str) -> None:
        """Raise `InvalidPattern` for one that RE2 does not understand, or that is too large."""
        self._compiled = _compile(text)
        self._size = self._compiled.programsize

    def cost(self, characters: int) -> int:
        """Return an upper bound of the work for a name of this length; 1 is a microsecond."""
        return _CALL_COST + self._size * characters // _STEPS_PER_UNIT

    def matches(self, name: str) -> bool:
        if len(name) > NAME_CHARACTERS_MAX:
            return False
        return self._compiled.fullmatch(name.encode(errors="surrogatepass")) is not None


@lru_cache(maxsize=COMPILED_MAX)
def pattern(text: str) -> Pattern:
    """Compile, or raise `InvalidPattern`."""
    return Pattern(text)


def _compile(text: str) -> _Compiled:
    if len(text) > LENGTH_MAX:
        raise InvalidPattern(
            f"a pattern of {len(text)} characters; at most {LENGTH_MAX} are accepted: shorten it"
        )
    if r"\C" in _ESCAPES.findall(text):  # a byte in C++, which Java's RE2 does not know
        raise _invalid(text, r"invalid escape sequence: \C")
    plain = _ESCAPES.sub("", text)
    names = _GROUP_NAMES.findall(plain)
    if len(set(names)) < len(names):  # another that only Java's RE2 refuses
        raise _invalid(text, "a group name that is given twice")
    counts = _REPEATS.findall(plain)
    repeats = sum(max(int(least), int(most or 0)) for least, most in counts)
    if repeats > REPEATS_MAX:
        raise _invalid(text, f"{repeats} repetitions where {REPEATS_MAX} are accepted")
    try:
        compiled: _Compiled = re2.compile(text.encode(), _options())
    except (re2.error, UnicodeEncodeError) as error:
        raise _invalid(text, _reason(error)) from error
    finally:
        # RE2's module would keep 128 more.
        re2.purge()
    if compiled.programsize > PROGRAM_MAX:
        raise _invalid(
            text,
            f"{compiled.programsize} instructions where {PROGRAM_MAX} are accepted: repeat less",
        )
    return compiled


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = COMPILED_BYTES_MAX
    options.log_errors = False
    options.never_capture = True
    return options


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)


def _invalid(text: str, reason: str) -> InvalidPattern:
    return InvalidPattern(
        f"pattern {text[:_SHOWN_MAX]!r} has {reason[:_SHOWN_MAX]}; accepted is RE2's syntax"
    )
