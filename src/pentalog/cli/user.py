"""`pentalog user`: who may log in, and by what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pentalog.cli import output
from pentalog.cli.login import asked_password
from pentalog.cli.online import UserView, opened
from pentalog.cli.output import Misused, Refused, reported

app = typer.Typer(
    help="Users, their passwords and keys: of a running broker, or with --data in the directory of "
    "one that does not run.  Exit codes: 0 done, 1 refused, 2 used wrongly.",
    no_args_is_help=True,
)

SERVER: Final = "127.0.0.1:9092"
Server = Annotated[
    str, typer.Option(envvar="PENTALOG_SERVER", metavar="HOST:PORT", help="A running broker.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The directory of a broker that does not run, instead.",
        resolve_path=True,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(metavar="NAME")]
Password = Annotated[
    str | None,
    typer.Option(help="Better left out: it is then read from a pipe or typed.", show_default=False),
]


@app.command(epilog="Example: pentalog user add alice --data pentalog-data")
@reported
def add(
    name: Name,
    password: Password = None,
    data: Data = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Make a user who logs in by every mechanism a password serves for."""
    given = asked_password(password, name)
    with opened(data, server) as broker:
        if any(user.name == name for user in broker.users()):
            raise Refused(
                f"there is a user {name!r} already; `pentalog user passwd {name}` changes the "
                "password"
            )
        broker.set_password(name, given)
    output.show_done(f"added {name}", {"user": name, "added": True}, as_json=as_json)


@app.command("list", epilog="Example: pentalog user list --json")
@reported
def list_users(data: Data = None, server: Server = SERVER, as_json: AsJson = False) -> None:
    """Show users, and how each may log in; nothing secret."""
    with opened(data, server) as broker:
        users = broker.users()
    if as_json:
        output.show_json([_plain(user) for user in users])
        return
    rows = [
        (
            user.name,
            ",".join(user.mechanisms),
            ",".join(f"{key.fingerprint} {key.label}".strip() for key in user.keys or ()),
        )
        for user in users
    ]
    output.show_rows(["user", "mechanisms", "keys"], rows)


@app.command(epilog="Example: pentalog user passwd alice < password-file")
@reported
def passwd(
    name: Name,
    password: Password = None,
    data: Data = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Give a user another password."""
    given = asked_password(password, name)
    with opened(data, server) as broker:
        if all(user.name != name for user in broker.users()):
            raise Refused(
                f"there is no user {name!r}; `pentalog user list` shows who is, "
                f"`pentalog user add {name}` makes him"
            )
        broker.set_password(name, given)
    fields = {"user": name, "changed": True}
    output.show_done(f"changed the password of {name}", fields, as_json=as_json)


@app.command(epilog="Example: pentalog user delete alice")
@reported
def delete(name: Name, data: Data = None, server: Server = SERVER, as_json: AsJson = False) -> None:
    """Remove a user, his password and his keys; what rules say of him stays."""
    with opened(data, server) as broker:
        broker.delete_user(name)
    output.show_done(f"deleted {name}", {"user": name, "deleted": True}, as_json=as_json)


@app.command(
    epilog="Example: pentalog user key alice --label laptop"
    "\n\npentalog user key alice --remove 3f2a9c01b7de"
)
@reported
def key(
    name: Name,
    label: Annotated[str, typer.Option(help="What it is for; shown in the list.")] = "",
    remove: Annotated[
        str, typer.Option(metavar="FINGERPRINT", help="Remove this key instead.")
    ] = "",
    data: Data = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Make an API key, for BlipMQ and Cursus; it is shown now and never again."""
    if remove and label:
        raise Misused("--label belongs to a new key; leave it out together with --remove")
    with opened(data, server) as broker:
        if remove:
            _require(broker.users(), name, remove)
            broker.delete_key(name, remove)
            fields = {"user": name, "removed": remove}
            output.show_done(f"removed key {remove} of {name}", fields, as_json=as_json)
            return
        made = broker.add_key(name, label)
    output.show_done(made, {"user": name, "label": label, "key": made}, as_json=as_json)


def _require(users: list[UserView], name: str, fingerprint: str) -> None:
    if any(user.keys is None for user in users):
        return  # nothing is told of them, so whoever is asked to remove one says why not
    keys = [key for user in users if user.name == name for key in user.keys or ()]
    if all(key.fingerprint != fingerprint for key in keys):
        known = ", ".join(key.fingerprint for key in keys) or "none"
        raise Refused(f"{name} has no key {fingerprint!r}; it has {known}")


def _plain(user: UserView) -> dict[str, Any]:
    fields: dict[str, Any] = {"user": user.name, "mechanisms": list(user.mechanisms)}
    if user.keys is not None:
        fields["keys"] = [
            {"fingerprint": key.fingerprint, "label": key.label, "created_ms": key.created_ms}
            for key in user.keys
        ]
    return fields
