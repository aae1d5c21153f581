"""`pentalog token`: delegation tokens of a running broker."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from pentalog.broker.security import Principal
from pentalog.cli import output
from pentalog.cli.online import Online, Token
from pentalog.cli.output import Misused, reported
from pentalog.cli.user import SERVER, AsJson, Server

app = typer.Typer(
    help="Delegation tokens: let a program log in as somebody, for a while.  "
    "Exit codes: 0 done, 1 refused, 2 used wrongly.",
    no_args_is_help=True,
)

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d{1,12})(ms|s|m|h|d)")
_AS_LONG_AS_ALLOWED: Final = -1

TokenId = Annotated[str, typer.Argument(metavar="TOKEN-ID")]
Duration = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", help="30m, 12h, 7d; without it the broker's own rule."),
]


@app.command(epilog="Example: pentalog token create --for 12h --renewer User:scheduler")
@reported
def create(
    owner: Annotated[
        str | None, typer.Option(metavar="KIND:NAME", help="Whose; without it your own.")
    ] = None,
    renewer: Annotated[
        list[str] | None, typer.Option(metavar="KIND:NAME", help="Who may renew it; repeatable.")
    ] = None,
    lifetime: Duration = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Make a token and show it: its id is the user name, its secret the password."""
    whose = None if owner is None else _principal(owner, "--owner")
    renewers = [_principal(one, "--renewer") for one in renewer or ()]
    with Online(server) as broker:
        made = broker.create_token(whose, renewers, _ms(lifetime, _AS_LONG_AS_ALLOWED))
    if as_json:
        output.show_json({**_plain(made), "secret": _secret(made)})
        return
    rows = [("id", made.token_id), ("secret", _secret(made)), *_shown(made)[1:]]
    output.show_rows(["field", "value"], [tuple(row) for row in rows])


@app.command("list", epilog="Example: pentalog token list --json")
@reported
def list_tokens(server: Server = SERVER, as_json: AsJson = False) -> None:
    """Show the tokens you may see, without their secrets."""
    with Online(server) as broker:
        found = broker.tokens()
    if as_json:
        output.show_json([_plain(token) for token in found])
        return
    rows = [tuple(value for _, value in _shown(token)) for token in found]
    output.show_rows(["token", "owner", "requester", "renewers", "good until", "at most"], rows)


@app.command(epilog="Example: pentalog token renew 5mT1zq9hQ8i8b2GdJx9Xyw --for 1d")
@reported
def renew(
    token_id: TokenId, period: Duration = None, server: Server = SERVER, as_json: AsJson = False
) -> None:
    """Let a token live on."""
    with Online(server) as broker:
        until_ms = broker.renew_token(token_id, _ms(period, _AS_LONG_AS_ALLOWED))
    fields = {"token": token_id, "expires_ms": until_ms}
    output.show_done(f"{token_id} is good until {_time(until_ms)}", fields, as_json=as_json)


@app.command(epilog="Example: pentalog token expire 5mT1zq9hQ8i8b2GdJx9Xyw")
@reported
def expire(
    token_id: TokenId,
    period: Annotated[
        str | None, typer.Option("--in", metavar="TIME", help="Not now but in 30m, 12h, ...")
    ] = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """End a token, now or soon."""
    with Online(server) as broker:
        until_ms = broker.expire_token(token_id, _ms(period, -1))
    fields = {"token": token_id, "expires_ms": until_ms}
    text = f"{token_id} has ended" if period is None else f"{token_id} ends at {_time(until_ms)}"
    output.show_done(text, fields, as_json=as_json)


def _principal(text: str, option: str) -> Principal:
    try:
        return Principal.parse(text)
    except ValueError as flaw:
        raise Misused(f"{option} {flaw}") from None


def _ms(text: str | None, otherwise: int) -> int:
    if text is None:
        return otherwise
    match = _DURATION.fullmatch(text)
    if match is None:
        raise Misused(f"{text!r} is no time; give a number and a unit, for example 30m, 12h or 7d")
    return int(match[1]) * _UNITS_MS[match[2]]


def _secret(token: Token) -> str:
    """As the clients of Kafka want it for a password."""
    return base64.b64encode(token.secret).decode()


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _shown(token: Token) -> list[tuple[str, str]]:
    return [
        ("id", token.token_id),
        ("owner", str(token.owner)),
        ("requester", str(token.requester)),
        ("renewers", ",".join(map(str, token.renewers))),
        ("good until", _time(token.expires_ms)),
        ("at most", _time(token.expires_ms_max)),
    ]


def _plain(token: Token) -> dict[str, Any]:
    return {
        "token": token.token_id,
        "owner": str(token.owner),
        "requester": str(token.requester),
        "renewers": [str(one) for one in token.renewers],
        "issued_ms": token.issued_ms,
        "expires_ms": token.expires_ms,
        "expires_ms_max": token.expires_ms_max,
    }
