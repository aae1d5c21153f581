"""What a search looks for: text in key, value or headers, and conditions on fields of JSON values.

Matching works on columns of whole runs of batches; only rows that may match are looked at one by
one.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pentalog.kernels import Columns
from pentalog.kernels.column_facts import Chunks

FIELDS: Final = ("key", "value", "headers")
OPERATORS: Final = ("=", "!=", "<", "<=", ">", ">=", "~")

_CONDITION: Final = re.compile(
    r"\s*\$?\.?(?P<path>[^\s=!<>~]+)\s*"
    r"(?:(?P<operator>!=|<=|>=|=|<|>|~)\s*(?P<wanted>.*?))?\s*",
    re.DOTALL,
)
_STEP: Final = re.compile(r"""\[(\d+|\*|'[^']*'|"[^"]*")\]|([^.\[\]]+)""")
_ESCAPE: Final = b"\\u"


class QueryRefused(ValueError):
    """A search that cannot be understood; the text says what can."""


@dataclass(frozen=True, slots=True)
class JsonCondition:
    """A path into a JSON value, and what must be there; without `operator`: anything at all."""

    path: tuple[str | int, ...]
    """Names of fields, places in lists; `*` is every one of them."""
    operator: str = ""
    wanted: object = None

    @classmethod
    def parse(cls, text: str) -> JsonCondition:
        """`$.customer.name = "Ada"`, `items[*].price > 10`, `error ~ timeout`, or a path alone."""
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise _not_understood(text)
        path: list[str | int] = []
        position = 0
        for step in _STEP.finditer(match["path"]):
            between = match["path"][position : step.start()]
            if between not in ("", "."):
                raise _not_understood(text)
            inside, name = step[1], step[2]
            if inside is None:
                path.append(name)
            elif inside.isdecimal():
                path.append(int(inside))
            else:
                path.append(inside if inside == "*" else inside[1:-1])
            position = step.end()
        if position != len(match["path"]) or not path:
            raise _not_understood(text)
        operator = match["operator"] or ""
        if operator and not match["wanted"]:
            raise _not_understood(text)
        return cls(tuple(path), operator, _literal(match["wanted"]) if operator else None)

    @property
    def pattern(self) -> re.Pattern[bytes] | None:
        """Found in every value that fulfils this, unless it writes names with escapes.

        For equality that is the name with the wanted value behind it, however it is written.
        None: the path has no names.
        """
        names = [step for step in self.path if isinstance(step, str) and step != "*"]
        if not names:
            return None
        name = re.escape(max(names, key=len).encode())
        written = _text(self.wanted).encode()
        if self.operator != "=" or self.path[-1:] != tuple(names[-1:]) or b"\\" in written:
            return _compiled(name)
        last = re.escape(names[-1].encode())
        if isinstance(self.wanted, str):
            behind = rb'"(?:%b|[^"\\]*\\)' % re.escape(written[1:])
        elif isinstance(self.wanted, bool | None):
            behind = rb'"?%b' % re.escape(written)
        elif isinstance(self.wanted, int | float):
            behind = rb'"?(?:%b|-?[0-9]+[.eE])' % re.escape(written)
        else:
            return _compiled(name)
        return _compiled(rb'"%b"\s*:\s*%b' % (last, behind))

    def holds(self, value: bytes | bytearray) -> bool:
        try:
            found = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return False
        return any(self._fulfils(one) for one in _walk(found, self.path))

    def _fulfils(self, found: object) -> bool:
        wanted = self.wanted
        if self.operator == "":
            return True
        if self.operator == "~":
            return (
                str(wanted).lower() in (found if isinstance(found, str) else _text(found)).lower()
            )
        if self.operator in ("=", "!="):
            return _equal(found, wanted) == (self.operator == "=")
        if isinstance(found, bool) or isinstance(wanted, bool):
            return False
        if isinstance(found, int | float) and isinstance(wanted, int | float):
            return _ordered(self.operator, found, wanted)
        if isinstance(found, str) and isinstance(wanted, str):
            return _ordered(self.operator, found, wanted)
        return False


@functools.lru_cache(maxsize=64)
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern)


def _not_understood(text: str) -> QueryRefused:
    return QueryRefused(
        f"{text.strip()!r} is no condition; write a path, an operator ({' '.join(OPERATORS)}) and a"
        ' value: $.customer.name = "Ada", items[*].price > 10, or a path alone'
    )


def _literal(text: str) -> object:
    """JSON if it is JSON, else the text itself."""
    try:
        return msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        return text


