"""InitProducerId: an identity for a producer that must not write anything twice.

1: same as 0.  2: flexible.  3: id and epoch the producer had.  4: fenced producers get their
own error.  5: transactions that end with a new epoch.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Identity
from pentalog.protocols.kafka.errors import ErrorCode, code_of
from pentalog.protocols.kafka.messages import Api, Call

_log: Final = logging.getLogger(__name__)


def serve(call: Call) -> None:
    name = call.body.transactional_id
    if name is not None:
        call.answer(_refused(_transactional(call, name)))
        return
    try:
        identified = call.context.broker.producers.identify()
    except BrokerError as refusal:
        call.answer(_refused(code_of(refusal)))
        return
    if identified.ready:
        call.answer(_fields(identified))
        return
    place = call.place()
    identified.then(lambda done: place.answer(_fields(done)))


def _transactional(call: Call, name: str) -> int:
    if not name:
        return int(ErrorCode.invalid_request)
    _log.warning(
        "%s: transactional id %r refused: transactions are not supported; "
        "leave transactional.id unset and use an idempotent producer",
        call.context.peer,
        name,
    )
    return int(ErrorCode.unsupported_version)


def _fields(identified: Later[Identity]) -> dict[str, Any]:
    try:
        identity = identified.value
    except BrokerError as refusal:
        return _refused(code_of(refusal))
    return {"producer_id": identity.producer_id, "producer_epoch": identity.epoch}


def _refused(error: int) -> dict[str, Any]:
    return {"error_code": error, "producer_id": -1, "producer_epoch": -1}


API: Final = Api(22, "InitProducerId", 0, 5, serve)
