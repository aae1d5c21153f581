"""What a cell of the matrix is: a door's operation, a state of the rules, a way of logging in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pentalog.broker.rights import Need
from pentalog.broker.security import ANY, Kind, Principal, Rule

EDGE = Principal("User", "edge")
"""Whoever logs in, whatever the way."""
TOPIC = "m-orders"
GROUP = "m-group"
TRANSACTION = "m-transaction"


class Asked(NamedTuple):
    """One operation of a door."""

    name: str
    """As its registry has it, and more behind a colon where one is tried in several ways."""
    needs: tuple[Need, ...]
    ask: Callable[[Any], bool | None]
    """Do it over a connection; False if the right to it was lacking, or what it lists hidden.

    None: nobody may, who logged in this way.
    """
    fresh: bool = False
    """It uses its connection up."""
    gone: str = ""
    """A topic that must not be there before."""
    there: str = ""
    """A topic that must be there before, as if it were new."""


class Way(NamedTuple):
    """How somebody logs in."""

    name: str
    connect: Callable[[], Any]
    who: Principal = EDGE


def _allow(need: Need, who: Principal, *, wide: str = "") -> Rule:
    """`wide`: by what kind of pattern; the cluster has but one name."""
    name, prefixed = need.name, False
    if need.kind is not Kind.CLUSTER:
        name = {"": name, "wildcard": ANY, "prefix": name[:-1]}[wide]
        prefixed = wide == "prefix"
    return Rule(need.kind, name, prefixed, who, ANY, need.operation, True)


def _everything(need: Need, who: Principal) -> Rule:
    name = need.name if need.kind is Kind.CLUSTER else ANY
    return Rule(need.kind, name, False, who, ANY, None, True)


def _deny(need: Need, who: Principal) -> Rule:
    # Some things can be done by either of two rights to the cluster.
    operation = None if need.kind is Kind.CLUSTER else need.operation
    return Rule(need.kind, need.name, False, who, ANY, operation, False)


def _denied(needs: tuple[Need, ...], who: Principal) -> list[Rule]:
    return [*(_allow(need, who) for need in needs), _deny(needs[-1], who)]


def _deny_over_allow(needs: tuple[Need, ...], who: Principal) -> list[Rule]:
    return [*(_everything(need, who) for need in needs), _deny(needs[0], who)]


class State(NamedTuple):
    """A state of the rules."""

    rules: Callable[[tuple[Need, ...], Principal], list[Rule]]
    admits: bool


STATES: Mapping[str, State] = {
    "allowed": State(lambda needs, who: [_allow(need, who) for need in needs], True),
    "denied": State(_denied, False),
    "no rule": State(lambda needs, who: [], False),
    "wildcard": State(
        lambda needs, who: [_allow(need, who, wide="wildcard") for need in needs], True
    ),
    "prefix": State(lambda needs, who: [_allow(need, who, wide="prefix") for need in needs], True),
    "deny over allow": State(_deny_over_allow, False),
}
