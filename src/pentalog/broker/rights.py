"""The part of the contract that says what an operation needs: rights, checked all together.

Each protocol has one table from its operations to their needs, and looks there before it does
anything; a test fails for an operation that is not in its table.
"""

from __future__ import annotations

from typing import NamedTuple

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


def missing(access: Access, needs: tuple[Need, ...]) -> Need | None:
    """The first right that somebody lacks; None if he has them all.

    Who may create topics in the cluster may create every topic.
    """
    remembered = access.remembered
    # Every request asks this, mostly for what the one before it needed.
    if needs in remembered and access.version == access.rules.version:
        return None
    for need in needs:
        creates = need.operation is Operation.CREATE and need.kind is Kind.TOPIC
        if creates and access.could(Operation.CREATE, Kind.CLUSTER):
            continue
        if not access.allows(*need):
            return need
    if access.version == access.rules.version and all(
        len(need.name) <= KEPT_CHARACTERS_MAX for need in needs
    ):
        if len(remembered) >= KEPT_MAX:
            remembered.clear()
        remembered[needs] = True
    return None


def check(access: Access, needs: tuple[Need, ...]) -> None:
    """Raise `Unauthorized` for the first right that somebody lacks."""
    lacking = missing(access, needs)
    if lacking is not None:
        access.check(*lacking)


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
