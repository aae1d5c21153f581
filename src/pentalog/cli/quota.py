"""`pentalog quota`: how much users, clients and addresses may use."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from pentalog.broker.operation import Owner, Quota
from pentalog.cli import output
from pentalog.cli.online import opened
from pentalog.cli.output import Misused, Refused, reported
from pentalog.cli.user import SERVER, AsJson, Data, Server

app = typer.Typer(
    help="Quotas: of a running broker, or with --data in the directory of one that does not run.  "
    "Exit codes: 0 done, 1 refused, 2 used wrongly.",
    no_args_is_help=True,
)

_EACH: Final = "*"
"""Stands for each one that has no quota of its own."""
_WORDS: Final = {
    "write": Quota.WRITTEN,
    "read": Quota.READ,
    "work": Quota.WORK,
    "changes": Quota.CHANGED,
    "connections": Quota.CONNECTED,
}
_NAMES: Final = {quota: word for word, quota in _WORDS.items()}

User = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of this user; * for each without his own.")
]
Client = Annotated[
    str | None, typer.Option(metavar="ID", help="Of this client id; * for each without its own.")
]
Address = Annotated[
    str | None, typer.Option(metavar="IP", help="Of this address; * for each without its own.")
]


@app.command("set", epilog="Example: pentalog quota set --user alice --write 1000000 --read 5e6")
@reported
def set_quota(
    user: User = None,
    client: Client = None,
    address: Address = None,
    write: Annotated[float | None, typer.Option(help="Bytes written per second.")] = None,
    read: Annotated[float | None, typer.Option(help="Bytes read per second.")] = None,
    work: Annotated[
        float | None, typer.Option(help="Per cent of the time of the serving thread.")
    ] = None,
    changes: Annotated[
        float | None, typer.Option(help="Partitions made and deleted per second.")
    ] = None,
    connections: Annotated[
        float | None, typer.Option(help="Connections per second, of an address.")
    ] = None,
    data: Data = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Limit what somebody may use."""
    owner = _owner(user, client, address)
    given = dict(zip(_WORDS, (write, read, work, changes, connections), strict=True))
    limits = {_WORDS[word]: value for word, value in given.items() if value is not None}
    if not limits:
        raise Misused("say how much, for example --write 1000000")
    with opened(data, server) as broker:
        broker.change_quotas(owner, limits)
    fields = _plain(owner, limits)
    output.show_done(f"set {_spelled(owner)}: {_amounts(limits)}", fields, as_json=as_json)


@app.command("list", epilog="Example: pentalog quota list --json")
@reported
def list_quotas(data: Data = None, server: Server = SERVER, as_json: AsJson = False) -> None:
    """Show all quotas."""
    with opened(data, server) as broker:
        found = sorted(broker.quotas().items(), key=lambda entry: _spelled(entry[0]))
    if as_json:
        output.show_json([_plain(owner, limits) for owner, limits in found])
        return
    rows = [(_spelled(owner), _amounts(limits)) for owner, limits in found]
    output.show_rows(["of", "limits"], rows)


@app.command(epilog="Example: pentalog quota remove --user alice")
@reported
def remove(
    user: User = None,
    client: Client = None,
    address: Address = None,
    data: Data = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Take all limits of somebody away."""
    owner = _owner(user, client, address)
    with opened(data, server) as broker:
        limits = broker.quotas().get(owner)
        if not limits:
            raise Refused(
                f"{_spelled(owner)} has no quota; `pentalog quota list` shows those there are"
            )
        broker.change_quotas(owner, dict.fromkeys(limits))
    fields = {**_plain(owner, {}), "removed": True}
    output.show_done(f"removed {_spelled(owner)}", fields, as_json=as_json)


def _owner(user: str | None, client: str | None, address: str | None) -> Owner:
    named = {"user": user, "client": client, "address": address}
    owner = frozenset(
        (kind, None if name == _EACH else name) for kind, name in named.items() if name is not None
    )
    if not owner or (address is not None and len(owner) > 1):
        raise Misused("say whose: --user NAME, --client ID, both of them, or --address IP")
    return owner


def _spelled(owner: Owner) -> str:
    # A user comes before his client.
    return " ".join(f"{kind} {name or _EACH}" for kind, name in sorted(owner, reverse=True))


def _amounts(limits: Any) -> str:
    return ", ".join(f"{_NAMES[quota]} {value:.12g}" for quota, value in limits.items())


def _plain(owner: Owner, limits: Any) -> dict[str, Any]:
    return {
        **{kind: name or _EACH for kind, name in sorted(owner, reverse=True)},
        **{_NAMES[quota]: value for quota, value in limits.items()},
    }
