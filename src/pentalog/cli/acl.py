"""`pentalog acl`: the rules of who may do what."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from pentalog.broker.security import ANY, CLUSTER_NAME, Kind, Operation, Principal, Rule
from pentalog.cli import output
from pentalog.cli.online import opened
from pentalog.cli.output import Misused, Refused, reported
from pentalog.cli.user import SERVER, AsJson, Data, Server

app = typer.Typer(
    help="Rules: of a running broker, or with --data in the directory of one that does not run.  "
    "Exit codes: 0 done, 1 refused, 2 used wrongly.",
    no_args_is_help=True,
)

_KAFKA_WORDS: Final = {
    "describe-configs": Operation.DESCRIBE_SETTINGS,
    "alter-configs": Operation.ALTER_SETTINGS,
    "cluster-action": Operation.ADMINISTER,
    "idempotent-write": Operation.WRITE_IDEMPOTENTLY,
    "two-phase-commit": Operation.COMMIT_IN_TWO_PHASES,
}
_WORDS: Final[dict[str, Operation | None]] = {
    "all": None,
    **{operation.value.replace(" ", "-"): operation for operation in Operation},
    **_KAFKA_WORDS,
}

PrincipalText = Annotated[
    str | None, typer.Option("--principal", metavar="KIND:NAME", help="Whom; User:* for all.")
]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", metavar="WORD", help="read, write, ..., or all; repeatable."),
]
Topic = Annotated[str | None, typer.Option(metavar="NAME", help="A topic, or * for all.")]
Group = Annotated[str | None, typer.Option(metavar="NAME", help="A consumer group, or *.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="The broker as a whole.")]
Transaction = Annotated[str | None, typer.Option(metavar="NAME", help="A transactional id, or *.")]
Token = Annotated[str | None, typer.Option(metavar="ID", help="A delegation token, or *.")]
OfUser = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user's tokens.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The name is how names begin.")]
Deny = Annotated[bool, typer.Option("--deny", help="Forbid; wins over every permission.")]
Host = Annotated[str | None, typer.Option(metavar="ADDRESS", help="From there only.")]


@dataclass(frozen=True, slots=True)
class _Wish:
    """What the options name; None where they say nothing."""

    principal: Principal | None
    operations: list[Operation | None] | None
    resources: list[tuple[Kind, str]]
    prefixed: bool
    deny: bool
    host: str | None

    def fits(self, rule: Rule) -> bool:
        return (
            (self.principal is None or rule.principal == self.principal)
            and (self.operations is None or rule.operation in self.operations)
            and (not self.resources or (rule.kind, rule.name) in self.resources)
            and (not self.prefixed or rule.prefixed)
            and (not self.deny or not rule.allowed)
            and (self.host is None or rule.host == self.host)
        )


def _wish(
    principal: PrincipalText = None,
    operation: Operations = None,
    topic: Topic = None,
    group: Group = None,
    cluster: Cluster = False,
    transaction: Transaction = None,
    token: Token = None,
    user: OfUser = None,
    prefixed: Prefixed = False,
    deny: Deny = False,
    host: Host = None,
) -> _Wish:
    named = {
        Kind.TOPIC: topic,
        Kind.GROUP: group,
        Kind.CLUSTER: CLUSTER_NAME if cluster else None,
        Kind.TRANSACTION: transaction,
        Kind.TOKEN: token,
        Kind.USER: user,
    }
    try:
        who = None if principal is None else Principal.parse(principal)
    except ValueError as flaw:
        raise Misused(f"--principal {flaw}") from None
    words = [_operation(word) for text in operation or () for word in text.split(",")]
    resources = [(kind, name) for kind, name in named.items() if name is not None]
    return _Wish(who, words or None, resources, prefixed, deny, host)


def _about_rules(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` the options that say which rules are meant; it gets them as a wish."""
    shared = inspect.signature(_wish, eval_str=True).parameters
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def run(**given: Any) -> None:
        command(_wish(**{name: given.pop(name) for name in shared}), **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [one.replace(kind=keyword) for one in (*shared.values(), *own)]
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


@app.command(
    epilog="Example: pentalog acl add --principal User:alice --operation read --topic orders "
    "--group shipping"
)
@reported
@_about_rules
def add(wish: _Wish, data: Data = None, server: Server = SERVER, as_json: AsJson = False) -> None:
    """Allow somebody something, or forbid it."""
    if wish.principal is None or wish.operations is None or not wish.resources:
        raise Misused(
            "a rule needs --principal KIND:NAME, --operation WORD and what it is about, for "
            "example --topic NAME"
        )
    rules = [
        Rule(kind, name, wish.prefixed, wish.principal, wish.host or ANY, word, not wish.deny)
        for kind, name in wish.resources
        for word in wish.operations
    ]
    with opened(data, server) as broker:
        broker.add_rules(rules)
    _show(rules, "added", as_json=as_json)


@app.command("list", epilog="Example: pentalog acl list --topic orders --json")
@reported
@_about_rules
def list_rules(
    wish: _Wish, data: Data = None, server: Server = SERVER, as_json: AsJson = False
) -> None:
    """Show the rules, or those that have all that the options name."""
    with opened(data, server) as broker:
        rules = sorted(filter(wish.fits, broker.rules()), key=str)
    if as_json:
        output.show_json([_plain(rule) for rule in rules])
        return
    columns = ["principal", "may", "operation", "resource", "name", "pattern", "host"]
    output.show_rows(columns, [tuple(_plain(rule).values()) for rule in rules])


@app.command(epilog="Example: pentalog acl remove --principal User:alice --topic orders")
@reported
@_about_rules
def remove(
    wish: _Wish,
    every: Annotated[bool, typer.Option("--all", help="Every rule there is.")] = False,
    data: Data = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Remove the rules that have all that the options name."""
    if wish == _Wish(None, None, [], False, False, None) and not every:
        raise Misused("say which rules, for example --principal User:alice, or --all")
    with opened(data, server) as broker:
        rules = sorted(filter(wish.fits, broker.rules()), key=str)
        if not rules:
            raise Refused("no rule is like that; `pentalog acl list` shows those there are")
        broker.remove_rules(rules)
    _show(rules, "removed", as_json=as_json)


def _operation(word: str) -> Operation | None:
    try:
        return _WORDS[word.strip().lower().replace("_", "-")]
    except KeyError:
        raise Misused(f"--operation {word!r} is not one of {', '.join(_WORDS)}") from None


def _plain(rule: Rule) -> dict[str, Any]:
    return {
        "principal": str(rule.principal),
        "permission": "allow" if rule.allowed else "deny",
        "operation": "all" if rule.operation is None else rule.operation.value.replace(" ", "-"),
        "resource": rule.kind.value,
        "name": rule.name,
        "pattern": "prefixed" if rule.prefixed else "literal",
        "host": rule.host,
    }


def _show(rules: list[Rule], done: str, *, as_json: bool) -> None:
    if as_json:
        output.show_json({done: [_plain(rule) for rule in rules]})
        return
    for rule in rules:
        typer.echo(f"{done}: {rule}")
