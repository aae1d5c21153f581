"""`pentalog verify`: prove that a pipeline's tables hold what the log holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pentalog.cli import output
from pentalog.cli.output import REFUSED, Misused, reported
from pentalog.cli.refusals import refuse_pipelines_early, refusing

if TYPE_CHECKING:
    from pentalog.tables.verification import Report

_COLUMNS: Final = (
    "topic", "partition", "start", "end", "records", "control", "aborted", "compacted", "expired",
    "bronze", "silver", "dead_letters", "dropped", "waiting",
)  # fmt: skip
_SHOWN_MAX: Final = 50


@reported
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of pipelines.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One of them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line each.")] = False,
    master: Annotated[str | None, typer.Option(help="Spark's master; local[*] if none.")] = None,
) -> None:
    """Compare tables with the log, offset by offset and value by value, as a Spark job.

    Exit codes: 0 every offset is accounted for, 1 some are not (their ranges are printed), 2 used
    wrongly.

    Example: pentalog verify pipeline.toml orders
    """
    with refusing():
        from pentalog.tables import jars, pipeline, verification
        from pentalog.tables.session import session

        pipelines = pipeline.load(file)
        if name is not None and name not in pipelines:
            raise Misused(f"{file} has no pipeline {name!r}; it has: {', '.join(pipelines)}")
        chosen = [pipelines[name]] if name is not None else list(pipelines.values())
        refuse_pipelines_early(chosen)
        settings = jars.reading_settings(chosen)
        spark = session(master=master, name="pentalog verify", quick=True, settings=settings)
        reports = [verification.verify(spark, one) for one in chosen]
    for report in reports:
        _show(report, as_json=as_json)
    if not all(report.ok for report in reports):
        raise typer.Exit(REFUSED)


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        output.show_json(report.as_json())
        return
    rows = [[getattr(one, name) for name in _COLUMNS] for one in report.partitions]
    output.show_rows(_COLUMNS, rows, title=report.pipeline)
    for gold in report.gold:
        compared = f"not compared: {gold.not_compared}" if gold.not_compared else "compared"
        typer.echo(f"{gold.layer}: {gold.windows} windows {compared}")
    for problem in report.problems[:_SHOWN_MAX]:
        typer.echo(str(problem))
    more = len(report.problems) - _SHOWN_MAX + report.problems_left_out
    if more > 0:
        typer.echo(f"and {more} more ranges; --json lists {len(report.problems)} of them")
    offsets = sum(one.end - one.start for one in report.partitions)
    if report.ok:
        typer.echo(f"{report.pipeline}: all {offsets} offsets are accounted for")
    else:
        typer.echo(f"{report.pipeline}: {len(report.problems)} ranges are not as they must be")
