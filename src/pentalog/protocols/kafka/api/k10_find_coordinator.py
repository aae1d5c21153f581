"""FindCoordinator: who keeps a group or a transactional id; here always this broker.

1: kind of key and a text to errors.  3: flexible.  4: several keys at a time.  5: an error that
only a new dialect of transactions knows.  6: keys of share groups, which are not served.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.protocols.kafka.authorization import refusal_of
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call, Steps

_GROUP: Final = 0
_TRANSACTION: Final = 1


def serve(call: Call) -> Steps[None]:
    kind = call.field("key_type", _GROUP)
    keys = [call.body.key] if call.version < 4 else call.body.coordinator_keys
    found = yield from call.each(keys, lambda key: _coordinator(call, key, kind))
    if kind == _GROUP and not all(coordinator["error_code"] for coordinator in found):
        call.context.broker.groups.offsets.publish()
    yield from call.reply(found[0] if call.version < 4 else {"coordinators": found})


def _coordinator(call: Call, key: str, kind: int) -> dict[str, Any]:
    if kind not in (_GROUP, _TRANSACTION):
        return {
            "key": key,
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": int(ErrorCode.invalid_request),
            "error_message": f"keys of kind {kind}; accepted are 0 (group) and 1 (transaction)",
        }
    what = Kind.GROUP if kind == _GROUP else Kind.TRANSACTION
    denied = refusal_of(call.access, Operation.DESCRIBE, what, key)
    if denied:
        return {
            "key": key,
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": denied,
            "error_message": f"a rule is needed to describe this {what.value}",
        }
    address = call.context.advertised("kafka")
    return {
        "key": key,
        "node_id": call.context.config.node_id,
        "host": address.host,
        "port": address.port,
        "error_code": 0,
        "error_message": "" if call.version >= 4 else "NONE",
    }


API: Final = Api(10, "FindCoordinator", 0, 6, serve)
