"""`pentalog rustlog`: what a RustLog client can ask, of any broker that speaks its protocol."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from pentalog.cli import output
from pentalog.cli.advice import speaking_to
from pentalog.cli.output import Misused, reported
from pentalog.clients.rustlog import ConnectionLost, RustLogClient, RustLogError

_DIALECTS: Final = ("binary", "json")
_BATCH_RECORDS: Final = 1000
"""What the protocol's document lets a batch hold."""

app = typer.Typer(
    help="Write and read as a RustLog client does.  Exit codes: 0 done, 1 refused, 2 used wrongly.",
    no_args_is_help=True,
)

Server = Annotated[
    str, typer.Option(envvar="PENTALOG_RUSTLOG", metavar="HOST:PORT", help="A RustLog broker.")
]
Dialect = Annotated[str, typer.Option(help=" or ".join(_DIALECTS))]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Partition = Annotated[int, typer.Option(help="Which one.")]

_SERVER: Final = "127.0.0.1:9192"


@contextmanager
def _client(server: str, dialect: str) -> Iterator[RustLogClient]:
    if dialect not in _DIALECTS:
        raise Misused(f"--dialect {dialect!r} is none of {', '.join(_DIALECTS)}")
    with (
        speaking_to(server, ConnectionLost, RustLogError),
        RustLogClient(server, dialect=dialect) as client,
    ):
        yield client


@app.command(epilog="Example: printf 'one\\ntwo\\n' | pentalog rustlog produce orders")
@reported
def produce(
    topic: Topic,
    server: Server = _SERVER,
    partition: Partition = 0,
    dialect: Dialect = "binary",
    as_json: AsJson = False,
) -> None:
    """Write each line of stdin as one record, 1000 in a request."""
    lines = [line.rstrip(b"\n") for line in sys.stdin.buffer]
    written, first = 0, -1
    with _client(server, dialect) as client:
        for start in range(0, len(lines), _BATCH_RECORDS):
            answer = client.produce(topic, partition, lines[start : start + _BATCH_RECORDS])
            written += answer.record_count
            first = answer.base_offset if first < 0 else first
    fields = {"topic": topic, "partition": partition, "records": written, "base_offset": first}
    output.show_done(f"{written} records written to {topic}", fields, as_json=as_json)


@app.command(epilog="Example: pentalog rustlog fetch orders --offset 100 --dialect json")
@reported
def fetch(
    topic: Topic,
    server: Server = _SERVER,
    partition: Partition = 0,
    offset: Annotated[int, typer.Option(help="Where to begin.")] = 0,
    dialect: Dialect = "binary",
    as_json: AsJson = False,
) -> None:
    """Print the records of one partition up to its present end."""
    with _client(server, dialect) as client:
        for record in client.records(topic, partition, offset):
            if as_json:
                value = record.value.decode("utf-8", "backslashreplace")
                fields = {"offset": record.offset, "value": value}
                output.show_json(fields | {"timestamp_us": record.timestamp_us})
            else:
                sys.stdout.buffer.write(record.value + b"\n")
    sys.stdout.buffer.flush()


@app.command(epilog="Example: pentalog rustlog topics --json")
@reported
def topics(server: Server = _SERVER, dialect: Dialect = "json", as_json: AsJson = False) -> None:
    """List topics."""
    with _client(server, dialect) as client:
        found = client.topics()
    if as_json:
        output.show_json([one._asdict() for one in found])
    else:
        output.show_rows(("topic", "partitions"), found)


@app.command(epilog="Example: pentalog rustlog metrics")
@reported
def metrics(server: Server = _SERVER, as_json: AsJson = False) -> None:
    """Print the broker's metrics, as Prometheus reads them."""
    with _client(server, "json") as client:
        text = client.metrics()
    output.show_done(text.rstrip("\n"), {"metrics": text}, as_json=as_json)
