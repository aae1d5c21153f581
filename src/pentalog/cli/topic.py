"""`pentalog topic`: make, show, change and remove topics."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from pentalog.cli import completion, output
from pentalog.cli.client import EARLIEST, LATEST, Client
from pentalog.cli.output import Misused, Refused, reported

_TOPIC_LEVEL: Final = 1
"""Kafka's number for a setting that the topic itself overrides."""

app = typer.Typer(
    help="Make, show, change and remove topics.  Exit codes: 0 done, 1 refused, 2 used wrongly.",
    no_args_is_help=True,
)

Server = Annotated[
    str,
    typer.Option(envvar="PENTALOG_SERVER", metavar="HOST:PORT", help="Any broker of the cluster."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=completion.topics)]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A topic setting by Kafka's name; repeatable."
    ),
]


@app.command(
    epilog="Example: pentalog topic create orders --partitions 3 --set retention.ms=3600000"
    "\n\npentalog topic create clean --from raw --smartmodule drop-nulls"
)
@reported
def create(
    name: Name,
    server: Server = "127.0.0.1:9092",
    partitions: Annotated[
        int, typer.Option(show_default=False, help="How many; without it the broker's own default.")
    ] = -1,
    settings: Settings = None,
    source: Annotated[
        str, typer.Option("--from", metavar="TOPIC", help="Derive it from this topic, for ever.")
    ] = "",
    smartmodule: Annotated[
        str, typer.Option(metavar="NAME", help="The stored SmartModule that derives it.")
    ] = "",
    parameters: Annotated[
        list[str] | None,
        typer.Option("--parameter", metavar="NAME=VALUE", help="For the SmartModule; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a topic."""
    wanted = output.pairs(settings or [], "--set")
    wanted |= _derivation(source, smartmodule, parameters or [])
    if partitions == 0 or partitions < -1:
        raise Misused(f"--partitions {partitions} must be 1 or more")
    with Client(server) as client:
        if source and partitions == -1:
            partitions = len(client.topic(source).partitions)
        client.create_topic(name, partitions, wanted)
        made = client.topic(name)
    count = len(made.partitions)
    fields = {"topic": name, "partitions": count, "settings": wanted}
    output.show_done(f"created {name}: {_counted(count)}", fields, as_json=as_json)


@app.command("list", epilog="Example: pentalog topic list --json")
@reported
def list_topics(server: Server = "127.0.0.1:9092", as_json: AsJson = False) -> None:
    """Show the names of all topics."""
    with Client(server) as client:
        topics = sorted((topic.name, len(topic.partitions)) for topic in client.all_topics())
    if as_json:
        output.show_json([{"topic": name, "partitions": count} for name, count in topics])
    else:
        output.show_rows(["topic", "partitions"], topics)


@app.command(epilog="Example: pentalog topic describe orders")
@reported
def describe(name: Name, server: Server = "127.0.0.1:9092", as_json: AsJson = False) -> None:
    """Show a topic's partitions, their offsets and its settings."""
    with Client(server) as client:
        topic = client.topic(name)
        indexes = sorted(part.partition_index for part in topic.partitions)
        starts = client.offsets(name, dict.fromkeys(indexes, EARLIEST))
        ends = client.offsets(name, dict.fromkeys(indexes, LATEST))
        settings = sorted(client.settings(name), key=lambda setting: str(setting.name))
    topic_id = str(getattr(topic, "topic_id", None) or "")
    if as_json:
        output.show_json(
            {
                "topic": name,
                "topic_id": topic_id,
                "partitions": [
                    {"partition": index, "start": starts[index], "end": ends[index]}
                    for index in indexes
                ],
                "settings": {setting.name: setting.value for setting in settings},
                "overrides": [setting.name for setting in settings if _is_override(setting)],
            }
        )
        return
    rows = [(index, starts[index], ends[index], ends[index] - starts[index]) for index in indexes]
    columns = ["partition", "start", "end", "offsets"]
    output.show_rows(columns, rows, title=f"{name}  {topic_id}")
    output.show_rows(
        ["setting", "value", "from"],
        [
            (setting.name, setting.value, "topic" if _is_override(setting) else "default")
            for setting in settings
        ],
    )


@app.command(
    epilog="Example: pentalog topic alter orders --set cleanup.policy=compact --partitions 6"
)
@reported
def alter(
    name: Name,
    server: Server = "127.0.0.1:9092",
    settings: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Back to the default; repeatable."),
    ] = None,
    partitions: Annotated[int | None, typer.Option(help="Grow to this many.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change a topic's settings, or give it more partitions."""
    change, drop = output.pairs(settings or [], "--set"), unset or []
    if not change and not drop and partitions is None:
        raise Misused("nothing to change: give --set NAME=VALUE, --unset NAME or --partitions N")
    with Client(server) as client:
        client.topic(name)
        if drop:
            # Brokers take back whatever they are told to, settings that nobody knows too.
            known = {setting.name for setting in client.settings(name)}
            for unknown in [each for each in drop if each not in known]:
                raise Refused(
                    f"topic {name!r} has no setting {unknown!r}; `pentalog topic describe {name}` "
                    "shows those it has"
                )
        if change or drop:
            client.configure_topic(name, change, drop)
        if partitions is not None:
            client.grow_topic(name, partitions)
    fields: dict[str, Any] = {"topic": name, "set": change, "unset": drop, "partitions": partitions}
    output.show_done(f"changed {name}", fields, as_json=as_json)


@app.command(epilog="Example: pentalog topic delete orders")
@reported
def delete(name: Name, server: Server = "127.0.0.1:9092", as_json: AsJson = False) -> None:
    """Remove a topic and all its records."""
    with Client(server) as client:
        client.delete_topic(name)
    output.show_done(f"deleted {name}", {"topic": name, "deleted": True}, as_json=as_json)


def _derivation(source: str, smartmodule: str, parameters: list[str]) -> dict[str, str]:
    """The settings of a derived topic."""
    if bool(source) != bool(smartmodule) or (parameters and not source):
        raise Misused("--from TOPIC and --smartmodule NAME belong together, --parameter to them")
    if not source:
        return {}
    told = ",".join(
        f"{key}={value}" for key, value in output.pairs(parameters, "--parameter").items()
    )
    settings = {"derived.from": source, "derived.smartmodule": smartmodule}
    return settings | ({"derived.parameters": told} if told else {})


def _is_override(setting: Any) -> bool:
    return int(setting.config_source) == _TOPIC_LEVEL


def _counted(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"
