"""`pentalog torture`: crashes, power cuts and bad bits on this disk, with a report."""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from pentalog.cli import output
from pentalog.cli.output import REFUSED, Misused, Refused, reported
from pentalog.cli.progress import Progress
from pentalog.cli.torment import KINDS, Report, Torment


@reported
def torture(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Where the disk is that is to be tried."),
    ] = Path(),
    rounds: Annotated[int, typer.Option(help="How often the broker is killed.")] = 30,
    seed: Annotated[int | None, typer.Option(help="Do again what a run with it did.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Kill a broker under load, tear its files, flip their bits, and look for what was lost.

    Everything happens in a new directory inside of DIR, which is removed if all went well.

    Exit codes: 0 nothing was lost, 1 something was or the broker did not start, 2 used wrongly.

    Example: pentalog torture /var/lib --rounds 100
    """
    if rounds < 1:
        raise Misused(f"--rounds {rounds} must be 1 or more")
    chosen = random.randrange(1 << 30) if seed is None else seed
    try:
        scratch = Path(tempfile.mkdtemp(prefix="pentalog-torture-", dir=directory))
    except OSError as error:
        raise Refused(f"cannot write in {directory}: {error.strerror}; name another DIR") from error
    started = time.monotonic()
    torment = Torment(scratch, chosen)
    try:
        with Progress("killing", rounds) as progress:
            torment.run(rounds, progress.advance)
    except Refused as error:
        raise Refused(f"{error}; everything is kept in {scratch}") from error
    report, seconds = torment.report, time.monotonic() - started
    fields = {"seed": chosen, **dataclasses.asdict(report), "seconds": round(seconds, 1)}
    if report.ok:
        shutil.rmtree(scratch)
    else:
        fields["kept"] = str(scratch)
    if as_json:
        output.show_json(fields)
    else:
        _show(report, chosen, seconds, scratch)
    if not report.ok:
        raise typer.Exit(REFUSED)


def _show(report: Report, seed: int, seconds: float, scratch: Path) -> None:
    rows = [
        ("rounds", report.rounds, f"{', '.join(KINDS)} in turn; seed {seed}; {seconds:.1f} s"),
        ("killed with -9", report.kills, "under load"),
        ("power cuts", report.tears, f"{report.torn_bytes} bytes of segments torn off"),
        ("bits flipped", report.flips, f"{report.flips_harmless} where nothing depends on them"),
        ("acknowledged", report.acknowledged, "records"),
        ("lost", report.lost, "of these"),
        ("served wrong", report.wrong, "with another value than was written"),
        ("damage detected", report.flips_detected, f"{report.damaged} records in batches hit"),
    ]
    output.show_rows(("what", "count", ""), rows, title="torture")
    for problem in report.problems:
        typer.echo(problem)
    if report.ok:
        typer.echo("nothing acknowledged was lost")
    else:
        typer.echo(f"something was lost; everything is kept in {scratch}")
