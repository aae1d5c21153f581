"""The keys of users as settings of a resource of our own, for those who administer them online.

A key is made by who asks for it, and comes as its hash: setting `key.HASH` of a user, with the
label as its value, adds it; deleting `key.FINGERPRINT` removes it.  Described, a key is
`key.FINGERPRINT`, and its value says whose it is, what for and since when, in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pentalog.broker.security import ANONYMOUS
from pentalog.model.errors import InvalidConfig
from pentalog.protocols.kafka.configs import Entry, Source
from pentalog.protocols.kafka.errors import ErrorCode, Refused
from pentalog.protocols.kafka.messages import Call, Steps

_KEY: Final = "key."
_CHANGE_COST: Final = 8


def entries(call: Call, user: str) -> list[Entry]:
    """The keys of a user; without a name, all there are."""
    known = call.context.broker.users.keys()
    return [
        Entry(
            name=f"{_KEY}{key.fingerprint}",
            value=json.dumps({"user": key.user, "label": key.label, "created_ms": key.created_ms}),
            source=Source.DYNAMIC_DEFAULT_BROKER,
            kind="string",
            documentation="A key by which its user logs in.",
            synonyms=(),
        )
        for key in known
        if user in ("", key.user)
    ]


def change(
    call: Call, user: str, changes: Mapping[str, str | None], *, dry_run: bool
) -> Steps[None]:
    """Add keys, and remove those whose label is None."""
    if user in ("", ANONYMOUS.name):
        raise InvalidConfig(f"user name {user!r} was refused: give another one")
    users = call.context.broker.users
    known = users.keys()
    own = {key.fingerprint for key in known if key.user == user}

    def check(asked: tuple[str, str | None]) -> None:
        name, label = asked
        told = name.removeprefix(_KEY)
        if told == name:
            raise InvalidConfig(f"{name[:100]!r} is no key; accepted is {_KEY} and its hash")
        if label is None and told not in own:
            raise Refused(
                ErrorCode.resource_not_found,
                f"{user} has no key {told[:100]!r}; it has {', '.join(sorted(own)) or 'none'}",
            )

    def apply(asked: tuple[str, str | None]) -> None:
        name, label = asked
        told = name.removeprefix(_KEY)
        if label is None:
            users.drop_key(told)
            call.access.record("remove key", f"{told} of user {user}")
        else:
            users.set_key(user, label, told)
            call.access.record("add key", f"{told[:12]} of user {user}")

    yield from call.each(changes.items(), check)
    if not dry_run:
        yield from call.each(changes.items(), apply, cost=_CHANGE_COST)


def one_by_one() -> Refused:
    return Refused(
        ErrorCode.invalid_request,
        "keys are not replaced all at once: add and remove them by IncrementalAlterConfigs",
    )
