"""`pentalog profile`: names for brokers, to be chosen by `pentalog --profile NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from pentalog.cli import http as listener
from pentalog.cli import output, profiles
from pentalog.cli.client import parse_server
from pentalog.cli.output import Misused, Refused, reported
from pentalog.clients.kafka.authentication import MECHANISMS
from pentalog.security_settings import mask_urls

app = typer.Typer(
    help="Keep names for brokers; `pentalog --profile NAME` uses one.  Exit codes: 0 done, "
    "1 refused, 2 used wrongly.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(epilog="Example: pentalog profile add prod --server kafka.example.org:9092")
@reported
def add(
    name: Name,
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Kafka's door.")],
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Its http listener; https://HOST:PORT by TLS."),
    ] = None,
    rustlog: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    blipmq: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    user: Annotated[str | None, typer.Option(help="Log in as this user.")] = None,
    mechanism: Annotated[
        str | None, typer.Option(help=f"{', '.join(MECHANISMS)}; else SCRAM-SHA-512.")
    ] = None,
    password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the password is; it is not kept.")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt.")] = False,
    ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificates to trust; implies --tls.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Keep a broker's address, and how to log in there; replaces one of the same name."""
    for address in filter(None, (server, rustlog, blipmq)):
        parse_server(address)
    if http is not None:
        listener.parse(http)
    if mechanism is not None and mechanism not in MECHANISMS:
        raise Misused(f"--mechanism {mechanism!r} is none of {', '.join(MECHANISMS)}")
    if (mechanism or password_file) and not user:
        raise Misused("--mechanism and --password-file need --user NAME")
    given = {
        "server": server, "http": http, "rustlog": rustlog, "blipmq": blipmq, "user": user,
        "mechanism": mechanism, "password_file": password_file, "tls": "true" if tls else None,
        "ca": ca,
    }  # fmt: skip
    fields = {field: value for field, value in given.items() if value is not None}
    profiles.write(profiles.read() | {name: fields})
    shown = {"profile": name, **_shown(fields)}
    output.show_done(f"kept {name}; use it with: pentalog --profile {name}", shown, as_json=as_json)


@app.command("list", epilog="Example: pentalog profile list --json")
@reported
def list_profiles(as_json: AsJson = False) -> None:
    """Show the brokers that are known by name."""
    found = {name: _shown(fields) for name, fields in profiles.read().items()}
    if as_json:
        output.show_json([{"profile": name, **fields} for name, fields in found.items()])
        return
    columns = ("profile", "server", "user", "tls")
    rows = [
        (name, one.get("server", ""), one.get("user", ""), one.get("ca") or one.get("tls", ""))
        for name, one in found.items()
    ]
    output.show_rows(columns, rows)


def _shown(fields: Mapping[str, str]) -> dict[str, str]:
    return {name: mask_urls(value) for name, value in fields.items()}


@app.command(epilog="Example: pentalog profile remove prod")
@reported
def remove(name: Name, as_json: AsJson = False) -> None:
    """Forget a broker's name."""
    found = profiles.read()
    if name not in found:
        raise Refused(f"no profile {name!r}; there are: {', '.join(found) or 'none'}")
    del found[name]
    profiles.write(found)
    output.show_done(f"removed {name}", {"profile": name, "removed": True}, as_json=as_json)
