"""`pentalog table`: pipelines from topics into tables, and the upkeep of these tables."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from pentalog.cli import output
from pentalog.cli.client import parse_servers
from pentalog.cli.output import Misused, Refused, reported
from pentalog.cli.refusals import refuse_pipelines_early

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pentalog.tables.exposition import PipelineMetrics
    from pentalog.tables.pipeline import Pipeline

app = typer.Typer(
    help="Topics into tables.  Exit codes: 0 done, 1 refused or failed, 2 used wrongly.",
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipelines, in TOML.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="One of its pipelines.")]
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Some of its pipelines; or all.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Master = Annotated[str | None, typer.Option(help="local[*], spark://HOST:PORT, k8s://..., yarn.")]
Jars = Annotated[str | None, typer.Option(metavar="FILES", help="Jars for Spark, with commas.")]

T = TypeVar("T")

_EXAMPLE: Final = """\
[pipeline.{name}]
from = "{server}"
topics = ["{topic}"]
into = "lake/{name}"
decode = {{ format = "json" }}
"""


@app.command(epilog="Example: pentalog table init pipeline.toml --topic orders")
@reported
def init(
    file: File,
    topic: Annotated[str, typer.Option(metavar="NAME", help="What to read.")] = "orders",
    server: Annotated[
        str, typer.Option(envvar="PENTALOG_SERVER", metavar="HOST:PORT", help="Where from.")
    ] = "127.0.0.1:9092",
    as_json: AsJson = False,
) -> None:
    """Write a small pipeline file to begin with."""
    parse_servers(server)
    if file.exists():
        raise Refused(f"{file} is there already; name another file")
    name = "".join(one if one.isalnum() or one in "_-" else "_" for one in topic)
    with _refusing():
        file.write_text(_EXAMPLE.format(name=name, server=server, topic=topic), encoding="utf-8")
    done = f"wrote {file}; run it with: pentalog table run {file} --once"
    output.show_done(done, {"file": str(file), "pipeline": name}, as_json=as_json)


@app.command(epilog="Example: pentalog table run pipeline.toml --once")
@reported
def run(
    file: File,
    names: Names = None,
    once: Annotated[bool, typer.Option("--once", help="Up to the present end, then exit.")] = False,
    master: Master = None,
    jars: Jars = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /metrics for Prometheus there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run pipelines, all in one Spark driver, until SIGTERM or Ctrl-C."""
    from pentalog.cli.refusals import reason
    from pentalog.tables.exposition import PipelineMetrics
    from pentalog.tables.runner import Runner

    counted = PipelineMetrics()
    with (
        _refusing(),
        _serving(metrics, counted),
        _session(_answering(_loaded(file, names)), master, jars, quick=once) as (
            spark,
            pipelines,
        ),
    ):
        from pentalog.cli.pipelines_display import Display
        from pentalog.tables.announcing import Announcer

        with Display(as_json=as_json) as display, Announcer(pipelines):

            def report(progress: Mapping[str, Any]) -> None:
                counted.take(progress)
                display.show(progress)

            runner = Runner(spark, pipelines, once=once, report=report, reason=reason)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: runner.stop())
            finished = runner.run()
        if not finished:
            raise Refused("stopped before the end was reached; run it again to go on")


@app.command("list", epilog="Example: pentalog table list pipeline.toml")
@reported
def list_pipelines(file: File, as_json: AsJson = False) -> None:
    """Show the pipelines of a file."""
    from pentalog.tables import status

    with _refusing():
        rows = [
            {
                "pipeline": one.name,
                "state": status.state_of(one),
                "topics": ",".join(one.topics) or one.pattern,
                "into": one.into,
                "sink": one.sink,
            }
            for one in _loaded(file, None)
        ]
    if as_json:
        output.show_json(rows)
    else:
        columns = ["pipeline", "state", "topics", "into", "sink"]
        output.show_rows(columns, [[row[name] for name in columns] for row in rows])


