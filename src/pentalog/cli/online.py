"""The users, rules, quotas and tokens of a running broker, asked for by Kafka's own requests."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pentalog.broker.credentials import KeyView, Mechanism
from pentalog.broker.operation import Owner, Quota
from pentalog.broker.security import Kind, Operation, Principal, Rule
from pentalog.cli import user_keys
from pentalog.cli.client import Connection, parse_server
from pentalog.cli.client import refuse as _refuse
from pentalog.cli.output import Refused
from pentalog.clients.kafka.messages import ms
from pentalog.model.kio_schemas import ErrorCode

if TYPE_CHECKING:
    from pentalog.cli.directory import Directory

_TIMEOUT_MS: Final = 30_000
_ITERATIONS: Final = 4096
_SALT_BYTES: Final = 32
_MECHANISMS: Final = {1: Mechanism.SHA_256, 2: Mechanism.SHA_512}
_MECHANISM_CODES: Final = {mechanism: code for code, mechanism in _MECHANISMS.items()}
_ALTER_SCRAM: Final = 51
_DESCRIBE_SCRAM: Final = 50
_KINDS: Final = {
    2: Kind.TOPIC,
    3: Kind.GROUP,
    4: Kind.CLUSTER,
    5: Kind.TRANSACTION,
    6: Kind.TOKEN,
    7: Kind.USER,
}
_OPERATIONS: Final[dict[int, Operation | None]] = {
    2: None,
    3: Operation.READ,
    4: Operation.WRITE,
    5: Operation.CREATE,
    6: Operation.DELETE,
    7: Operation.ALTER,
    8: Operation.DESCRIBE,
    9: Operation.ADMINISTER,
    10: Operation.DESCRIBE_SETTINGS,
    11: Operation.ALTER_SETTINGS,
    12: Operation.WRITE_IDEMPOTENTLY,
    13: Operation.CREATE_TOKENS,
    14: Operation.DESCRIBE_TOKENS,
    15: Operation.COMMIT_IN_TWO_PHASES,
}
_KIND_CODES: Final = {kind: code for code, kind in _KINDS.items()}
_OPERATION_CODES: Final = {operation: code for code, operation in _OPERATIONS.items()}
_ANY: Final = 1
_DENY, _ALLOW = 2, 3
_LITERAL, _PREFIXED = 3, 4
_QUOTAS: Final = {
    Quota.WRITTEN: "producer_byte_rate",
    Quota.READ: "consumer_byte_rate",
    Quota.WORK: "request_percentage",
    Quota.CHANGED: "controller_mutation_rate",
    Quota.CONNECTED: "connection_creation_rate",
}
_QUOTA_NAMES: Final = {name: quota for quota, name in _QUOTAS.items()}
_ENTITIES: Final = {"user": "user", "client": "client-id", "address": "ip"}
_ENTITY_KINDS: Final = {name: kind for kind, name in _ENTITIES.items()}


class UserView(NamedTuple):
    name: str
    mechanisms: Sequence[str]
    keys: Sequence[KeyView] | None
    """None: a broker that is no pentalog does not know such."""


class Token(NamedTuple):
    token_id: str
    owner: Principal
    requester: Principal
    renewers: Sequence[Principal]
    issued_ms: int
    expires_ms: int
    expires_ms_max: int
    secret: bytes


def opened(data: Path | None, server: str) -> AbstractContextManager[Directory | Online]:
    """The directory if one is named, else the gateways of a cluster or the running broker."""
    if data is None and "://" in server:
        from pentalog.cli.gateway_state import of_gateways

        return of_gateways(server)
    if data is None:
        return Online(server)
    from pentalog.cli.directory import Directory

    return Directory(data)


class Online:
    def __init__(self, server: str) -> None:
        self._connection = Connection(*parse_server(server), timeout_ms=_TIMEOUT_MS)

    def __enter__(self) -> Online:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    # Users

    def set_password(self, name: str, password: str) -> None:
        salted = {
            mechanism: (
                salt := secrets.token_bytes(_SALT_BYTES),
                _salted(mechanism, password, salt),
            )
            for mechanism in Mechanism
        }
        upsertions = [
            {
                "name": name,
                "mechanism": _MECHANISM_CODES[mechanism],
                "iterations": _ITERATIONS,
                "salt": salt,
                "salted_password": digest,
            }
            for mechanism, (salt, digest) in salted.items()
        ]
        answer = self._connection.ask(_ALTER_SCRAM, {"deletions": [], "upsertions": upsertions})
        _refuse(f"setting the password of {name!r}", answer.results)

    def users(self) -> list[UserView]:
        answer = self._connection.ask(_DESCRIBE_SCRAM, {"users": None})
        _refuse("listing users", [answer, *answer.results])
        mechanisms = {
            str(found.user): sorted(
                _MECHANISMS[info.mechanism].value for info in found.credential_infos
            )
            for found in answer.results
        }
        keys = user_keys.listed(self._connection)
        return [
            UserView(
                name,
                mechanisms.get(name, []),
                None if keys is None else [key for key in keys if key.user == name],
            )
            for name in sorted({*mechanisms, *(key.user for key in keys or ())})
        ]

    def delete_user(self, name: str) -> None:
        doing = f"deleting user {name!r}"
        keys = [key for key in user_keys.listed(self._connection) or () if key.user == name]
        for key in keys:
            user_keys.remove(self._connection, name, key.fingerprint)
        answer = self._connection.ask(_DESCRIBE_SCRAM, {"users": [{"name": name}]})
        if keys and all(
            found.error_code is ErrorCode.resource_not_found for found in answer.results
        ):
            return
        _refuse(doing, [answer, *answer.results])
        deletions = [
            {"name": name, "mechanism": info.mechanism}
            for found in answer.results
            for info in found.credential_infos
        ]
        answer = self._connection.ask(_ALTER_SCRAM, {"deletions": deletions, "upsertions": []})
        _refuse(doing, answer.results)

    def add_key(self, name: str, label: str) -> str:
        return user_keys.add(self._connection, name, label)

    def delete_key(self, name: str, fingerprint: str) -> None:
        user_keys.remove(self._connection, name, fingerprint)

    # Rules

    def rules(self) -> Sequence[Rule]:
        answer = self._connection.ask(
            29,
            {
                "resource_type_filter": _ANY,
                "resource_name_filter": None,
                "pattern_type_filter": _ANY,
                "principal_filter": None,
                "host_filter": None,
                "operation": _ANY,
                "permission_type": _ANY,
            },
        )
        _refuse("listing rules", [answer])
        return [
            Rule(
                _KINDS[resource.resource_type],
                resource.resource_name,
                resource.pattern_type == _PREFIXED,
                Principal.parse(one.principal),
                one.host,
                _OPERATIONS[one.operation],
                one.permission_type == _ALLOW,
            )
            for resource in answer.resources
            for one in resource.acls
        ]

    def add_rules(self, rules: Sequence[Rule]) -> None:
        creations = [
            {
                "resource_type": _KIND_CODES[rule.kind],
                "resource_name": rule.name,
                "resource_pattern_type": _PREFIXED if rule.prefixed else _LITERAL,
                "principal": str(rule.principal),
                "host": rule.host,
                "operation": _OPERATION_CODES[rule.operation],
                "permission_type": _ALLOW if rule.allowed else _DENY,
            }
            for rule in rules
        ]
        answer = self._connection.ask(30, {"creations": creations})
        _refuse("adding rules", answer.results)

    def remove_rules(self, rules: Sequence[Rule]) -> None:
        filters = [
            {
                "resource_type_filter": _KIND_CODES[rule.kind],
                "resource_name_filter": rule.name,
                "pattern_type_filter": _PREFIXED if rule.prefixed else _LITERAL,
                "principal_filter": str(rule.principal),
                "host_filter": rule.host,
                "operation": _OPERATION_CODES[rule.operation],
                "permission_type": _ALLOW if rule.allowed else _DENY,
            }
            for rule in rules
        ]
        answer = self._connection.ask(31, {"filters": filters})
        _refuse("removing rules", answer.filter_results)

    # Quotas

    def quotas(self) -> Mapping[Owner, Mapping[Quota, float]]:
        answer = self._connection.ask(48, {"components": [], "strict": False})
        _refuse("listing quotas", [answer])
        return {
            frozenset(
                (_ENTITY_KINDS[part.entity_type], part.entity_name) for part in entry.entity
            ): {_QUOTA_NAMES[value.key]: value.value for value in entry.values}
            for entry in answer.entries or ()
        }

    def change_quotas(self, owner: Owner, changes: Mapping[Quota, float | None]) -> None:
        entry = {
            "entity": [
                {"entity_type": _ENTITIES[kind], "entity_name": name} for kind, name in owner
            ],
            "ops": [
                {"key": _QUOTAS[quota], "value": value or 0.0, "remove": value is None}
                for quota, value in changes.items()
            ],
        }
        answer = self._connection.ask(49, {"entries": [entry], "validate_only": False})
        _refuse("changing quotas", answer.entries)

    # Tokens

    def create_token(
        self, owner: Principal | None, renewers: Sequence[Principal], lifetime_ms: int
    ) -> Token:
        answer = self._connection.ask(
            38,
            {
                "owner_principal_type": None if owner is None else owner.kind,
                "owner_principal_name": None if owner is None else owner.name,
                "renewers": [
                    {"principal_type": one.kind, "principal_name": one.name} for one in renewers
                ],
                "max_lifetime": ms(lifetime_ms),
            },
        )
        _refuse("making a token", [answer])
        return Token(
            answer.token_id,
            Principal(answer.principal_type, answer.principal_name),
            Principal(answer.token_requester_principal_type, answer.token_requester_principal_name),
            renewers,
            round(answer.issue_timestamp.timestamp() * 1000),
            round(answer.expiry_timestamp.timestamp() * 1000),
            round(answer.max_timestamp.timestamp() * 1000),
            answer.hmac,
        )

    def tokens(self) -> list[Token]:
        answer = self._connection.ask(41, {"owners": None})
        _refuse("listing tokens", [answer])
        return [
            Token(
                found.token_id,
                Principal(found.principal_type, found.principal_name),
                Principal(
                    found.token_requester_principal_type, found.token_requester_principal_name
                ),
                [Principal(one.principal_type, one.principal_name) for one in found.renewers],
                found.issue_timestamp,
                found.expiry_timestamp,
                found.max_timestamp,
                found.hmac,
            )
            for found in answer.tokens
        ]

    def renew_token(self, token_id: str, period_ms: int) -> int:
        """Until when it is good now, in ms."""
        fields = {"hmac": self._secret(token_id), "renew_period": ms(period_ms)}
        return self._until(f"renewing token {token_id}", 39, fields)

    def expire_token(self, token_id: str, period_ms: int) -> int:
        fields = {"hmac": self._secret(token_id), "expiry_time_period": ms(period_ms)}
        return self._until(f"ending token {token_id}", 40, fields)

    def _until(self, doing: str, key: int, fields: Mapping[str, Any]) -> int:
        answer = self._connection.ask(key, fields)
        _refuse(doing, [answer])
        until: int = round(answer.expiry_timestamp.timestamp() * 1000)
        return until

    def _secret(self, token_id: str) -> bytes:
        # Looked up, so that it need not stand on a command line.
        for token in self.tokens():
            if token.token_id == token_id:
                return token.secret
        raise Refused(
            f"there is no token {token_id!r} that you may see; `pentalog token list` shows those "
            "you may"
        )


def _salted(mechanism: Mechanism, password: str, salt: bytes) -> bytes:
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, _ITERATIONS)
