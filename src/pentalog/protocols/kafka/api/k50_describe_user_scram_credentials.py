"""DescribeUserScramCredentials: which users have verifiers, of which mechanism and strength."""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import UserNotFound
from pentalog.protocols.kafka.administration import error_fields, repeated
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call, Steps
from pentalog.protocols.kafka.scram import CODES


def serve(call: Call) -> Steps[None]:
    try:
        demand(call.access, Operation.DESCRIBE, Kind.CLUSTER)
    except REFUSALS as refusal:
        call.answer({**error_fields(refusal), "results": []})
        return
    users = call.context.broker.users
    asked = call.body.users
    names = [user.name for user in asked] if asked else None
    twice = repeated(names or ())
    if names is None:
        names = [name for name in users.names() if users.mechanisms(name)]
    each = list(dict.fromkeys(names))
    found = yield from call.each(each, lambda name: _described(call, name, twice), cost=2)
    yield from call.reply({**error_fields(None), "results": found})


def _described(call: Call, name: str, twice: set[object]) -> dict[str, Any]:
    infos: list[dict[str, int]] = []
    flaw: Exception | None = None
    try:
        if name in twice:
            raise Refused(ErrorCode.duplicate_resource, f"user {name[:249]!r} is named twice")
        strengths = call.context.broker.users.mechanisms(name)
        if not strengths:
            raise UserNotFound(f"user {name!r} has no password")
        infos = [
            {"mechanism": CODES[mechanism], "iterations": strength}
            for mechanism, strength in strengths.items()
        ]
    except REFUSALS as refusal:
        flaw = refusal
    return {"user": name, **error_fields(flaw), "credential_infos": infos}


API: Final = Api(50, "DescribeUserScramCredentials", 0, 0, serve)