@app.command("status", epilog="Example: pentalog table status pipeline.toml orders")
@reported
def show_status(file: File, names: Names = None, as_json: AsJson = False) -> None:
    """Show how far pipelines are; works while they run, and without Spark."""
    from pentalog.tables import status

    with _refusing():
        found = [status.describe(one) for one in _loaded(file, names)]
    if as_json:
        output.show_json(found)
        return
    rows = []
    for one in found:
        if "unknown" in one["lag"]:
            typer.echo(f"{one['pipeline']}: lag unknown: {one['lag']['unknown']}", err=True)
        last = one["last_batch"]
        for layer, table in one["tables"].items():
            for at, (start, end) in table["covered"].items() or {"-": (0, 0)}.items():
                behind = one["lag"].get("by", {}).get(at, one["lag"].get("records", "?"))
                lag = behind if layer == "bronze" else ""
                rate = last.get("rows_per_second", "") if layer == "bronze" else ""
                rows.append([one["pipeline"], one["state"], layer, at, start, end, lag, rate])
    columns = ["pipeline", "state", "table", "partition", "from", "to", "lag", "rows/s"]
    output.show_rows(columns, rows)


@app.command(epilog="Example: pentalog table pause pipeline.toml orders")
@reported
def pause(file: File, names: Names = None, as_json: AsJson = False) -> None:
    """Let running pipelines rest after their present batch, until `resume`."""
    _set_paused(file, names, paused=True, as_json=as_json)


@app.command(epilog="Example: pentalog table resume pipeline.toml orders")
@reported
def resume(file: File, names: Names = None, as_json: AsJson = False) -> None:
    """Let paused pipelines go on."""
    _set_paused(file, names, paused=False, as_json=as_json)


def _set_paused(file: Path, names: list[str] | None, *, paused: bool, as_json: bool) -> None:
    from pentalog.tables import checkpoint

    with _refusing():
        for one in _loaded(file, names):
            checkpoint.set_paused(one.checkpoint, paused=paused)
            word = "paused" if paused else "resumed"
            fields = {"pipeline": one.name, "paused": paused}
            output.show_done(f"{word} {one.name}", fields, as_json=as_json)


@app.command(epilog="Example: pentalog table compact pipeline.toml")
@reported
def compact(file: File, names: Names = None, as_json: AsJson = False) -> None:
    """Write small files together."""
    from pentalog.tables import maintenance

    with _refusing():
        for one in _loaded(file, names):
            for layer, done in _of_tables(one, maintenance.compact(one)).items():
                files = f"{done['files_removed']} files into {done['files_added']}"
                text = f"{one.name}/{layer}: {files}"
                fields = {"pipeline": one.name, "table": layer, **done}
                output.show_done(text, fields, as_json=as_json)


@app.command(epilog="Example: pentalog table vacuum pipeline.toml --older-than '7 days'")
@reported
def vacuum(
    file: File,
    names: Names = None,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Keep longer than the longest batch.")
    ] = "7 days",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove files that tables do not need, those that crashes left included."""
    from pentalog.tables import maintenance
    from pentalog.tables.pipeline import duration_ms

    try:
        retention_ms = duration_ms(older_than)
    except ValueError as error:
        raise Misused(f"--older-than: {error}") from None
    with _refusing():
        for one in _loaded(file, names):
            found = maintenance.vacuum(one, retention_ms=retention_ms, dry_run=dry_run)
            for layer, files in _of_tables(one, found).items():
                word = "would remove" if dry_run else "removed"
                fields = {"pipeline": one.name, "table": layer, "files": files, "dry_run": dry_run}
                text = f"{one.name}/{layer}: {word} {len(files)} files"
                output.show_done(text, fields, as_json=as_json)


def _of_tables(pipeline: Pipeline, found: dict[str, T]) -> dict[str, T]:
    """What was done to each table; said if there is none."""
    if not found:
        typer.echo(f"{pipeline.name}: has no tables yet; run it first", err=True)
    return found


@app.command(epilog="Example: pentalog table backfill pipeline.toml orders --from earliest")
@reported
def backfill(
    file: File,
    name: Name,
    starting: Annotated[
        str,
        typer.Option("--from", metavar="WHERE", help="earliest, an ISO time, or offsets in JSON."),
    ],
    master: Master = None,
    jars: Jars = None,
    as_json: AsJson = False,
) -> None:
    """Take in records from before the tables' beginning; what is there is not taken again."""
    from pentalog.cli.pipelines_display import Display
    from pentalog.tables import repair
    from pentalog.tables.sinks.state import name_of

    with (
        _refusing(),
        _session(_answering(_loaded(file, [name])), master, jars) as (spark, pipelines),
        Display(as_json=False) as display,
    ):
        added = repair.backfill(spark, pipelines[0], starting, display.show_live)
    shown = {name_of(at): [one.start, one.end] for at, one in sorted(added.items())}
    text = ", ".join(f"{at} {one[0]}..{one[1]}" for at, one in shown.items()) or "nothing to add"
    output.show_done(f"{name}: {text}", {"pipeline": name, "added": shown}, as_json=as_json)


