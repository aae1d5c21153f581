"""`pentalog consume`: print records as text, by a format, or as JSON."""

from __future__ import annotations

import base64
import datetime
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import typer

from pentalog import kernels
from pentalog.cli import completion, hex_view, record_filters
from pentalog.cli.client import EARLIEST, LATEST, Client
from pentalog.cli.moments import UNITS_MS, parse_moment
from pentalog.cli.output import Misused, Refused, leave_quietly, reported
from pentalog.model import batch
from pentalog.model.types import Record

_FETCH_BYTES: Final = 4 << 20
_BATCH_BYTES_MAX: Final = 256 << 20
_WAIT_MS: Final = 500
_CONTROL: Final = 1 << 5
_AGO: Final = re.compile(r"-(\d+)(ms|s|m|h|d)")
_NUMBER: Final = re.compile(r"\d+")
_LAST: Final = re.compile(r"-(\d+)")
# No partition has as many records as this, and no clock has shown so few milliseconds since 2001.
_TIMESTAMP_MIN: Final = 10**12


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time, in milliseconds since 1970."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Last:
    """So many offsets before the end."""

    count: int


Where = Moment | Last | int
"""An int is an offset, or EARLIEST or LATEST."""


def parse_where(text: str, option: str, *, now_ms: int) -> Where:
    """beginning, end, an offset, -N (the last N), a time (ISO 8601, ms), -1h (an hour ago)."""
    if text in ("beginning", "start", "earliest"):
        return EARLIEST
    if text in ("end", "latest"):
        return LATEST
    if ago := _AGO.fullmatch(text):
        return Moment(now_ms - int(ago[1]) * UNITS_MS[ago[2]])
    if last := _LAST.fullmatch(text):
        return Last(int(last[1]))
    if _NUMBER.fullmatch(text):
        number = int(text)
        return Moment(number) if number >= _TIMESTAMP_MIN else number
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise Misused(
            f"{option} {text!r} is none of: beginning, end, an offset, -100 (the last 100), "
            "a time such as 2025-01-31T12:00 or milliseconds since 1970, -1h (an hour ago)"
        ) from None
    return Moment(round(moment.timestamp() * 1000))


Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)]
Server = Annotated[
    str, typer.Option(envvar="PENTALOG_SERVER", metavar="HOST:PORT", help="Any broker.")
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHERE",
        help="beginning, end, an offset, -100 for the last 100 of each partition, a time "
        "(2025-01-31T12:00, milliseconds since 1970) or -1h for an hour ago.  Default: beginning.",
    ),
]
To = Annotated[
    str | None, typer.Option("--to", metavar="WHERE", help="Stop before this; as --from.")
]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="10m (ago), 2h, 3d, or 2025-01-31T12:00.")
]
Until = Annotated[
    str | None, typer.Option(metavar="TIME", help="Stop at the first record that new.")
]
Grep = Annotated[str | None, typer.Option(metavar="REGEX", help="Found in value, key or a header.")]
Header = Annotated[
    list[str] | None, typer.Option(metavar="NAME[=VALUE]", help="With this header; repeatable.")
]
Inside = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH=VALUE", help="JSON with this in it: user.id=7; repeatable."),
]
Layout = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="json, raw (values, nothing between them), hex, or a layout: "
        "%k key, %v value, %h headers, %o offset, %p partition, %t topic, %T timestamp, "
        "%K and %S lengths of key and value, %% itself; \\n and \\t work.",
    ),
]


