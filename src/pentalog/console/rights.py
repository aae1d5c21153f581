"""Users, rules and quotas: who may log in, who may do what, and how much of it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pentalog.clients.kafka import Cluster
from pentalog.clients.kafka.connection import checked
from pentalog.clients.kafka.errors import Incompatible
from pentalog.console.administration import check_all
from pentalog.model.kio_schemas import ErrorCode

RESOURCES: Final = {
    2: "topic", 3: "group", 4: "cluster", 5: "transactional id", 6: "token", 7: "user",
}  # fmt: skip
PATTERNS: Final = {3: "literal", 4: "prefixed"}
PERMISSIONS: Final = {3: "allow", 2: "deny"}
OPERATIONS: Final = {
    2: "all", 3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe",
    9: "cluster action", 10: "describe configs", 11: "alter configs", 12: "idempotent write",
    13: "create tokens", 14: "describe tokens",
}  # fmt: skip
QUOTAS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
ENTITIES: Final = ("user", "client-id", "ip")
ANY_OTHER: Final = "(any other)"

_DESCRIBE_RULES: Final = 29
_CREATE_RULES: Final = 30
_DELETE_RULES: Final = 31
_DESCRIBE_QUOTAS: Final = 48
_ALTER_QUOTAS: Final = 49
_DESCRIBE_USERS: Final = 50
_ALTER_USERS: Final = 51
_ANY: Final = 1
_CLUSTER: Final = 4
_LITERAL: Final = 3
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_DIGESTS: Final = {1: "sha256", 2: "sha512"}
_ITERATIONS: Final = 4096
_SALT_BYTES: Final = 32


class NotOffered(Exception):
    """The broker does not have this; the text says so for a page."""


class User(NamedTuple):
    name: str
    mechanisms: tuple[int, ...]

    @property
    def logs_in_by(self) -> str:
        return ", ".join(_MECHANISMS.get(one, str(one)) for one in self.mechanisms)


class Rule(NamedTuple):
    """By the numbers Kafka's requests have for them."""

    principal: str
    permission: int
    operation: int
    resource: int
    name: str
    pattern: int = 3
    host: str = "*"


class QuotaOf(NamedTuple):
    entity: tuple[tuple[str, str | None], ...]
    """Kind and name; None is whoever has none of his own."""
    quota: str
    value: float

    @property
    def whose(self) -> str:
        return ", ".join(f"{kind} {name or ANY_OTHER}" for kind, name in self.entity)


def users(cluster: Cluster) -> list[User]:
    answer = _asked(cluster, _DESCRIBE_USERS, {"users": None}, "users")
    return [
        User(one.user, tuple(info.mechanism for info in one.credential_infos))
        for one in answer.results
    ]


def set_password(cluster: Cluster, name: str, password: str) -> None:
    """Make a user, or give him another password; it does not leave this process."""
    if not name or not password:
        raise ValueError("a user has a name and a password; write both")
    salts = {mechanism: secrets.token_bytes(_SALT_BYTES) for mechanism in _DIGESTS}
    changes = [
        {
            "name": name,
            "mechanism": mechanism,
            "iterations": _ITERATIONS,
            "salt": salts[mechanism],
            "salted_password": hashlib.pbkdf2_hmac(
                digest, password.encode(), salts[mechanism], _ITERATIONS
            ),
        }
        for mechanism, digest in _DIGESTS.items()
    ]
    fields = {"deletions": (), "upsertions": changes}
    check_all(f"making user {name!r}", cluster.control().ask(_ALTER_USERS, fields).results)


def delete_user(cluster: Cluster, user: User) -> None:
    gone = [{"name": user.name, "mechanism": one} for one in user.mechanisms]
    fields = {"deletions": gone, "upsertions": ()}
    check_all(f"deleting user {user.name!r}", cluster.control().ask(_ALTER_USERS, fields).results)


def rules(cluster: Cluster) -> list[Rule]:
    fields = {
        "resource_type_filter": _ANY,
        "resource_name_filter": None,
        "pattern_type_filter": _ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": _ANY,
        "permission_type": _ANY,
    }
    answer = _asked(cluster, _DESCRIBE_RULES, fields, "rules")
    return [
        Rule(
            one.principal,
            one.permission_type,
            one.operation,
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            one.host,
        )
        for resource in answer.resources
        for one in resource.acls
    ]


def add_rule(cluster: Cluster, rule: Rule) -> None:
    creation = {
        "resource_type": rule.resource,
        "resource_name": rule.name,
        "resource_pattern_type": rule.pattern,
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation,
        "permission_type": rule.permission,
    }
    answer = cluster.control().ask(_CREATE_RULES, {"creations": [creation]})
    check_all(f"making a rule for {rule.principal}", answer.results)


def delete_rule(cluster: Cluster, rule: Rule) -> None:
    """This one, and none that is only like it."""
    exactly = {
        "resource_type_filter": rule.resource,
        "resource_name_filter": rule.name,
        "pattern_type_filter": rule.pattern,
        "principal_filter": rule.principal,
        "host_filter": rule.host,
        "operation": rule.operation,
        "permission_type": rule.permission,
    }
    answer = cluster.control().ask(_DELETE_RULES, {"filters": [exactly]})
    check_all(f"deleting a rule of {rule.principal}", answer.filter_results)


def quotas(cluster: Cluster) -> list[QuotaOf]:
    answer = _asked(cluster, _DESCRIBE_QUOTAS, {"components": (), "strict": False}, "quotas")
    return [
        QuotaOf(
            tuple((part.entity_type, part.entity_name) for part in entry.entity),
            one.key,
            float(one.value),
        )
        for entry in answer.entries or ()
        for one in entry.values
    ]


def set_quota(cluster: Cluster, quota: QuotaOf, *, remove: bool = False) -> None:
    entity = [{"entity_type": kind, "entity_name": name} for kind, name in quota.entity]
    change = {"key": quota.quota, "value": quota.value, "remove": remove}
    fields = {"entries": [{"entity": entity, "ops": [change]}], "validate_only": False}
    answer = cluster.control().ask(_ALTER_QUOTAS, fields)
    check_all(f"changing {quota.quota} of {quota.whose}", answer.entries)


def check_operator(cluster: Cluster) -> None:
    """Raise what the broker refuses to those who may not look at all of it.

    Who may see its rules may see whatever else concerns everybody.  This is asked often, so it
    asks for the rules of a client that there is not.
    """
    fields = {
        "resource_type_filter": _CLUSTER,
        "resource_name_filter": "kafka-cluster",
        "pattern_type_filter": _LITERAL,
        "principal_filter": "User:nobody-asked-by-the-console",
        "host_filter": None,
        "operation": _ANY,
        "permission_type": _ANY,
    }
    try:
        _asked(cluster, _DESCRIBE_RULES, fields, "rules")
    except NotOffered:
        return


def _asked(cluster: Cluster, key: int, fields: Mapping[str, Any], what: str) -> Any:
    try:
        answer = cluster.control().ask(key, fields)
    except Incompatible:
        raise NotOffered(f"This broker does not offer {what}.") from None
    if answer.error_code is ErrorCode.security_disabled:
        raise NotOffered(f"This broker keeps no {what}: its authorization is switched off.")
    checked(f"asking for {what}", answer.error_code, answer.error_message)
    return answer
