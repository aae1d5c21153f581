"""`pentalog inspect`: the frames of a live connection, of any door, decoded as they pass."""

from __future__ import annotations

import datetime
import json
import sys
from typing import Annotated, Any, Final

import typer

from pentalog.cli import hex_view, http, output
from pentalog.cli.output import Misused, reported

_COLUMNS: Final = ("id", "door", "peer", "client", "requests", "received_bytes", "sent_bytes")


@reported
def inspect(
    connection: Annotated[
        int | None, typer.Argument(metavar="CONNECTION", help="Its id; without it they are listed.")
    ] = None,
    server: Annotated[
        str,
        typer.Option(
            "--http", envvar="PENTALOG_HTTP", metavar="HOST:PORT", help="The http listener."
        ),
    ] = http.SERVER,
    door: Annotated[str | None, typer.Option(help="List only this door's connections.")] = None,
    in_hex: Annotated[bool, typer.Option("--hex", help="The first bytes of each frame.")] = False,
    count: Annotated[int | None, typer.Option(help="Stop after so many frames.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List the live connections, or print what passes over one of them until Ctrl-C.

    Exit codes: 0 done, 1 unreachable or no such connection, 2 used wrongly.

    Example: pentalog inspect 7 --hex
    """
    if count is not None and count < 1:
        raise Misused(f"--count {count} must be 1 or more")
    if connection is None:
        _list(server, door, as_json=as_json)
        return
    if connection < 0:
        raise Misused(f"{connection} is no connection's id; `pentalog inspect` lists them")
    try:
        _follow(server, connection, in_hex, count, as_json=as_json)
    except KeyboardInterrupt:
        return


def _list(server: str, door: str | None, *, as_json: bool) -> None:
    found = http.get_json(server, "/api/v1/connections")["connections"]
    chosen = [one for one in found if door is None or one["door"] == door]
    if as_json:
        output.show_json(chosen)
        return
    rows = [["-" if one[name] is None else one[name] for name in _COLUMNS] for one in chosen]
    output.show_rows(_COLUMNS, rows)


def _follow(
    server: str, connection: int, in_hex: bool, count: int | None, *, as_json: bool
) -> None:
    frames = 0
    for line in http.lines(server, f"/api/v1/inspect/{connection}?bytes={256 if in_hex else 1}"):
        fields = json.loads(line)
        if as_json:
            typer.echo(line)
        else:
            _show(fields, in_hex)
        sys.stdout.flush()
        frames += "direction" in fields
        if frames == count:
            return


def _show(fields: dict[str, Any], in_hex: bool) -> None:
    if "connection" in fields:
        one = fields["connection"]
        typer.echo(f"{one['door']} connection {one['id']} from {one['peer']}")
    elif "dropped" in fields:
        typer.echo(f"{fields['dropped']} frames were not told: they came too fast")
    elif "ended" in fields:
        typer.echo(str(fields["ended"]))
    else:
        _show_frame(fields, in_hex)


def _show_frame(fields: dict[str, Any], in_hex: bool) -> None:
    moment = datetime.datetime.fromtimestamp(fields["time_ms"] / 1000, datetime.UTC)
    arrow = {"in": "->", "out": "<-"}.get(fields["direction"], "?")
    words = [f"{moment:%H:%M:%S.%f}"[:-3], arrow, str(fields["name"] or "?")]
    if fields["version"] is not None:
        words.append(f"v{fields['version']}")
    words += [
        f"{name}={fields[name]}" for name in ("correlation", "topic", "client") if fields.get(name)
    ]
    typer.echo(" ".join([*words, f"{fields['length']} bytes"]))
    if in_hex and fields["hex"] is not None:
        for line in hex_view.lines(bytes.fromhex(fields["hex"]), indent="    "):
            typer.echo(line)
    elif in_hex:
        typer.echo("    not shown: it may hold a password or a key")