@reported
def consume(
    topic: Topic,
    server: Server = "127.0.0.1:9092",
    start: From = None,
    stop: To = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only this one; repeatable.")] = None,
    count: Annotated[int | None, typer.Option(help="Stop after so many records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more at the end.")] = False,
    since: Since = None,
    until: Until = None,
    grep: Grep = None,
    key: Annotated[list[str] | None, typer.Option(help="With this key; repeatable.")] = None,
    header: Header = None,
    where: Inside = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per record.")] = False,
    in_base64: Annotated[
        bool,
        typer.Option("--base64", help="Keys and values in base64, for bytes that are no text."),
    ] = False,
    layout: Layout = None,
) -> None:
    """Print the records of TOPIC: their values, or what --format or --json says.

    Stops at the end that was there when it started, unless --follow.  Of several conditions all
    must hold; --count counts what is printed.

    Exit codes: 0 done, also by Ctrl-C while following; 1 refused; 2 used wrongly.

    Example: pentalog consume orders --since 10m --where user.id=7 --format '%p %o %k=%v\\n'
    """
    if as_json and layout is not None:
        raise Misused("--json and --format exclude each other")
    if count is not None and count < 0:
        raise Misused(f"--count {count} must be 0 or more")
    now_ms = int(time.time() * 1000)
    since_ms = None if since is None else parse_moment(since, "--since", now_ms=now_ms)
    until_ms = None if until is None else parse_moment(until, "--until", now_ms=now_ms)
    first, last = _range(start, stop, since_ms, until_ms, follow=follow, now_ms=now_ms)
    chosen = record_filters.wanted(
        grep=grep,
        keys=key or [],
        headers=header or [],
        where=where or [],
        since_ms=since_ms,
        until_ms=until_ms,
    )
    show = _shower(topic, as_json=as_json, layout=layout, in_base64=in_base64)
    try:
        with Client(server) as client:
            partitions = _partitions(client, topic, partition)
            positions = _resolve(client, topic, partitions, first)
            limits = None if follow else _resolve(client, topic, partitions, last)
            _print_all(read(client, topic, positions, limits), show, count, chosen)
    except KeyboardInterrupt:
        if not follow:
            raise
    except BrokenPipeError:
        leave_quietly()


def _range(
    start: str | None,
    stop: str | None,
    since_ms: int | None,
    until_ms: int | None,
    *,
    follow: bool,
    now_ms: int,
) -> tuple[Where, Where]:
    for one, other, names in (
        (start, since_ms, "--from and --since"),
        (stop, until_ms, "--to and --until"),
        (follow or None, stop, "--follow and --to"),
        (follow or None, until_ms, "--follow and --until"),
    ):
        if one is not None and other is not None:
            raise Misused(f"{names} exclude each other")
    first: Where = EARLIEST
    last: Where = LATEST
    if start is not None:
        first = parse_where(start, "--from", now_ms=now_ms)
    elif since_ms is not None:
        first = Moment(since_ms)
    if stop is not None:
        last = parse_where(stop, "--to", now_ms=now_ms)
    elif until_ms is not None:
        last = Moment(until_ms)
    return first, last


def _print_all(
    found: Iterator[tuple[int, int, Record] | None],
    show: Callable[[int, int, Record], bytes],
    count: int | None,
    chosen: record_filters.Wanted | None,
) -> None:
    out, printed = sys.stdout.buffer, 0
    if count == 0:
        return
    for item in found:
        if item is None:
            out.flush()
            continue
        if chosen is not None and not chosen(item[2]):
            continue
        out.write(show(*item))
        printed += 1
        if printed == count:
            break
    out.flush()


def _partitions(client: Client, topic: str, wanted: list[int] | None) -> list[int]:
    there = sorted(part.partition_index for part in client.topic(topic).partitions)
    for index in wanted or ():
        if index not in there:
            raise Refused(f"partition {index} outside 0..{len(there) - 1} of {topic}")
    return sorted(set(wanted)) if wanted else there


def _resolve(client: Client, topic: str, partitions: list[int], where: Where) -> dict[int, int]:
    """The offset that `where` means in each partition."""
    starts = client.offsets(topic, dict.fromkeys(partitions, EARLIEST))
    ends = client.offsets(topic, dict.fromkeys(partitions, LATEST))
    if isinstance(where, Moment):
        times = client.offsets(topic, dict.fromkeys(partitions, where.timestamp_ms))
        return {index: ends[index] if found < 0 else found for index, found in times.items()}
    if isinstance(where, Last):
        return {index: max(starts[index], ends[index] - where.count) for index in partitions}
    if where == EARLIEST:
        return starts
    if where == LATEST:
        return ends
    return {index: min(max(where, starts[index]), ends[index]) for index in partitions}


def read(
    client: Client, topic: str, positions: Mapping[int, int], limits: Mapping[int, int] | None
) -> Iterator[tuple[int, int, Record] | None]:
    """(partition, offset, record) from the positions up to the limits; None where it waits."""
    open_at = dict(positions)
    while True:
        if limits is not None:
            open_at = {index: at for index, at in open_at.items() if at < limits[index]}
        if not open_at:
            return
        found = client.fetch(topic, open_at, wait_ms=_WAIT_MS, bytes_max=_FETCH_BYTES)
        for index, data in found.items():
            limit = None if limits is None else limits[index]
            for offset, record in records_between(data, open_at[index], limit):
                yield index, offset, record
            open_at[index] = max(open_at[index], next_offset(data))
        yield None


def next_offset(data: bytes) -> int:
    """The offset behind the last whole batch, hidden ones included."""
    found = -1
    for position in _batches(data):
        header = kernels.batch_header(data, position)
        found = header.base_offset + header.last_offset_delta + 1
    return found


