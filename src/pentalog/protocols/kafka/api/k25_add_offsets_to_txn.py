"""AddOffsetsToTxn: offsets of this group take part in the transaction.

2: fenced producers get their own error.  3: flexible.  4: abortable errors.
"""

from __future__ import annotations

from typing import Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.types import Identity
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call
from pentalog.protocols.kafka.transactions import transaction_code

_FENCED: Final = 2


def serve(call: Call) -> None:
    body = call.body
    error = 0
    if not body.transactional_id:
        error = int(ErrorCode.invalid_request)
    else:
        who = Identity(body.producer_id, body.producer_epoch)
        try:
            demand(call.access, Operation.WRITE, Kind.TRANSACTION, body.transactional_id)
            demand(call.access, Operation.READ, Kind.GROUP, body.group_id)
            call.context.broker.transactions.enlist_group(body.transactional_id, who, body.group_id)
        except BrokerError as refusal:
            error = transaction_code(refusal, fenced=call.version >= _FENCED)
    call.answer({"error_code": error})


API: Final = Api(25, "AddOffsetsToTxn", 0, 4, serve)
