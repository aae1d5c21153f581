"""`pentalog acl`: the rules of who may do what."""

from __future__ import annotations

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


@app.command(
    epilog="Example: pentalog acl add --principal User:alice --operation read --topic orders "
    "--group shipping"
)
@reported
def add(
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
    data: Data = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Allow somebody something, or forbid it."""
    resources = _resources(topic, group, cluster, transaction, token, user)
    wish = _wish(principal, operation, resources, prefixed, deny, host)
    if wish.principal is None or wish.operations is None or not resources:
        raise Misused(
            "a rule needs --principal KIND:NAME, --operation WORD and what it is about, for "
            "example --topic NAME"
        )
    rules = [
        Rule(kind, name, prefixed, wish.principal, host or ANY, word, not deny)
        for kind, name in resources
        for word in wish.operations
    ]
    with opened(data, server) as broker:
        broker.add_rules(rules)
    _show(rules, "added", as_json=as_json)


@app.command("list", epilog="Example: pentalog acl list --topic orders --json")
@reported
def list_rules(
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
    data: Data = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Show the rules, or those that have all that the options name."""
    resources = _resources(topic, group, cluster, transaction, token, user)
    wish = _wish(principal, operation, resources, prefixed, deny, host)
    with opened(data, server) as broker:
        rules = sorted(filter(wish.fits, broker.rules()), key=str)
    if as_json:
        output.show_json([_plain(rule) for rule in rules])
        return
    columns = ["principal", "may", "operation", "resource", "name", "pattern", "host"]
    output.show_rows(columns, [tuple(_plain(rule).values()) for rule in rules])


@app.command(epilog="Example: pentalog acl remove --principal User:alice --topic orders")
@reported
def remove(
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
    every: Annotated[bool, typer.Option("--all", help="Every rule there is.")] = False,
    data: Data = None,
    server: Server = SERVER,
    as_json: AsJson = False,
) -> None:
    """Remove the rules that have all that the options name."""
    resources = _resources(topic, group, cluster, transaction, token, user)
    wish = _wish(principal, operation, resources, prefixed, deny, host)
    if wish == _Wish(None, None, [], False, False, None) and not every:
        raise Misused("say which rules, for example --principal User:alice, or --all")
    with opened(data, server) as broker:
        rules = sorted(filter(wish.fits, broker.rules()), key=str)
        if not rules:
            raise Refused("no rule is like that; `pentalog acl list` shows those there are")
        broker.remove_rules(rules)
    _show(rules, "removed", as_json=as_json)


def _resources(
    topic: str | None,
    group: str | None,
    cluster: bool,
    transaction: str | None,
    token: str | None,
    user: str | None,
) -> list[tuple[Kind, str]]:
    named = {
        Kind.TOPIC: topic,
        Kind.GROUP: group,
        Kind.CLUSTER: CLUSTER_NAME if cluster else None,
        Kind.TRANSACTION: transaction,
        Kind.TOKEN: token,
        Kind.USER: user,
    }
    return [(kind, name) for kind, name in named.items() if name is not None]


def _wish(
    principal: str | None,
    operations: list[str] | None,
    resources: list[tuple[Kind, str]],
    prefixed: bool,
    deny: bool,
    host: str | None,
) -> _Wish:
    try:
        who = None if principal is None else Principal.parse(principal)
    except ValueError as flaw:
        raise Misused(f"--principal {flaw}") from None
    words = [_operation(word) for text in operations or () for word in text.split(",")]
    return _Wish(who, words or None, resources, prefixed, deny, host)


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
