"""AlterUserScramCredentials: make, change and remove verifiers of users' passwords.

Passwords never come: clients salt them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from pentalog.broker.security import ANONYMOUS, Kind, Operation
from pentalog.model.errors import InvalidConfig
from pentalog.protocols.kafka.administration import answer_settled, error_fields, repeated
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call, Steps
from pentalog.protocols.kafka.scram import mechanism_of, verifier_of


def serve(call: Call) -> Steps[None]:
    body = call.body
    by_name: dict[str, list[Any]] = {}
    yield from call.each(
        chain(body.deletions, body.upsertions),
        lambda change: by_name.setdefault(change.name, []).append(change),
    )

    def alter(name: str) -> dict[str, Any]:
        own = by_name[name]
        flaw: Exception | None = None
        try:
            demand(call.access, Operation.ALTER, Kind.CLUSTER)
            if repeated(change.mechanism for change in own):
                raise Refused(
                    ErrorCode.duplicate_resource,
                    f"user {name[:249]!r} is changed twice for one mechanism: change it once",
                )
            _change(call, name, own)
        except InvalidConfig as refusal:
            flaw = Refused(ErrorCode.unacceptable_credential, str(refusal))
        except REFUSALS as refusal:
            flaw = refusal
        return {"user": name, **error_fields(flaw)}

    results = yield from call.each(list(by_name), alter, cost=8)
    yield from answer_settled(call, {"results": results}, results, changed=True)


def _change(call: Call, name: str, changes: Sequence[Any]) -> None:
    users = call.context.broker.users
    if not name or name == ANONYMOUS.name:
        raise InvalidConfig(f"user name {name!r} was refused: give another one")
    for change in changes:
        mechanism = mechanism_of(change.mechanism)
        if hasattr(change, "salt"):
            users.set_verifier(name, mechanism, verifier_of(mechanism, change))
            call.access.record("set password", f"user {name} {mechanism.value}")
        else:
            users.drop_verifier(name, mechanism)
            call.access.record("remove password", f"user {name} {mechanism.value}")


API: Final = Api(51, "AlterUserScramCredentials", 0, 0, serve, finishes=True)
