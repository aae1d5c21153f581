"""ListTransactions: the transactional ids in use, filtered.

1: only those open for longer than a time.  2: only ids that match a pattern.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.port import TransactionView
from pentalog.broker.security import Kind
from pentalog.model.errors import InvalidPattern
from pentalog.protocols.kafka.errors import code_of
from pentalog.protocols.kafka.messages import Api, Call

_STATES: Final = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "PrepareEpochFence",
        "Dead",
    }
)


def serve(call: Call) -> None:
    body = call.body
    states = set(body.state_filters)
    producer_ids = set(body.producer_id_filters)
    open_ms = call.field("duration_filter", -1)
    before_ms = call.context.runtime.now_ms() - open_ms
    try:
        views = call.context.broker.transactions.all(call.field("transactional_id_pattern", None))
    except InvalidPattern as refusal:
        call.answer(
            {
                "error_code": code_of(refusal),
                "unknown_state_filters": [],
                "transaction_states": [],
            }
        )
        return
    found = [
        view
        for view in views
        if call.access.sees(Kind.TRANSACTION, view.name)
        and (not states or view.phase in states)
        and (not producer_ids or view.who.producer_id in producer_ids)
        and (open_ms < 0 or 0 <= view.started_ms < before_ms)
    ]
    call.answer(
        {
            "error_code": 0,
            "unknown_state_filters": sorted(states - _STATES),
            "transaction_states": [_fields(view) for view in found],
        }
    )


def _fields(view: TransactionView) -> dict[str, Any]:
    return {
        "transactional_id": view.name,
        "producer_id": view.who.producer_id,
        "transaction_state": view.phase,
    }


API: Final = Api(66, "ListTransactions", 0, 2, serve)
