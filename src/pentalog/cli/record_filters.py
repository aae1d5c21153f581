"""Which records a reader wants to see: by text, key, header, a place in JSON, time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from pentalog.cli.output import Misused
from pentalog.model.types import Record

Wanted: TypeAlias = Callable[[Record], bool]

_STEP: Final = re.compile(r"\.?([^.\[\]=]+)|\[(\d+)\]|\.?\[\"([^\"]+)\"\]")
_ABSENT: Final = object()


def wanted(
    *,
    grep: str | None,
    keys: Sequence[str],
    headers: Sequence[str],
    where: Sequence[str],
    since_ms: int | None,
    until_ms: int | None,
) -> Wanted | None:
    """One question that is all of them; None if every record is wanted."""
    tests: list[Wanted] = []
    if since_ms is not None or until_ms is not None:
        tests.append(_between(since_ms, until_ms))
    if keys:
        among = {key.encode() for key in keys}
        tests.append(lambda record: record.key in among)
    tests += [_header(text) for text in headers]
    if grep is not None:
        tests.append(_grep(grep))
    tests += [_where(text) for text in where]
    if not tests:
        return None
    if len(tests) == 1:
        return tests[0]
    return lambda record: all(test(record) for test in tests)


def _between(since_ms: int | None, until_ms: int | None) -> Wanted:
    least = since_ms if since_ms is not None else -(1 << 63)
    most = until_ms if until_ms is not None else 1 << 63
    return lambda record: least <= record.timestamp_ms < most


def _grep(pattern: str) -> Wanted:
    try:
        search = re.compile(pattern.encode()).search
    except re.error as error:
        raise Misused(f"--grep {pattern!r} is no regular expression: {error}") from error

    def found(record: Record) -> bool:
        parts = (record.value, record.key, *(value for _, value in record.headers))
        return any(part is not None and search(part) for part in parts)

    return found


def _header(text: str) -> Wanted:
    name, equals, value = text.partition("=")
    if not name:
        raise Misused(f"--header {text!r} is neither NAME nor NAME=VALUE")
    if not equals:
        return lambda record: any(one == name for one, _ in record.headers)
    pair = (name, value.encode())
    return lambda record: pair in record.headers


def _where(text: str) -> Wanted:
    path, equals, wanted_text = text.partition("=")
    steps = _steps(path.strip())
    if not equals or steps is None:
        raise Misused(
            f'--where {text!r} is not PATH=VALUE, for example user.id=7 or items[0].name="tea"'
        )
    try:
        expected = json.loads(wanted_text)
    except ValueError:
        expected = wanted_text

    def found(record: Record) -> bool:
        if record.value is None:
            return False
        try:
            value = json.loads(record.value)
        except (ValueError, RecursionError):
            return False
        at = _at(value, steps)
        # 7 in a path's value is the number; it may be meant for a text of that digit as well.
        return at is not _ABSENT and (_same(at, expected) or at == wanted_text)

    return found


def _same(found: Any, expected: Any) -> bool:
    return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)


def _steps(path: str) -> list[str | int] | None:
    """`a.b[0]["c d"]`, a leading `$` or dot allowed; None if it is no path."""
    path = path.removeprefix("$")
    steps: list[str | int] = []
    position = 0
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            return None
        steps.append(int(step[2]) if step[2] is not None else step[1] or step[3])
        position = step.end()
    return steps or None


def _at(value: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        if not isinstance(value, list if isinstance(step, int) else dict):
            return _ABSENT
        try:
            value = value[step]  # type: ignore[index]  # an int goes with a list, a str with a dict
        except (KeyError, IndexError):
            return _ABSENT
    return value
