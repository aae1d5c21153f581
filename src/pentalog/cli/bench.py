"""`pentalog bench`: load on one door of a broker, watched while it runs."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from pentalog.cli import output
from pentalog.cli.bench_doors import DOORS, Plan
from pentalog.cli.bench_load import Load, Measured, consume, produce, refusing
from pentalog.cli.client import Client, parse_server
from pentalog.cli.output import Misused, Refused, reported

_COLUMNS: Final = (
    "door", "direction", "records", "seconds", "records/s", "MB/s", "p50 ms", "p99 ms",
    "broker CPU us/record",
)  # fmt: skip
_ADDRESSES: Final = {"kafka": "PENTALOG_SERVER", "rustlog": "PENTALOG_RUSTLOG"} | {
    "blipmq": "PENTALOG_BLIPMQ"
}


@reported
def bench(
    door: Annotated[str, typer.Argument(metavar="DOOR", help=", ".join(DOORS))],
    write: Annotated[bool, typer.Option("--produce", help="Write only.")] = False,
    read: Annotated[
        bool, typer.Option("--consume", help="Read too, or with --topic only.")
    ] = False,
    records: Annotated[int, typer.Option(help="How many in all.")] = 1_000_000,
    size: Annotated[int, typer.Option(help="Bytes of a record.")] = 100,
    connections: Annotated[int, typer.Option(help="At a time.")] = 1,
    batch: Annotated[int, typer.Option(help="Records in a request.")] = 1_000,
    in_flight: Annotated[int, typer.Option(help="Requests under way per connection.")] = 5,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The door's address.")
    ] = None,
    controller: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Fluvio's other port, to make topics.")
    ] = "127.0.0.1:9003",
    kafka: Annotated[
        str,
        typer.Option(
            envvar="PENTALOG_SERVER", metavar="HOST:PORT", help="To remove the topic afterwards."
        ),
    ] = DOORS["kafka"].server,
    key: Annotated[
        str, typer.Option(envvar="PENTALOG_BLIPMQ_KEY", help="BlipMQ's API key.")
    ] = "dev-key",
    topic: Annotated[
        str | None, typer.Option(help="Use this one, which must be there; else one of its own.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write and read records as fast as a door takes and gives them; every write is acknowledged.

    Without --produce and --consume both are measured.  This program shares the machine with a local
    broker: its rate is what both can do together, the broker's CPU is the broker's alone.

    Exit codes: 0 done, 1 unreachable or refused, 2 used wrongly.

    Example: pentalog bench kafka --records 1000000 --size 100 --connections 4
    """
    if door not in DOORS:
        raise Misused(f"{door!r} is none of the doors {', '.join(DOORS)}")
    numbers = {"records": records, "connections": connections, "batch": batch}
    for name, number in (numbers | {"in-flight": in_flight}).items():
        if number < 1:
            raise Misused(f"--{name} {number} must be 1 or more")
    if size < 0:
        raise Misused(f"--size {size} must be 0 or more")
    chosen = DOORS[door]
    address = server or os.environ.get(_ADDRESSES.get(door, ""), "") or chosen.server
    parse_server(address)
    name = topic or f"bench-{door}-{secrets.token_hex(4)}"
    plan = Plan(address, name, connections, min(batch, records), size, key, controller)
    load = Load(chosen, plan, connections, records, in_flight)
    both = write == read
    found: list[Measured] = []
    with refusing(address), _watched(door) as watch:
        if topic is None:
            chosen.prepare(plan)
        try:
            if write or both or (topic is None and not chosen.follows):
                found.append(produce(load, watch))
            if read or both:
                found.append(consume(load, watch))
        finally:
            if topic is None:
                _remove(address if door == "kafka" else kafka, name)
    _show(door, found, as_json=as_json)


def _remove(kafka: str, topic: str) -> None:
    try:
        with Client(kafka, timeout_ms=10_000) as client:
            client.delete_topic(topic)
    except Refused:
        hint = f"`pentalog topic delete {topic}` removes it"
        typer.echo(f"pentalog: topic {topic} stays, no broker at {kafka}: {hint}", err=True)


@contextmanager
def _watched(door: str) -> Iterator[Callable[[Measured], None]]:
    """A live line on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:
        yield lambda found: live.update(
            f"{door} {found.direction}: {found.records:,} records, {found.rate:,.0f}/s, "
            f"{found.megabytes:.1f} MB/s, p99 {found.percentile(0.99):.2f} ms"
        )


def _show(door: str, found: list[Measured], *, as_json: bool) -> None:
    if as_json:
        output.show_json([_fields(door, one) for one in found])
        return
    rows = [
        (
            door,
            one.direction,
            f"{one.records:,}",
            f"{one.seconds:.2f}",
            f"{one.rate:,.0f}",
            f"{one.megabytes:.1f}",
            f"{one.percentile(0.5):.2f}",
            f"{one.percentile(0.99):.2f}",
            "-" if one.cpu_us is None else f"{one.cpu_us:.3f}",
        )
        for one in found
    ]
    output.show_rows(_COLUMNS, rows)


def _fields(door: str, one: Measured) -> dict[str, Any]:
    return {
        "door": door,
        "direction": one.direction,
        "records": one.records,
        "seconds": round(one.seconds, 3),
        "records_per_second": round(one.rate),
        "megabytes_per_second": round(one.megabytes, 2),
        "p50_ms": round(one.percentile(0.5), 3),
        "p99_ms": round(one.percentile(0.99), 3),
        "broker_cpu_us_per_record": None if one.cpu_us is None else round(one.cpu_us, 4),
    }
