"""`pentalog move`: topics and groups copied to another cluster, with their offsets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from uuid import UUID

import typer

from pentalog.app import StartFailed
from pentalog.cli import moved_state, output
from pentalog.cli.client import explained, parse_servers
from pentalog.cli.login import client_options
from pentalog.cli.output import Misused, Refused, reported
from pentalog.cli.progress import Progress
from pentalog.clients.kafka import ClientOptions, Cluster, KafkaFailed
from pentalog.clients.kafka.authentication import MECHANISMS
from pentalog.clients.kafka.moving import Moved, move_groups, move_topic
from pentalog.cluster.agreement import STATE_TOPIC
from pentalog.config import ConfigError, Listen
from pentalog.embedded import Broker
from pentalog.tables.sources import trouble

_TIMEOUT_MS: Final = 30_000
_CLIENT_ID: Final = "pentalog-move"
_TO: Final = re.compile(r"kafka(\+sasl)?(\+tls)?://(.+)")


@reported
def move(
    to: Annotated[
        str, typer.Option(metavar="kafka://HOST:PORT,...", help="Where everything goes.")
    ] = "",
    into: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Or the directory of a broker that does not run."),
    ] = None,
    server: Annotated[
        str,
        typer.Option(
            envvar="PENTALOG_SERVER", metavar="HOST:PORT", help="Where everything comes from."
        ),
    ] = "127.0.0.1:9092",
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Or the directory of a broker that does not run."),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", help="Only this one; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy topics with their settings, records and offsets, and what groups have committed.

    Between a directory and a cluster users, rules, quotas, subscriptions, event streams and
    SmartModules go along; a broker that runs does not give them away.  Works in any direction.
    Nobody may write to what is moved, on either side.  A move that was interrupted goes on where
    it stopped; one that is repeated copies nothing and compares everything again.

    Exit codes: 0 done and compared, 1 refused, or the two sides differ, 2 used wrongly.

    Example: pentalog move --data /var/lib/pentalog --to kafka://one:9092,two:9092
    """
    if bool(to) == (into is not None):
        raise Misused("say where everything goes: either --to kafka://HOST:PORT or --into DIR")
    if data is None:
        parse_servers(server)
    source = Side(data, server, client_options(_TIMEOUT_MS, _CLIENT_ID))
    target = Side(into, *target_options(to)) if to else Side(into)
    for side in (source, target):
        if side.data is None and (why := trouble(side.servers)):
            raise Refused(why)
    try:
        with source.opened() as here, target.opened() as there:
            moved = _move_topics(here, there, topics)
            groups = move_groups(here, there, [one.topic for one in moved])
            topic_ids = {one.name: one.topic_id for one in there.topics() if one.topic_id}
        carried = {} if topics else _carry_state(source, target, topic_ids)
    except KafkaFailed as error:
        raise Refused(explained(error)) from error
    for one in moved:
        for setting in one.settings_left:
            if carried and setting.startswith(moved_state.OURS):
                continue  # the gateways keep it
            typer.echo(f"pentalog: {output.plain(one.topic)}: {setting} stays behind", err=True)
    records = sum(one.records for one in moved)
    where = to or str(into)
    fields = {
        "to": where,
        "topics": [one._asdict() for one in moved],
        "records": records,
        "groups": groups,
        **carried,
    }
    counts = [f"{len(moved)} topics", f"{records} records", f"{groups} groups"]
    counts += [f"{number} {what}" for what, number in carried.items()]
    said = f"moved {', '.join(counts)} to {where}; compared"
    output.show_done(said, fields, as_json=as_json)


class Side(NamedTuple):
    """Where a move comes from, or goes to."""

    data: Path | None
    """The directory of a broker that does not run."""
    servers: str = ""
    options: ClientOptions | None = None

    @contextmanager
    def opened(self) -> Iterator[Cluster]:
        """Somebody who speaks Kafka's protocol; for a directory, a broker of our own."""
        with ExitStack() as stack:
            servers, options = self.servers, self.options
            if self.data is not None:
                servers = stack.enter_context(_started(self.data)).address()
                options = ClientOptions(timeout_ms=_TIMEOUT_MS, client_id=_CLIENT_ID)
            yield stack.enter_context(Cluster(servers, options))


@contextmanager
def _started(data: Path) -> Iterator[Broker]:
    listen = (Listen("kafka", "127.0.0.1", 0),)
    try:
        broker = Broker(data, listen=listen, authorization=False, super_users=()).start()
    except (StartFailed, ConfigError) as error:
        raise Refused(str(error)) from error
    try:
        yield broker
    finally:
        broker.stop()


def _move_topics(source: Cluster, target: Cluster, wished: Sequence[str] | None) -> list[Moved]:
    known = sorted(topic.name for topic in source.topics() if topic.name != STATE_TOPIC)
    missing = sorted(set(wished or ()) - set(known))
    if missing:
        raise Refused(f"there is no topic {missing[0]!r}; `pentalog topic list` shows them")
    wanted = [name for name in known if not wished or name in wished]
    with Progress("offsets moved") as progress:
        return [move_topic(source, target, name, progress.advance) for name in wanted]


def _carry_state(source: Side, target: Side, topic_ids: Mapping[str, UUID]) -> Mapping[str, int]:
    """Users, rules, subscriptions and the like, where both sides have a place for them."""
    with ExitStack() as stack:
        if source.data is not None:
            tables = stack.enter_context(moved_state.of_directory(source.data))
        else:
            cluster = stack.enter_context(source.opened())
            if not cluster.topics([STATE_TOPIC]):
                _tell_what_stays(source)
                return {}
            tables = stack.enter_context(moved_state.of_cluster(cluster))
        moved_state.renamed(tables, topic_ids)
        if target.data is not None:
            moved_state.to_directory(tables, target.data)
        else:
            moved_state.to_cluster(tables, stack.enter_context(target.opened()))
        return moved_state.count(tables)


def _tell_what_stays(source: Side) -> None:
    typer.echo(
        f"pentalog: users, rules and subscriptions of {source.servers} stay behind: if it is a "
        "pentalog, stop it, and name its directory with --data",
        err=True,
    )


def target_options(
    to: str, environment: Mapping[str, str] = os.environ
) -> tuple[str, ClientOptions]:
    """Servers, and how to log in there: by the variables that a gateway's settings have."""
    found = _TO.fullmatch(to)
    if found is None:
        raise Misused(
            f"{to!r} is not kafka://HOST:PORT, for example kafka://127.0.0.1:9092; also "
            "accepted are kafka+tls, kafka+sasl and kafka+sasl+tls"
        )
    sasl, tls, servers = found.groups()
    user = environment.get("PENTALOG_ENGINE_USER", "")
    password = environment.get("PENTALOG_ENGINE_PASSWORD", "")
    mechanism = environment.get("PENTALOG_ENGINE_MECHANISM", "SCRAM-SHA-512")
    if sasl and not (user and password and mechanism in MECHANISMS):
        raise Misused(
            f"{to!r} needs PENTALOG_ENGINE_USER and PENTALOG_ENGINE_PASSWORD, and "
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
