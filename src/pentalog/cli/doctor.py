"""`pentalog doctor`: is this machine fit for a broker, and if not, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pentalog.cli import broker, bundle, checkup, http, output
from pentalog.cli.config import with_settings
from pentalog.cli.output import REFUSED, Misused, reported
from pentalog.config import ConfigError


def _doctor(
    config_file: Path | None,
    flags: dict[str, object],
    server: Annotated[
        str,
        typer.Option(
            "--http", envvar="PENTALOG_HTTP", metavar="HOST:PORT", help="For the bundle's metrics."
        ),
    ] = http.SERVER,
    into: Annotated[
        Path | None,
        typer.Option("--bundle", metavar="FILE", help="Write a support bundle (zip), no secrets."),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The broker's log, its end for the bundle.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check ports, directory, disk, limits, kernels, Java and Spark, and say what to do.

    Takes the settings of `pentalog start` and looks at what a broker with them would meet.

    Exit codes: 0 fit, warnings or not; 1 something must be mended; 2 used wrongly.

    Example: pentalog doctor --data /var/lib/pentalog --bundle support.zip
    """
    if log is not None and into is None:
        raise Misused("--log goes into a bundle: name it with --bundle FILE")
    try:
        loaded = broker.read(str(config_file) if config_file else None, flags)
        found = list(checkup.findings(loaded.config))
    except ConfigError as error:
        raise Misused(str(error)) from error
    if as_json:
        output.show_json([one._asdict() for one in found])
    else:
        columns = ("check", "state", "found", "what to do")
        output.show_rows(columns, [(one.name, one.state, one.text, one.advice) for one in found])
    if into is not None:
        parts = bundle.write(into, loaded, found, server=server, log=log)
        typer.echo(f"{into} holds {', '.join(parts)}", err=True)
    if any(one.state == checkup.FAIL for one in found):
        raise typer.Exit(REFUSED)


doctor = with_settings(reported(_doctor))