@app.command(epilog="Example: pentalog table rebuild pipeline.toml orders")
@reported
def rebuild(
    file: File, name: Name, master: Master = None, jars: Jars = None, as_json: AsJson = False
) -> None:
    """Make silver, dead letters and gold anew from bronze, by the file as it is now."""
    from pentalog.tables import repair

    _with_counts(file, name, master, jars, as_json, repair.rebuild)


@app.command("replay-dlq", epilog="Example: pentalog table replay-dlq pipeline.toml orders")
@reported
def replay_dlq(
    file: File, name: Name, master: Master = None, jars: Jars = None, as_json: AsJson = False
) -> None:
    """Try dead letters again; those that are rows by now move to silver."""
    from pentalog.tables import repair

    _with_counts(file, name, master, jars, as_json, repair.replay_dead_letters)


def _with_counts(
    file: Path,
    name: str,
    master: str | None,
    jars: str | None,
    as_json: bool,
    work: Callable[[SparkSession, Pipeline], Mapping[str, int]],
) -> None:
    with _refusing(), _session(_loaded(file, [name]), master, jars) as (spark, pipelines):
        counts = work(spark, pipelines[0])
    text = ", ".join(f"{key} {count}" for key, count in counts.items())
    output.show_done(f"{name}: {text}", {"pipeline": name, **counts}, as_json=as_json)


@app.command(epilog="Example: pentalog table drop pipeline.toml orders --yes")
@reported
def drop(
    file: File,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a pipeline's tables and its progress; the topics stay."""
    from pentalog.tables import maintenance, repair

    with _refusing():
        (one,) = _loaded(file, [name])
        repair.refuse_if_running(one)
        if not yes and not (sys.stdin.isatty() and typer.confirm(f"remove {one.into}?")):
            raise Misused(f"this removes the tables under {one.into}; say so with --yes")
        dropped = maintenance.drop(one)
    fields = {"pipeline": name, "dropped": dropped}
    output.show_done(f"dropped {name}: {', '.join(dropped) or 'nothing'}", fields, as_json=as_json)


def _loaded(file: Path, names: list[str] | None) -> list[Pipeline]:
    from pentalog.tables.pipeline import load

    pipelines = load(file)
    for name in names or ():
        if name not in pipelines:
            raise Misused(f"{file} has no pipeline {name!r}; it has: {', '.join(pipelines)}")
    return [one for one in pipelines.values() if not names or one.name in names]


def _answering(pipelines: list[Pipeline]) -> list[Pipeline]:
    refuse_pipelines_early(pipelines)
    return pipelines


@contextmanager
def _serving(address: str | None, metrics: PipelineMetrics) -> Iterator[None]:
    if address is None:
        yield
        return
    from pentalog.tables.exposition import MetricsServer

    try:
        server = MetricsServer(address, metrics)
    except ValueError as error:
        raise Misused(f"--metrics: {error}") from None
    except OSError as error:
        raise Refused(f"--metrics {address}: {error.strerror or error}") from None
    with server:
        yield


@contextmanager
def _session(
    pipelines: list[Pipeline], master: str | None, jars: str | None, *, quick: bool = True
) -> Iterator[tuple[SparkSession, list[Pipeline]]]:
    """Spark for as long as the work takes."""
    from pentalog.tables.jars import settings as settings_of
    from pentalog.tables.session import session

    settings = settings_of(pipelines, jars or "")
    spark = session(master=master, name="pentalog table", quick=quick, settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark, pipelines
    finally:
        spark.stop()


@contextmanager
def _refusing() -> Iterator[None]:
    from pentalog.cli.refusals import reason, refusing
    from pentalog.tables.options import OptionRefused
    from pentalog.tables.quality import RuleBroken
    from pentalog.tables.runner import PipelineFailed
    from pentalog.tables.storage import StorageError

    try:
        with refusing():
            yield
    except (OptionRefused, RuleBroken, StorageError) as error:
        raise Refused(str(error)) from error
    except PipelineFailed as error:
        raise Refused(f"pipeline {error.name}: {reason(error.text)}") from error
