"""Records as the console shows them: decoded from pieces of the log, and written for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from pentalog.kernels import Buffer, Columns, batch_header, decode_columns
from pentalog.kernels import column_facts as facts
from pentalog.kernels.column_facts import Chunks
from pentalog.model.batch import DOORS
from pentalog.model.pieces import Piece, opened
from pentalog.model.types import Offset, Partition

ALL_COLUMNS: Final = (
    facts.OFFSETS | facts.TIMESTAMPS | facts.KEYS | facts.VALUES | facts.HEADERS | facts.DOORS
)
TEXT_BYTES_MAX: Final = 1 << 20
"""More of one value is not sent to a browser."""
_INDENTED_MAX: Final = 4 * TEXT_BYTES_MAX

_DOOR_NAMES: Final = tuple(name.encode() for name in DOORS)
_LINE_BYTES: Final = 16
_TIME_MAX_MS: Final = 253_402_300_799_999
_PRINTABLE_LEAST: Final = 0.9

Header = tuple[str, bytes | None]


class Row(NamedTuple):
    """One record."""

    at: Partition
    offset: Offset
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    door: str


def columns_in(data: Buffer, aborted: bytes, low: Offset, high: Offset) -> Iterator[Columns]:
    """Columns of every sound run of batches; what is damaged between them is stepped over."""
    view = memoryview(data)
    position = 0
    while position < len(view):
        columns = decode_columns(
            view,
            position,
            len(view),
            low=low,
            high=high,
            columns=ALL_COLUMNS,
            aborted=aborted,
            picks=(),
            doors=_DOOR_NAMES,
        )
        yield columns
        if not columns.flaw or len(view) - columns.position < 61:
            return
        position = columns.position + max(61, batch_header(view, columns.position).size)


def rows_in(at: Partition, piece: Piece, low: Offset, high: Offset) -> list[Row]:
    """Every record of a piece with an offset in `low..high`."""
    return [
        row
        for columns in columns_in(opened(piece.data), piece.aborted, low, high)
        for row in rows_at(at, columns, range(columns.rows))
    ]


def rows_at(at: Partition, columns: Columns, chosen: range | list[int]) -> Iterator[Row]:
    """Some rows of columns that were decoded with `ALL_COLUMNS`."""
    if not len(chosen):
        return
    assert columns.offsets is not None
    assert columns.timestamps is not None
    assert columns.header_lists is not None
    offsets = memoryview(columns.offsets).cast("q")
    times = memoryview(columns.timestamps).cast("q")
    lists = memoryview(columns.header_lists).cast("i")
    keys, values, doors = _cells(columns.keys), _cells(columns.values), _cells(columns.doors)
    names, contents = _cells(columns.header_names), _cells(columns.header_values)
    for row in chosen:
        headers = tuple(
            ((names[entry] or b"").decode("utf-8", "replace"), contents[entry])
            for entry in range(lists[row], lists[row + 1])
        )
        door = (doors[row] or b"").decode()
        yield Row(at, offsets[row], times[row] // 1000, keys[row], values[row], headers, door)


class _Cells:
    """A column of byte strings by row."""

    def __init__(self, chunks: Chunks) -> None:
        self._starts = memoryview(chunks.offsets).cast("i")
        self._data = chunks.data
        self._validity = chunks.validity

    def __getitem__(self, row: int) -> bytes | None:
        if self._validity and not self._validity[row >> 3] >> (row & 7) & 1:
            return None
        return bytes(self._data[self._starts[row] : self._starts[row + 1]])


def _cells(chunks: Chunks | None) -> _Cells:
    assert chunks is not None
    return _Cells(chunks)


def time_text(timestamp_ms: int) -> str:
    """A record's time, to the millisecond, in UTC."""
    if not 0 <= timestamp_ms <= _TIME_MAX_MS:
        return "no time" if timestamp_ms < 0 else f"{timestamp_ms} ms"
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def parse_time(text: str) -> int:
    """Milliseconds of an ISO time, UTC unless it says otherwise, or of a number of them."""
    text = text.strip()
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time; write 2026-01-31 13:45:00, or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def kind_of(data: bytes | None) -> str:
    """`null`, `empty`, `json`, `text` or `binary`."""
    if data is None:
        return "null"
    if not data:
        return "empty"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "binary"
    if text[:1] in '{["-0123456789tfn' and _is_json(data):
        return "json"
    shown = sum(one.isprintable() or one in "\r\n\t" for one in text[:400])
    return "text" if shown >= _PRINTABLE_LEAST * len(text[:400]) else "binary"


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def short(data: bytes | None, characters_max: int = 160) -> str:
    """One line of a key or value."""
    if data is None:
        return "null"
    cut = data[: 4 * characters_max]
    if kind_of(data[:TEXT_BYTES_MAX]) == "binary":
        text = cut[: characters_max // 3].hex(" ")
        return f"{text} …" if len(data) > characters_max // 3 else text
    text = " ".join(cut.decode("utf-8", "ignore").split())
    return f"{text[:characters_max]}…" if len(text) > characters_max else text


def full(data: bytes | None) -> str:
    """A key or value in full: JSON indented, bytes that are no text as a hex dump."""
    kind = kind_of(data)
    if data is None or not data:
        return kind
    cut = data[:TEXT_BYTES_MAX]
    more = "" if len(cut) == len(data) else f"\n… {len(data) - len(cut)} bytes more"
    if kind == "json" and not more:
        return _indented(data) or cut.decode("utf-8", "replace")
    if kind == "binary":
        return hex_dump(cut[: 64 << 10]) + (more or ("\n…" if len(data) > 64 << 10 else ""))
    return cut.decode("utf-8", "replace") + more


def _indented(data: bytes) -> str:
    """JSON over several lines; empty where that would be far longer than the JSON itself."""
    found: list[str] = []
    length = 0
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(data)):
            length += len(part)
            if length > _INDENTED_MAX:
                return ""
            found.append(part)
    except (ValueError, RecursionError):  # numbers of thousands of digits, too deep
        return ""
    return "".join(found)


def hex_dump(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), _LINE_BYTES):
        part = data[start : start + _LINE_BYTES]
        shown = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {shown}")
    return "\n".join(lines)
