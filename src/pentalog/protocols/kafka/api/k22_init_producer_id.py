"""InitProducerId: an identity for a producer that must not write anything twice.

1: same as 0.  2: flexible.  3: id and epoch the producer had.  4: fenced producers get their
own error.  5: transactions that end with a new epoch.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Identity
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.codec import milliseconds
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call
from pentalog.protocols.kafka.transactions import answer_later, transaction_code

_FENCED: Final = 4
_NAME_CHARACTERS_MAX: Final = 1_000
"""Longer transactional ids could be searched for by no pattern in good time."""


def serve(call: Call) -> None:
    name = call.body.transactional_id
    known = Identity(call.field("producer_id", -1), call.field("producer_epoch", -1))
    unfit = name is not None and not 0 < len(name) <= _NAME_CHARACTERS_MAX
    if unfit or (known.producer_id < 0) != (known.epoch < 0):
        call.answer(_refused(int(ErrorCode.invalid_request)))
        return

    def begin() -> Later[Identity]:
        broker = call.context.broker
        if name is None:
            _check_idempotent(call)
            return broker.producers.identify()
        demand(call.access, Operation.WRITE, Kind.TRANSACTION, name)
        return broker.transactions.identify(
            name,
            timeout_ms=milliseconds(call.body.transaction_timeout),
            known=known if known.producer_id >= 0 else None,
            owner=call.access.owner,
        )

    def refused(refusal: BrokerError) -> dict[str, Any]:
        return _refused(transaction_code(refusal, fenced=call.version >= _FENCED))

    answer_later(call, begin, _fields, refused)


def _check_idempotent(call: Call) -> None:
    """Whoever may write to anything may do it without repetitions."""
    access = call.access
    if not access.could(Operation.WRITE_IDEMPOTENTLY, Kind.CLUSTER) and not access.allows_any(
        Operation.WRITE, Kind.TOPIC
    ):
        demand(access, Operation.WRITE_IDEMPOTENTLY, Kind.CLUSTER)


def _fields(identity: Identity) -> dict[str, Any]:
    return {"producer_id": identity.producer_id, "producer_epoch": identity.epoch}


def _refused(error: int) -> dict[str, Any]:
    return {"error_code": error, "producer_id": -1, "producer_epoch": -1}


API: Final = Api(22, "InitProducerId", 0, 5, serve)
