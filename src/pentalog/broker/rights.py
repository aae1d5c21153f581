"""The part of the contract that says what an operation needs: rights, checked all together.

Each protocol has one table from its operations to their needs, and looks there before it does
anything; a test fails for an operation that is not in its table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from pentalog.broker.security import (
    CLUSTER_NAME,
    KEPT_CHARACTERS_MAX,
    KEPT_MAX,
    Access,
    Kind,
    Operation,
)


class Need(NamedTuple):
    """One right."""

    operation: Operation
    kind: Kind
    name: str = CLUSTER_NAME


NeedsOf: TypeAlias = Callable[..., tuple[Need, ...]]
"""What an operation needs, by the names it is about."""


def missing(access: Access, needs: tuple[Need, ...]) -> Need | None:
    """The first right that somebody lacks; None if he has them all.

    Who may create topics in the cluster may create every topic.
    """
    # Every request asks this, mostly for what the one before it needed.
    if access.version != access.rules.version:
        access.renew()
    elif needs in access.remembered:
        return None
    for need in needs:
        creates = need.operation is Operation.CREATE and need.kind is Kind.TOPIC
        if creates and access.could(Operation.CREATE, Kind.CLUSTER):
            continue
        if not access.allows(*need):
            return need
    _remember(access, needs, *(need.name for need in needs))
    return None


def check(access: Access, needs: tuple[Need, ...]) -> None:
    """Raise `Unauthorized` for the first right that somebody lacks."""
    lacking = missing(access, needs)
    if lacking is not None:
        raise access.refusal(*lacking)


def check_for(access: Access, needs_of: NeedsOf, *about: str) -> None:
    """The same for what an operation needs of these names, made only where that is not known."""
    question = (needs_of, about)
    if question in access.remembered and access.version == access.rules.version:
        return
    check(access, needs_of(*about))
    _remember(access, question, *about)


def may(access: Access, needs_of: NeedsOf, *about: str) -> bool:
    """May it, if it wanted to?  A denial is not written down: whoever goes on is asked again."""
    question = (needs_of, about)
    if access.version != access.rules.version:
        access.renew()
    elif question in access.remembered:
        return True
    if not all(access.could(*need) for need in needs_of(*about)):
        return False
    _remember(access, question, *about)
    return True


def _remember(access: Access, question: object, *names: str) -> None:
    """All of this is allowed, until the rules change."""
    if max(map(len, names), default=0) > KEPT_CHARACTERS_MAX:
        return
    if len(access.remembered) >= KEPT_MAX:
        access.remembered.clear()
    access.remembered[question] = True


def read_topic(topic: str) -> Need:
    return Need(Operation.READ, Kind.TOPIC, topic)


def write_topic(topic: str) -> Need:
    return Need(Operation.WRITE, Kind.TOPIC, topic)


def create_topic(topic: str) -> Need:
    return Need(Operation.CREATE, Kind.TOPIC, topic)


def delete_topic(topic: str) -> Need:
    return Need(Operation.DELETE, Kind.TOPIC, topic)


def describe_topic(topic: str) -> Need:
    return Need(Operation.DESCRIBE, Kind.TOPIC, topic)


def alter_topic(topic: str) -> Need:
    return Need(Operation.ALTER, Kind.TOPIC, topic)


def alter_topic_settings(topic: str) -> Need:
    return Need(Operation.ALTER_SETTINGS, Kind.TOPIC, topic)


def read_group(group: str) -> Need:
    return Need(Operation.READ, Kind.GROUP, group)


def describe_group(group: str) -> Need:
    return Need(Operation.DESCRIBE, Kind.GROUP, group)


def write_transaction(name: str) -> Need:
    return Need(Operation.WRITE, Kind.TRANSACTION, name)