def _walk(found: Any, path: tuple[str | int, ...]) -> list[Any]:
    here = [found]
    for step in path:
        there: list[Any] = []
        for one in here:
            if step == "*":
                there += one if isinstance(one, list) else ()
                there += one.values() if isinstance(one, dict) else ()
            elif isinstance(one, dict):
                name = str(step)
                if name in one:
                    there.append(one[name])
            elif isinstance(one, list) and isinstance(step, int) and step < len(one):
                there.append(one[step])
        here = there
    return here


def _text(found: object) -> str:
    return msgspec.json.encode(found).decode()


def _equal(found: object, wanted: object) -> bool:
    if isinstance(found, bool) != isinstance(wanted, bool):
        return False
    if found == wanted:
        return True
    # Numbers that were written as text are found as people write them.
    return isinstance(found, str) and not isinstance(wanted, str) and found == _text(wanted)


def _ordered(operator: str, found: Any, wanted: Any) -> bool:
    if operator == "<":
        return bool(found < wanted)
    if operator == "<=":
        return bool(found <= wanted)
    return bool(found > wanted) if operator == ">" else bool(found >= wanted)


@dataclass(frozen=True, slots=True)
class Query:
    """All of it must hold."""

    text: str = ""
    fields: frozenset[str] = frozenset(FIELDS)
    """Where the text may be, some of `FIELDS`."""
    ignore_case: bool = False
    condition: JsonCondition | None = None
    since_ms: int | None = None
    before_ms: int | None = None

    def __post_init__(self) -> None:
        if not self.text and self.condition is None:
            raise QueryRefused("nothing to look for; write a text or a condition on JSON values")
        if self.text and not self.fields:
            raise QueryRefused(f"nowhere to look; choose at least one of {', '.join(FIELDS)}")

    def may_match(self, data: bytes) -> bool:
        """False if no record in these uncompressed batches can match."""
        if self.text and (data.lower() if self.ignore_case else data).find(self._needle()) < 0:
            return False
        if self.condition is not None:
            pattern = self.condition.pattern
            return pattern is None or bool(pattern.search(data)) or data.find(_ESCAPE) >= 0
        return True

    def rows(self, columns: Columns) -> list[int]:
        """The rows of columns with all fields that match."""
        chosen: set[int] | None = None
        if self.text:
            chosen = self._rows_with_text(columns)
        if self.condition is not None and (chosen is None or chosen):
            assert columns.values is not None
            chosen = _rows_fulfilling(self.condition, columns.values, chosen)
        found = sorted(chosen or ())
        if found and (self.since_ms is not None or self.before_ms is not None):
            assert columns.timestamps is not None
            times = memoryview(columns.timestamps).cast("q")
            low = -(1 << 62) if self.since_ms is None else self.since_ms * 1000
            high = 1 << 62 if self.before_ms is None else self.before_ms * 1000
            found = [row for row in found if low <= times[row] < high]
        return found

    def _needle(self) -> bytes:
        needle = self.text.encode()
        return needle.lower() if self.ignore_case else needle

    def _rows_with_text(self, columns: Columns) -> set[int]:
        needle = self._needle()
        found: set[int] = set()
        if "key" in self.fields and columns.keys is not None:
            found.update(rows_with(columns.keys, needle, self.ignore_case))
        if "value" in self.fields and columns.values is not None:
            found.update(rows_with(columns.values, needle, self.ignore_case))
        if "headers" in self.fields and columns.header_lists is not None:
            lists = memoryview(columns.header_lists).cast("i")
            for chunks in (columns.header_names, columns.header_values):
                assert chunks is not None
                for entry in rows_with(chunks, needle, self.ignore_case):
                    found.add(bisect_right(lists, entry) - 1)
        return found


def rows_with(chunks: Chunks, needle: bytes, ignore_case: bool) -> list[int]:
    """The rows of a column that hold these bytes."""
    data = chunks.data.lower() if ignore_case else chunks.data
    starts = memoryview(chunks.offsets).cast("i")
    found: list[int] = []
    position = data.find(needle)
    while position >= 0:
        row = bisect_right(starts, position) - 1
        behind = starts[row + 1]
        if position + len(needle) <= behind:
            found.append(row)
            position = data.find(needle, behind)
        else:
            # The end of one row and the beginning of the next.
            position = data.find(needle, position + 1)
    return found


def _rows_fulfilling(condition: JsonCondition, values: Chunks, chosen: set[int] | None) -> set[int]:
    starts = memoryview(values.offsets).cast("i")
    candidates = set(range(len(starts) - 1))
    if condition.pattern is not None:
        matches = condition.pattern.finditer(values.data)
        candidates = {bisect_right(starts, match.start()) - 1 for match in matches}
        candidates.update(rows_with(values, _ESCAPE, False))
    if chosen is not None:
        candidates &= chosen
    return {
        row for row in candidates if condition.holds(values.data[starts[row] : starts[row + 1]])
    }
