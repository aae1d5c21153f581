"""`pentalog sql`: queries over live topics and over tables."""

from __future__ import annotations

import csv
import datetime
import decimal
import json
import math
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from pentalog.cli.client import parse_servers
from pentalog.cli.output import Misused, Refused, leave_quietly, reported
from pentalog.cli.refusals import refuse_early

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pentalog.tables.catalog import Catalog

FORMATS: Final = ("table", "csv", "json", "parquet")
_OF_TOPICS: Final = re.compile(
    r"(?:\btopic|`topic`)\s*\.\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>\w+))", re.IGNORECASE
)
_TEXTS: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_TIMEOUT_MS: Final = 30_000
_CLIENT_ID: Final = "pentalog-sql"
_LOOK_S: Final = 1
_SHOWN_MAX: Final = 1000
"""Rows a table shows; more can be read by programs only."""


@reported
def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="Without one: a prompt, or stdin.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Pipelines whose tables are table.NAME.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(envvar="PENTALOG_SERVER", metavar="HOST:PORT", help="Whose topics."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Topics straight from a data directory.")
    ] = None,
    format: Annotated[str | None, typer.Option(help=", ".join(FORMATS) + "; table if none")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write there, not to the terminal.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with records as they come; Ctrl-C ends it.")
    ] = False,
    starting: Annotated[
        str, typer.Option(metavar="WHERE", help="--follow: earliest, latest or an ISO time.")
    ] = "latest",
    master: Annotated[str | None, typer.Option(help="Spark's master; local[*] if none.")] = None,
) -> None:
    """Run SQL over topics (topic.NAME) and tables of pipelines (table.NAME).

    Exit codes: 0 done, 1 refused or unreachable, 2 used wrongly.

    Example: pentalog sql "select partition, count(*) from topic.orders group by 1"
    """
    form = _form(format, as_json=as_json)
    _check(query, form, output, follow, server, data)
    with _answering():
        catalog = _catalog(query, config, server, data, master)
        if follow:
            _follow(catalog, str(query), starting, form)
            return
        if query is None and sys.stdin.isatty():
            from pentalog.cli.prompt import converse

            converse(catalog, lambda rows: _show(rows, form, output))
            return
        for statement in statements(query if query is not None else sys.stdin.read()):
            _show(catalog.sql(statement), form, output)


def statements(text: str) -> Iterator[str]:
    """The queries of a text: separated by semicolons, those inside quotes and comments not."""
    start = position = 0
    while position < len(text):
        if text[position] in "'\"`":
            closing = text.find(text[position], position + 1)
            while closing > 0 and text[closing - 1] == "\\" and text[position] != "`":
                closing = text.find(text[position], closing + 1)
            position = closing if closing > 0 else len(text)
        elif text.startswith("--", position):
            position = text.find("\n", position) if "\n" in text[position:] else len(text)
        elif text.startswith("/*", position):
            closing = text.find("*/", position)
            position = closing + 1 if closing > 0 else len(text)
        elif text[position] == ";":
            if text[start:position].strip():
                yield text[start:position].strip()
            start = position + 1
        position += 1
    if text[start:].strip():
        yield text[start:].strip()


def _form(format: str | None, *, as_json: bool) -> str:
    if as_json and format not in (None, "json"):
        raise Misused(f"--json and --format {format} exclude each other; give one of them")
    return "json" if as_json else format or "table"


def _check(
    query: str | None,
    format: str,
    output: Path | None,
    follow: bool,
    server: str | None,
    data: Path | None,
) -> None:
    if format not in FORMATS:
        raise Misused(f"--format {format!r} is none of {', '.join(FORMATS)}")
    if format == "parquet" and output is None:
        raise Misused("--format parquet writes files; name a directory with --output PATH")
    if follow and query is None:
        raise Misused("--follow needs a query, such as 'select value from topic.orders'")
    if follow and (format == "parquet" or output is not None):
        raise Misused("--follow prints; to write tables continuously use `pentalog table run`")
    if data is not None and server is not None and "--server" in sys.argv:
        raise Misused("--server and --data exclude each other; give one of them")
    if server and data is None:
        parse_servers(server)
    if output is not None and not output.parent.is_dir():
        raise Refused(f"--output {output}: {output.parent} is no directory; make it first")


def _catalog(
    query: str | None,
    config: Path | None,
    server: str | None,
    data: Path | None,
    master: str | None,
) -> Catalog:
    from pentalog.tables import jars, pipeline
    from pentalog.tables.catalog import SERVER, Catalog, Places
    from pentalog.tables.session import session

    pipelines = pipeline.load(config) if config is not None else {}
    if server or data or not pipelines:
        _refuse_early(query, server or SERVER, data)
    directory = str(data.resolve()) if data is not None else ""
    places = Places("" if directory else server or "", directory, pipelines, _login())
    settings = jars.reading_settings(pipelines.values())
    spark = session(master=master, name="pentalog sql", quick=True, settings=settings)
    return Catalog(spark, places)


