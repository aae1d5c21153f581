"""EndTxn: commit or abort; answered when every reader can see it.

2: fenced producers get their own error.  3: flexible.  4: abortable errors.  5: the producer goes
on with another epoch, which the answer names.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Identity
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call
from pentalog.protocols.kafka.transactions import answer_later, transaction_code

_FENCED: Final = 2
_BUMPS: Final = 5


def serve(call: Call) -> None:
    body = call.body
    if not body.transactional_id:
        call.answer(_refused(int(ErrorCode.invalid_request)))
        return

    def begin() -> Later[Identity]:
        demand(call.access, Operation.WRITE, Kind.TRANSACTION, body.transactional_id)
        return call.context.broker.transactions.end(
            body.transactional_id,
            Identity(body.producer_id, body.producer_epoch),
            commit=body.committed,
            bump=call.version >= _BUMPS,
        )

    def refused(refusal: BrokerError) -> dict[str, Any]:
        return _refused(transaction_code(refusal, fenced=call.version >= _FENCED))

    answer_later(call, begin, _fields, refused)


def _fields(identity: Identity) -> dict[str, Any]:
    return {
        "error_code": 0,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
    }


def _refused(error: int) -> dict[str, Any]:
    return {"error_code": error, "producer_id": -1, "producer_epoch": -1}


API: Final = Api(26, "EndTxn", 0, 5, serve)
