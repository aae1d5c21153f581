"""`pentalog group`: consumer groups, how far behind they are, and where they go on."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final

import typer

from pentalog.cli import completion, output
from pentalog.cli.cluster import reached
from pentalog.cli.moments import parse_moment
from pentalog.cli.output import Misused, Refused, reported
from pentalog.clients.kafka import groups
from pentalog.clients.kafka.cluster import EARLIEST, LATEST, Cluster
from pentalog.clients.kafka.offsets import GroupOffset, commit, committed
from pentalog.model.types import Partition

app = typer.Typer(
    help="Show consumer groups, move their offsets, remove them.  Exit codes: 0 done, 1 refused, "
    "2 used wrongly.",
    no_args_is_help=True,
)

Server = Annotated[
    str,
    typer.Option(envvar="PENTALOG_SERVER", metavar="HOST:PORT", help="Any broker of the cluster."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=completion.groups)]

_SERVER: Final = "127.0.0.1:9092"


@app.command("list", epilog="Example: pentalog group list --json")
@reported
def list_groups(server: Server = _SERVER, as_json: AsJson = False) -> None:
    """Show all groups with their state and who plans them: `classic` members or the broker."""
    with reached(server) as cluster:
        found = groups.listed(cluster)
    if as_json:
        output.show_json(
            [{"group": one.name, "state": one.state, "kind": one.kind} for one in found]
        )
    else:
        output.show_rows(("group", "state", "kind"), found)


@app.command(epilog="Example: pentalog group describe billing")
@reported
def describe(name: Name, server: Server = _SERVER, as_json: AsJson = False) -> None:
    """Show where a group is in each partition, how far behind, and who reads it."""
    with reached(server) as cluster:
        found = _existing(cluster, name)
        offsets = committed(cluster, name, stable=False)
        owners = {at: member for member in found.members for at in member.partitions}
        places = _kept(cluster, {*offsets, *owners})
        ends = cluster.offsets(dict.fromkeys(places, LATEST))
    rows = []
    for at in places:
        known = offsets.get(at)
        owner = owners.get(at)
        rows.append(
            {
                "topic": at.topic,
                "partition": at.index,
                "offset": None if known is None else known.offset,
                "end": ends[at],
                "lag": None if known is None else max(0, ends[at] - known.offset),
                "client": None if owner is None else owner.client_id,
                "host": None if owner is None else owner.host,
            }
        )
    _show(found, rows, as_json=as_json)


def _show(found: groups.Described, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    lag = sum(row["lag"] or 0 for row in rows)
    if as_json:
        members = [
            {
                "member": one.member_id,
                "client": one.client_id,
                "host": one.host,
                "partitions": [str(at) for at in one.partitions],
            }
            for one in found.members
        ]
        head = {"group": found.name, "state": found.state, "kind": found.kind, "lag": lag}
        output.show_json({**head, "members": members, "partitions": rows})
        return
    columns = ("topic", "partition", "offset", "end", "lag", "client", "host")
    cells = [["-" if row[column] is None else row[column] for column in columns] for row in rows]
    count = len(found.members)
    title = f"{found.name}  {found.state.lower()}, {count} members, lag {lag}"
    output.show_rows(columns, cells, title=title)


@app.command(
    epilog="Example: pentalog group seek billing --topic orders --shift -100"
    "\n\npentalog group seek billing --to-time 2h"
)
@reported
def seek(
    name: Name,
    server: Server = _SERVER,
    to: Annotated[
        str | None, typer.Option(metavar="WHERE", help="An offset, earliest or latest.")
    ] = None,
    shift: Annotated[
        int | None, typer.Option(metavar="N", help="So many on, or back if negative.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The first record since 10m (ago) or 2025-01-31T12:00."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Only this one; repeatable.", autocompletion=completion.topics),
    ] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only these; repeatable.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Choose where a group goes on; refused while it has members, as their commits would undo it.

    Without --topic every topic the group has offsets of is moved.
    """
    if sum(given is not None for given in (to, shift, to_time)) != 1:
        raise Misused("give one of --to OFFSET|earliest|latest, --shift N and --to-time TIME")
    wanted = EARLIEST
    if to is not None:
        wanted = _parse_to(to)
    elif to_time is not None:
        wanted = parse_moment(to_time, "--to-time", now_ms=int(time.time() * 1000))
    with reached(server) as cluster:
        found = groups.described(cluster, name)
        if found is not None and found.members:
            raise Refused(
                f"group {name!r} has {len(found.members)} live members ({found.state}); stop them, "
                "then seek again"
            )
        before = committed(cluster, name, stable=False)
        places = _chosen(cluster, name, before, topic, partition)
        by_time = to_time is not None
        after = _targets(cluster, places, before, to=wanted, shift=shift, by_time=by_time)
        if not dry_run:
            commit(cluster, name, {at: GroupOffset(offset) for at, offset in after.items()})
    rows = [(at, before[at].offset if at in before else None, after[at]) for at in places]
    _show_moves(name, rows, dry_run=dry_run, as_json=as_json)


