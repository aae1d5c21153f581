"""`pentalog move`: topics and groups copied to another cluster, with their offsets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Final

import typer

from pentalog.cli import output
from pentalog.cli.client import explained
from pentalog.cli.login import client_options
from pentalog.cli.output import Misused, Refused, reported
from pentalog.cli.progress import Progress
from pentalog.clients.kafka import ClientOptions, Cluster, KafkaFailed
from pentalog.clients.kafka.authentication import MECHANISMS
from pentalog.clients.kafka.moving import move_groups, move_topic

_TIMEOUT_MS: Final = 30_000
_CLIENT_ID: Final = "pentalog-move"
_TO: Final = re.compile(r"kafka(\+sasl)?(\+tls)?://(.+)")


@reported
def move(
    to: Annotated[
        str, typer.Option(metavar="kafka://HOST:PORT,...", help="Where everything goes.")
    ],
    server: Annotated[
        str,
        typer.Option(
            envvar="PENTALOG_SERVER", metavar="HOST:PORT", help="Where everything comes from."
        ),
    ] = "127.0.0.1:9092",
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", help="Only this one; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy topics with their settings, records and offsets, and what groups have committed.

    Works between any two brokers that speak Kafka's protocol, so also back.  Nobody may write to
    what is moved, on either side.  A move that was interrupted goes on where it stopped; one that
    is repeated copies nothing and compares everything again.

    Exit codes: 0 done and compared, 1 refused, or the two sides differ, 2 used wrongly.

    Example: pentalog move --to kafka://one:9092,two:9092
    """
    servers, theirs = target_options(to)
    ours = client_options(_TIMEOUT_MS, _CLIENT_ID)
    try:
        with Cluster(server, ours) as source, Cluster(servers, theirs) as target:
            known = sorted(topic.name for topic in source.topics())
            missing = sorted(set(topics or ()) - set(known))
            if missing:
                raise Refused(f"there is no topic {missing[0]!r}; `pentalog topic list` shows them")
            wanted = [name for name in known if not topics or name in topics]
            with Progress("offsets moved") as progress:
                moved = [move_topic(source, target, name, progress.advance) for name in wanted]
            groups = move_groups(source, target, wanted)
    except KafkaFailed as error:
        raise Refused(explained(error)) from error
    for one in moved:
        for setting in one.settings_left:
            typer.echo(f"pentalog: {output.plain(one.topic)}: {setting} stays behind", err=True)
    records = sum(one.records for one in moved)
    fields = {
        "to": to,
        "topics": [one._asdict() for one in moved],
        "records": records,
        "groups": groups,
    }
    said = f"moved {len(moved)} topics, {records} records and {groups} groups to {to}; compared"
    output.show_done(said, fields, as_json=as_json)


def target_options(
    to: str, environment: Mapping[str, str] = os.environ
) -> tuple[str, ClientOptions]:
    """Servers, and how to log in there: by the variables that a gateway's settings have."""
    found = _TO.fullmatch(to)
    if found is None:
        raise Misused(
            f"--to {to!r} is not kafka://HOST:PORT, for example kafka://127.0.0.1:9092; also "
            "accepted are kafka+tls, kafka+sasl and kafka+sasl+tls"
        )
    sasl, tls, servers = found.groups()
    user = environment.get("PENTALOG_ENGINE_USER", "")
    password = environment.get("PENTALOG_ENGINE_PASSWORD", "")
    mechanism = environment.get("PENTALOG_ENGINE_MECHANISM", "SCRAM-SHA-512")
    if sasl and not (user and password and mechanism in MECHANISMS):
        raise Misused(
            f"--to {to!r} needs PENTALOG_ENGINE_USER and PENTALOG_ENGINE_PASSWORD, and "
            f"PENTALOG_ENGINE_MECHANISM, if it is given, as one of {', '.join(MECHANISMS)}"
        )
    options = ClientOptions(
        timeout_ms=_TIMEOUT_MS,
        client_id=_CLIENT_ID,
        tls=tls is not None,
        tls_authorities=environment.get("PENTALOG_ENGINE_CA") or None,
        sasl_mechanism=mechanism if sasl else "",
        username=user,
        password=password,
    )
    return servers, options
