"""`pentalog produce`: write lines, or JSON objects, as records."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypeAlias

import typer

from pentalog.cli import completion, output
from pentalog.cli.client import Client
from pentalog.cli.output import Misused, Refused, reported
from pentalog.cli.progress import Progress
from pentalog.model import batch
from pentalog.model.types import Record

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
Parse: TypeAlias = Callable[[bytes], tuple[Record, int | None]]
"""From a line to a record and the partition it names, if it does."""

_BATCH_BYTES: Final = 512 << 10
_BATCH_RECORDS: Final = 10_000
_RECORD_OVERHEAD: Final = 32
_LINE_BYTES_MAX: Final = 64 << 20
_CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_ACKS: Final = {"0": 0, "1": 1, "all": -1, "-1": -1}
_JSON_FIELDS: Final = {
    "key", "value", "headers", "timestamp", "partition", "key_base64", "value_base64",
    "offset", "topic",
}  # fmt: skip


@reported
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)],
    file: Annotated[Path | None, typer.Argument(help="Read this instead of stdin.")] = None,
    server: Annotated[
        str, typer.Option(envvar="PENTALOG_SERVER", metavar="HOST:PORT", help="Any broker.")
    ] = "127.0.0.1:9092",
    key: Annotated[str | None, typer.Option(help="The key of every record.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(help="What stands between key and value in each line.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="On every record; repeatable.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help='Each line is an object: {"key", "value", "headers", "timestamp", "partition"}; '
            "the summary is JSON, too.",
        ),
    ] = False,
    in_base64: Annotated[
        bool, typer.Option("--base64", help="Keys and values are written in base64.")
    ] = False,
    compression: Annotated[str, typer.Option(help=", ".join(_CODECS))] = "none",
    partition: Annotated[
        int | None, typer.Option(help="Only this one; without it by key, else in turn.")
    ] = None,
    acks: Annotated[
        str, typer.Option(help="0: do not wait, 1: in the file, all: on the disk.")
    ] = "all",
) -> None:
    """Write each line of stdin or FILE as one record.

    With --json, key and value are text or null.

    Bytes that are no text stand in key_base64 and value_base64.

    What `pentalog consume --json` prints can be fed back.

    Exit codes: 0 all written, 1 refused or interrupted, 2 used wrongly.

    Example: printf 'k1:hello' | pentalog produce orders --key-separator :
    """
    if compression not in _CODECS:
        raise Misused(f"--compression {compression!r} is none of {', '.join(_CODECS)}")
    if acks not in _ACKS:
        raise Misused(f"--acks {acks!r} is none of 0, 1, all")
    _check_keys(key, key_separator, as_json=as_json)
    headers = tuple(
        (name, value.encode()) for name, value in output.pairs(header or [], "--header").items()
    )
    if as_json:
        parse: Parse = partial(_record_of_json, headers=headers, in_base64=in_base64)
    else:
        parse = _line_parser(key, key_separator, headers, in_base64)
    total = file.stat().st_size if file is not None and file.is_file() else None
    progress = Progress(f"writing to {topic}", total, in_bytes=True)
    with Client(server) as client, _source(file) as source, progress:
        writer = _Writer(client, topic, partition, codec=_CODECS[compression], acks=_ACKS[acks])
        _copy(source, parse, writer, progress)
    if as_json:
        summary = {"topic": topic, "records": writer.written, "offsets": writer.offsets}
        output.show_json(summary)
    elif sys.stderr.isatty():
        typer.echo(f"{writer.written} records written to {output.plain(topic)}", err=True)


def _check_keys(key: str | None, separator: str | None, *, as_json: bool) -> None:
    if key is not None and separator is not None:
        raise Misused("--key and --key-separator exclude each other")
    if separator == "":
        raise Misused("--key-separator must not be empty")
    if as_json and (separator is not None or key is not None):
        raise Misused("with --json the key comes from each object's own `key`")


def _line_parser(
    key: str | None, separator: str | None, headers: Headers, in_base64: bool
) -> Parse:
    try:
        fixed_key = None if key is None else _bytes_of(key, in_base64)
    except ValueError as error:
        raise Misused(f"--key: {error}") from error
    between = None if separator is None else separator.encode()
    return lambda line: (_record_of_line(line, fixed_key, between, headers, in_base64), None)


@contextlib.contextmanager
def _source(file: Path | None) -> Iterator[BinaryIO]:
    if file is None:
        yield sys.stdin.buffer
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise Refused(f"cannot read {file}: {error.strerror}") from error
    with opened:
        yield opened


def _copy(source: BinaryIO, parse: Parse, writer: _Writer, progress: Progress) -> None:
    """Read lines as they come and send what has come whenever the source pauses."""
    number, rest = 0, b""
    try:
        while chunk := source.read1(1 << 20):  # type: ignore[attr-defined]  # all ours have it
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for line in lines:
                number += 1
                _take(parse, line, number, writer)
            progress.advance(len(chunk))
            if len(rest) > _LINE_BYTES_MAX:
                raise Refused(f"line {number + 1} is longer than {_LINE_BYTES_MAX} bytes")
            if not _more_is_there(source):
                writer.flush()
        if rest:
            _take(parse, rest, number + 1, writer)
    except KeyboardInterrupt:
        writer.flush()
        raise
    writer.flush()


def _take(parse: Parse, line: bytes, number: int, writer: _Writer) -> None:
    try:
        record, partition = parse(line)
    except ValueError as error:
        # What came before the bad line is sound: it is written, so the count said is true.
        writer.flush()
        raise Refused(
            f"line {number}: {error}; {writer.written} records before it were written"
        ) from error
    writer.add(record, partition)


def _more_is_there(source: BinaryIO) -> bool:
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):
        return True  # not a descriptor that can be asked: its end flushes


def _bytes_of(text: str, in_base64: bool) -> bytes:
    if not in_base64:
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text[:40]!r} is not base64") from error


def _record_of_line(
    line: bytes,
    key: bytes | None,
    separator: bytes | None,
    headers: Headers,
    in_base64: bool,
) -> Record:
    value = line
    if separator is not None:
        key, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"no {separator.decode()!r} between key and value")
        if in_base64:
            key = _bytes_of(key.decode("ascii", "replace"), in_base64)
    if in_base64:
        value = _bytes_of(value.decode("ascii", "replace"), in_base64)
    return Record(value=value, key=key, headers=headers)


def _record_of_json(line: bytes, headers: Headers, in_base64: bool) -> tuple[Record, int | None]:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    unknown = sorted(set(fields) - _JSON_FIELDS)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; known: {', '.join(sorted(_JSON_FIELDS))}")
    timestamp_ms, partition = fields.get("timestamp"), fields.get("partition")
    if timestamp_ms is not None and type(timestamp_ms) is not int:
        raise ValueError("`timestamp` must be milliseconds since 1970")
    if partition is not None and type(partition) is not int:
        raise ValueError("`partition` must be a number")
    record = Record(
        value=_json_bytes(fields, "value", in_base64),
        key=_json_bytes(fields, "key", in_base64),
        headers=headers + _json_headers(fields.get("headers") or ()),
        timestamp_ms=-1 if timestamp_ms is None else timestamp_ms,
    )
    return record, partition


def _json_bytes(fields: Mapping[str, Any], name: str, in_base64: bool) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        return _bytes_of(str(encoded), True)
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _bytes_of(value, in_base64)


def _json_headers(headers: Any) -> Headers:
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, (list, tuple)) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs
    ):
        raise ValueError("`headers` must be an object or a list of [name, value]")
    return tuple((str(name), _header_bytes(value)) for name, value in pairs)


def _header_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, dict) and set(value) == {"base64"}:
        return _bytes_of(str(value["base64"]), True)
    if not isinstance(value, str):
        raise ValueError('a header is text, null or {"base64": "..."}')
    return value.encode()


class _Writer:
    """Collects records per partition and sends a batch when it is large enough."""

    def __init__(
        self, client: Client, topic: str, partition: int | None, *, codec: int, acks: int
    ) -> None:
        self.written = 0
        self.offsets: dict[int, int] = {}
        self._client, self._topic, self._codec, self._acks = client, topic, codec, acks
        self._partitions = len(client.topic(topic, create=True).partitions)
        if partition is not None:
            self._check(partition)
        self._partition = partition
        self._turn = 0
        self._waiting: dict[int, list[Record]] = {}
        self._sizes: dict[int, int] = {}

    def add(self, record: Record, partition: int | None) -> None:
        if partition is None or self._partition is not None:
            partition = self._partition
        if partition is None:
            partition = self._choose(record.key)
        else:
            self._check(partition)
        if record.timestamp_ms < 0:
            record = record._replace(timestamp_ms=int(time.time() * 1000))
        size = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        if self._sizes.get(partition, 0) + size > _BATCH_BYTES:
            self._send(partition)
        self._waiting.setdefault(partition, []).append(record)
        self._sizes[partition] = self._sizes.get(partition, 0) + size
        if len(self._waiting[partition]) >= _BATCH_RECORDS:
            self._send(partition)

    def flush(self) -> None:
        for partition in list(self._waiting):
            self._send(partition)

    def _send(self, partition: int) -> None:
        records = self._waiting.pop(partition, None)
        self._sizes.pop(partition, None)
        if not records:
            return
        built = batch.build(records, codec=self._codec, timestamp_ms=records[0].timestamp_ms)
        base = self._client.produce(self._topic, partition, bytes(built), acks=self._acks)
        self.written += len(records)
        if base >= 0:
            self.offsets[partition] = base + len(records)
        self._turn += 1  # records without a key go elsewhere next time

    def _check(self, partition: int) -> None:
        if not 0 <= partition < self._partitions:
            raise Refused(
                f"partition {partition} outside 0..{self._partitions - 1} of {self._topic}"
            )

    def _choose(self, key: bytes | None) -> int:
        if key is None:
            return self._turn % self._partitions
        return (murmur2(key) & 0x7FFFFFFF) % self._partitions


def murmur2(data: bytes) -> int:
    """The hash by which Kafka's own clients choose partitions, so equal keys meet."""
    multiplier, size = 0x5BD1E995, len(data)
    result = 0x9747B28C ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & 0xFFFFFFFF
        word = (word ^ word >> 24) * multiplier & 0xFFFFFFFF
        result = (result * multiplier & 0xFFFFFFFF) ^ word
    if size > whole:
        result ^= int.from_bytes(data[whole:], "little")
        result = result * multiplier & 0xFFFFFFFF
    result = (result ^ result >> 13) * multiplier & 0xFFFFFFFF
    return result ^ result >> 15