def _refuse_early(query: str | None, server: str, data: Path | None) -> None:
    """A query that reads a topic needs somebody to ask, and the right; one of tables does not."""
    from pentalog.cli.login import client_options
    from pentalog.tables.options import SourceOptions

    found = _OF_TOPICS.finditer(_TEXTS.sub("", query or ""))
    topics = tuple(dict.fromkeys(one["quoted"] or one["plain"] for one in found))
    if data is not None:
        refuse_early(SourceOptions(data=str(data)))
    elif topics:
        client = client_options(_TIMEOUT_MS, _CLIENT_ID)
        refuse_early(SourceOptions(servers=server, topics=topics, client=client))


def _login() -> dict[str, str]:
    """Who asks, as the source reads it: what the environment or the profile says."""
    from pentalog.cli.login import client_options

    said = client_options(_TIMEOUT_MS, _CLIENT_ID)
    named = {
        "tls": "true" if said.tls else "",
        "tlsAuthorities": said.tls_authorities or "",
        "saslMechanism": said.sasl_mechanism,
        "username": said.username,
        "password": said.password,
    }
    return {name: value for name, value in named.items() if value}


@contextmanager
def _answering() -> Iterator[None]:
    """Everything that a query may be refused for becomes one line."""
    from pentalog.cli.refusals import refusing

    with refusing():
        yield


def _show(rows: DataFrame, format: str, output: Path | None) -> None:
    if not rows.columns:
        return
    if format == "parquet":
        from pentalog.tables.storage import for_spark

        assert output is not None, "checked first"
        rows.write.mode("error").parquet(for_spark(str(output.absolute())))
    elif output is not None:
        with output.open("w", encoding="utf-8", newline="") as file:
            _print(rows.columns, rows.toLocalIterator(prefetchPartitions=True), format, file)
    else:
        found = rows.limit(_SHOWN_MAX + 1).collect() if format == "table" else None
        every = rows.toLocalIterator(prefetchPartitions=True) if found is None else found
        try:
            _print(rows.columns, every, format, sys.stdout)
        except BrokenPipeError:
            leave_quietly()


def _print(columns: list[str], rows: Iterable[Any], format: str, file: TextIO) -> None:
    if format == "table":
        _print_table(columns, list(rows), file)
    elif format == "csv":
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(["" if cell is None else text_of(cell) for cell in row])
    else:
        for row in rows:
            cells = {name: plain(cell) for name, cell in zip(columns, row, strict=True)}
            file.write(json.dumps(cells, ensure_ascii=False) + "\n")
    file.flush()


def _print_table(columns: list[str], rows: list[Any], file: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SQUARE if file.isatty() else box.ASCII2)
    for row in rows[:_SHOWN_MAX]:
        table.add_row(*(Text("null", "dim") if cell is None else text_of(cell) for cell in row))
    # A pipe has no width; nothing may be cut off there.
    Console(file=file, width=None if file.isatty() else 10_000, markup=False).print(table)
    if len(rows) > _SHOWN_MAX:
        file.write(f"the first {_SHOWN_MAX} rows; --format csv or json gives all of them\n")


def _follow(catalog: Catalog, query: str, starting: str, format: str) -> None:
    from pyspark.errors import AnalysisException

    rows = catalog.stream(query, starting=starting)
    if not rows.isStreaming:
        raise Misused("--follow needs a topic in the query, such as topic.orders")

    def show(batch: DataFrame, _: int) -> None:
        if format == "table":
            found = batch.collect()
            if found:
                _print_table(batch.columns, found, sys.stdout)
        else:
            _print(batch.columns, batch.toLocalIterator(), format, sys.stdout)
        sys.stdout.flush()

    told: list[int] = []
    # Spark's own handler would ask Java in the middle of another question, and print both traces.
    before = signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    writer = rows.writeStream.foreachBatch(show)
    try:
        try:
            running = writer.outputMode("update").start()
        except AnalysisException:
            # What must be sorted is shown whole every time.
            running = writer.outputMode("complete").start()
        while not told and not running.awaitTermination(_LOOK_S):
            pass
        running.stop()
    finally:
        signal.signal(signal.SIGINT, before)


def plain(cell: Any) -> Any:
    """A cell as JSON has it."""
    if isinstance(cell, bytes | bytearray):
        return bytes(cell).decode("utf-8", "backslashreplace")
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(sep=" ")
    if isinstance(cell, datetime.date | datetime.timedelta | decimal.Decimal):
        return str(cell)
    if isinstance(cell, float) and not math.isfinite(cell):
        return "NaN" if math.isnan(cell) else "Infinity" if cell > 0 else "-Infinity"
    if isinstance(cell, dict):
        return {str(plain(key)): plain(value) for key, value in cell.items()}
    if hasattr(cell, "asDict"):
        return {name: plain(value) for name, value in cell.asDict().items()}
    if isinstance(cell, list | tuple):
        return [plain(value) for value in cell]
    return cell


def text_of(cell: Any) -> str:
    """A cell as people read it."""
    found = plain(cell)
    if isinstance(found, str):
        return found
    return json.dumps(found, ensure_ascii=False)
