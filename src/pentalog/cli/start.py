"""`pentalog start`: a broker in this process, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pentalog.cli import broker, logs
from pentalog.cli.config import with_settings


@with_settings
def start(
    config_file: Path | None,
    flags: dict[str, object],
    log_level: Annotated[
        str,
        typer.Option(envvar="PENTALOG_LOG_LEVEL", metavar="LEVEL", help=", ".join(logs.LEVELS)),
    ] = "info",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per event.")] = False,
) -> None:
    """Start a broker.  Prints where it listens, then `ready`; SIGTERM or Ctrl-C stops it.

    Exit codes: 0 stopped as asked, 1 the disk failed while stopping, 2 could not start.

    Example: pentalog start --data /var/lib/pentalog --listen kafka=127.0.0.1:9092
    """
    config = str(config_file) if config_file else None
    raise typer.Exit(broker.run(config, flags, log_level, as_json=as_json))