def _parse_to(text: str) -> int:
    if text in ("earliest", "beginning"):
        return EARLIEST
    if text in ("latest", "end"):
        return LATEST
    if not text.isdecimal():
        raise Misused(f"--to {text!r} is none of: an offset, earliest, latest")
    return int(text)


def _targets(
    cluster: Cluster,
    places: Collection[Partition],
    before: Mapping[Partition, GroupOffset],
    *,
    to: int,
    shift: int | None,
    by_time: bool,
) -> dict[Partition, int]:
    """Where each partition goes on: never outside of what it holds."""
    starts = cluster.offsets(dict.fromkeys(places, EARLIEST))
    ends = cluster.offsets(dict.fromkeys(places, LATEST))
    if by_time:
        found = cluster.offsets(dict.fromkeys(places, to))
        return {at: ends[at] if found[at] < 0 else found[at] for at in places}
    if shift is None and to in (EARLIEST, LATEST):
        return starts if to == EARLIEST else ends
    after: dict[Partition, int] = {}
    for at in places:
        if shift is not None and at not in before:
            raise Refused(f"the group has no offset of {at} to shift; use --to instead")
        aim = to if shift is None else before[at].offset + shift
        if shift is None and not starts[at] <= aim <= ends[at]:
            raise Refused(f"offset {aim} outside {starts[at]}..{ends[at]} of {at}")
        after[at] = min(max(aim, starts[at]), ends[at])
    return after


def _chosen(
    cluster: Cluster,
    name: str,
    before: Mapping[Partition, GroupOffset],
    topics: list[str] | None,
    indexes: list[int] | None,
) -> list[Partition]:
    """The partitions to move; a group may be given offsets before it has ever read."""
    if topics:
        places = [Partition(one, at) for one in topics for at in cluster.topic(one).partitions]
    elif before:
        places = _kept(cluster, before)
    else:
        raise Refused(f"group {name!r} has no offsets; say of which topic with --topic NAME")
    chosen = sorted(at for at in places if not indexes or at.index in indexes)
    missing = set(indexes or ()) - {at.index for at in chosen}
    if missing:
        raise Refused(
            f"no partition {min(missing)} in {', '.join(sorted({at.topic for at in places}))}"
        )
    return chosen


def _show_moves(
    name: str, rows: list[tuple[Partition, int | None, int]], *, dry_run: bool, as_json: bool
) -> None:
    if as_json:
        moves = [
            {"topic": at.topic, "partition": at.index, "from": old, "to": new}
            for at, old, new in rows
        ]
        output.show_json({"group": name, "moved": not dry_run, "partitions": moves})
        return
    cells = [(at.topic, at.index, "-" if old is None else old, new) for at, old, new in rows]
    title = f"{name}  {'would go on' if dry_run else 'goes on'} here"
    output.show_rows(("topic", "partition", "from", "to"), cells, title=title)


@app.command(epilog="Example: pentalog group delete billing")
@reported
def delete(name: Name, server: Server = _SERVER, as_json: AsJson = False) -> None:
    """Remove a group and its offsets; refused while it has members."""
    with reached(server) as cluster:
        found = _existing(cluster, name)
        if found.members:
            raise Refused(
                f"group {name!r} has {len(found.members)} live members ({found.state}); stop them, "
                "then delete it again"
            )
        groups.delete(cluster, [name])
    output.show_done(f"deleted {name}", {"group": name, "deleted": True}, as_json=as_json)


def _existing(cluster: Cluster, name: str) -> groups.Described:
    found = groups.described(cluster, name)
    if found is None:
        raise Refused(f"there is no group {name!r}; `pentalog group list` shows those that are")
    return found


def _kept(cluster: Cluster, places: Collection[Partition]) -> list[Partition]:
    """Without those whose topics were deleted meanwhile."""
    topics = cluster.topics(sorted({at.topic for at in places})) if places else []
    there = {Partition(topic.name, index) for topic in topics for index in topic.partitions}
    return sorted(there.intersection(places))