def records_between(data: bytes, start: int, limit: int | None) -> Iterator[tuple[int, Record]]:
    """Records with start <= offset < limit; markers of transactions are not records."""
    for position in _batches(data):
        if kernels.batch_header(data, position).attributes & _CONTROL:
            continue
        for offset, record in batch.records_of(data, position, bytes_max=_BATCH_BYTES_MAX):
            if offset >= start and (limit is None or offset < limit):
                yield offset, record


def _batches(data: bytes) -> Iterator[int]:
    """Positions of whole batches; a broker may cut the last one short."""
    position = 0
    while position + 61 <= len(data):
        header = kernels.batch_header(data, position)
        if header.magic != 2:
            raise Refused(f"offset {header.base_offset} is in an old format this cannot read")
        if position + header.size > len(data):
            return
        yield position
        position += header.size


def _shower(
    topic: str, *, as_json: bool, layout: str | None, in_base64: bool
) -> Callable[[int, int, Record], bytes]:
    if as_json or layout == "json":
        return lambda index, offset, record: (
            json.dumps(
                as_fields(topic, index, offset, record, in_base64=in_base64), ensure_ascii=False
            ).encode()
            + b"\n"
        )
    if layout == "hex":
        return partial(_in_hex, topic)
    if layout == "raw":
        layout = "%v"
    return formatter(topic, layout if layout is not None else "%v\\n", in_base64=in_base64)


def _in_hex(topic: str, index: int, offset: int, record: Record) -> bytes:
    lines = [f"{topic}-{index} offset {offset} time {record.timestamp_ms}"]
    parts = [("key", record.key), ("value", record.value)]
    for name, data in parts + [(f"header {name}", value) for name, value in record.headers]:
        lines.append(f"  {name}: {'null' if data is None else f'{len(data)} bytes'}")
        lines += hex_view.lines(data or b"", indent="    ")
    return "\n".join(lines).encode(errors="surrogateescape") + b"\n"


def as_fields(
    topic: str, index: int, offset: int, record: Record, *, in_base64: bool
) -> dict[str, Any]:
    """A record as JSON can hold it; bytes that are no text go to a field of another name."""
    fields: dict[str, Any] = {
        "topic": topic,
        "partition": index,
        "offset": offset,
        "timestamp": record.timestamp_ms,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        text = None if in_base64 else _text(data)
        if data is None or text is not None:
            fields[name] = text
        else:
            fields[f"{name}_base64"] = base64.b64encode(data).decode()
    fields["headers"] = [[name, _header(value)] for name, value in record.headers]
    return fields


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def _header(value: bytes | None) -> object:
    text = _text(value)
    if value is None or text is not None:
        return text
    return {"base64": base64.b64encode(value).decode()}


def formatter(topic: str, layout: str, *, in_base64: bool) -> Callable[[int, int, Record], bytes]:
    """Make a function that lays out one record; the format is read once, here."""
    encode = base64.b64encode if in_base64 else bytes
    parts: dict[str, Callable[[int, int, Record], bytes]] = {
        "k": lambda _, __, record: encode(record.key or b""),
        "v": lambda _, __, record: encode(record.value or b""),
        "h": lambda _, __, record: b",".join(
            name.encode(errors="surrogateescape") + b"=" + (value or b"")
            for name, value in record.headers
        ),
        "o": lambda _, offset, __: b"%d" % offset,
        "p": lambda index, _, __: b"%d" % index,
        "t": lambda _, __, ___: topic.encode(),
        "T": lambda _, __, record: b"%d" % record.timestamp_ms,
        "K": lambda _, __, record: b"%d" % (-1 if record.key is None else len(record.key)),
        "S": lambda _, __, record: b"%d" % (-1 if record.value is None else len(record.value)),
        "%": lambda _, __, ___: b"%",
    }
    parts["s"] = parts["v"]
    pieces: list[bytes | Callable[[int, int, Record], bytes]] = []
    escapes = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
    for literal, sign, letter in re.findall(r"([^%\\]+)|([%\\])(.?)", layout, re.DOTALL):
        known: Mapping[str, Any] = parts if sign == "%" else escapes
        if literal:
            pieces.append(literal.encode())
        elif letter in known:
            pieces.append(known[letter])
        else:
            raise Misused(
                f"--format {sign}{letter} is not known; known: {', '.join(parts)} after %"
            )
    return lambda index, offset, record: b"".join(
        piece if isinstance(piece, bytes) else piece(index, offset, record) for piece in pieces
    )
