"""The keys of a running broker's users: made here, and told to it by their hashes only."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import TYPE_CHECKING, Final

from pentalog.broker.credentials import KeyView
from pentalog.cli.client import refuse
from pentalog.cli.output import Refused
from pentalog.model.kio_schemas import ErrorCode

if TYPE_CHECKING:
    from pentalog.cli.client import Connection

_DESCRIBE: Final = 32
_ALTER: Final = 44
_USER: Final = 64
"""The kind of resource that has keys; brokers that are no pentalog know none such."""
_KEY: Final = "key."
_KEY_PREFIX: Final = "pk_"
_KEY_BYTES: Final = 32
_SET, _DELETE = 0, 1


def listed(connection: Connection) -> list[KeyView] | None:
    """All there are; None if the broker does not know keys."""
    answer = connection.ask(
        _DESCRIBE,
        {
            "resources": [
                {"resource_type": _USER, "resource_name": "", "configuration_keys": None}
            ],
            "include_synonyms": False,
            "include_documentation": False,
        },
    )
    (found,) = answer.results
    if found.error_code is ErrorCode.invalid_request:
        return None
    refuse("listing keys", [found])
    keys = []
    for config in found.configs:
        told = json.loads(config.value)
        fingerprint = config.name.removeprefix(_KEY)
        keys.append(KeyView(told["user"], told["label"], told["created_ms"], fingerprint))
    return keys


def add(connection: Connection, user: str, label: str) -> str:
    key = _KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    name = _KEY + hashlib.sha256(key.encode()).hexdigest()
    _alter(connection, f"making a key of {user!r}", user, (name, _SET, label))
    return key


def remove(connection: Connection, user: str, fingerprint: str) -> None:
    name = _KEY + fingerprint
    _alter(connection, f"removing a key of {user!r}", user, (name, _DELETE, None))


def _alter(
    connection: Connection, doing: str, user: str, change: tuple[str, int, str | None]
) -> None:
    name, operation, value = change
    config = {"name": name, "config_operation": operation, "value": value}
    answer = connection.ask(
        _ALTER,
        {
            "resources": [{"resource_type": _USER, "resource_name": user, "configs": [config]}],
            "validate_only": False,
        },
    )
    (response,) = answer.responses
    if response.error_code is ErrorCode.invalid_request:
        raise Refused(
            f"{doing} was refused: the broker knows no keys of users; ask a pentalog, or name its "
            "directory with --data while it does not run"
        )
    refuse(doing, [response])
