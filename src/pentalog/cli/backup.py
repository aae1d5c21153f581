"""`pentalog backup` and `pentalog restore`: a data directory, copied while it is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pentalog.cli import backups, output
from pentalog.cli.output import REFUSED, reported

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Data = Annotated[
    Path, typer.Option(envvar="PENTALOG_DATA", metavar="DIR", help="A broker's data directory.")
]


@reported
def backup(
    into: Annotated[Path, typer.Argument(metavar="BACKUP", help="A directory that is new.")],
    data: Data = Path("pentalog-data"),
    base: Annotated[
        Path | None,
        typer.Option(metavar="BACKUP", help="Link what has not changed since this one."),
    ] = None,
    link: Annotated[
        bool, typer.Option("--link", help="Link closed segments: quick, but on the same disk.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only verify a backup.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy everything a broker keeps, while it runs or not, and verify the copy.

    It holds every record and offset acknowledged before it began.

    Exit codes: 0 done, 1 refused, or damage was found in the log (the backup is made anyway),
    2 used wrongly.

    Example: pentalog backup /backups/monday --data pentalog-data
    """
    if check:
        summary = backups.verify(into)
        _show(f"{into} is sound", into, summary, as_json=as_json)
        return
    _show(
        f"backed up {data}", into, backups.take(data, into, base=base, link=link), as_json=as_json
    )


@reported
def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="What `backup` made.")],
    data: Data = Path("pentalog-data"),
    as_json: AsJson = False,
) -> None:
    """Verify a backup, copy it into a data directory that is new or empty, and verify that.

    Exit codes: 0 done, 1 refused or damaged, 2 used wrongly.

    Example: pentalog restore /backups/monday --data pentalog-data
    """
    summary = backups.restore(source, data)
    _show(f"restored {data}", source, summary, as_json=as_json)


def _show(text: str, path: Path, summary: backups.Summary, *, as_json: bool) -> None:
    fields = {"backup": str(path), **summary._asdict(), "damages": list(summary.damages)}
    said = (
        f"{text}: {summary.partitions} partitions, {summary.segments} segments, "
        f"{summary.records} records, {summary.bytes} bytes"
    )
    if summary.linked:
        said += f", {summary.linked} segments linked"
    output.show_done(said, fields, as_json=as_json)
    if summary.damages:
        for damage in summary.damages:
            typer.echo(f"pentalog: damaged in the log: {damage}", err=True)
        raise typer.Exit(REFUSED)
