"""ListTransactions: the transactional ids in use, filtered.

1: only those open for longer than a time.  2: only ids that match a pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    try:
        views = call.context.broker.transactions.all(call.field("transactional_id_pattern", None))
    except InvalidPattern as refusal:
        call.answer(_answer(code_of(refusal), [], []))
        return
    found: list[dict[str, Any]] = []
    place = call.place()

    def done(error: Exception | None) -> None:
        if error is not None:
            raise error
        unknown = sorted(set(call.body.state_filters) - _STATES)
        place.answer(_answer(0, unknown, found))

    call.context.slices.run(_look(call, views, found), done)


def _look(
    call: Call, views: Iterator[TransactionView | None], found: list[dict[str, Any]]
) -> Iterator[None]:
    """Add what the request asks for to `found`, in steps."""
    body = call.body
    states = set(body.state_filters)
    producer_ids = set(body.producer_id_filters)
    open_ms = call.field("duration_filter", -1)
    before_ms = call.context.runtime.now_ms() - open_ms
    for view in views:
        if (
            view is not None
            and call.access.sees(Kind.TRANSACTION, view.name)
            and (not states or view.phase in states)
            and (not producer_ids or view.who.producer_id in producer_ids)
            and (open_ms < 0 or 0 <= view.started_ms < before_ms)
        ):
            found.append(_fields(view))
        yield


def _answer(code: int, unknown: list[str], found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "error_code": code,
        "unknown_state_filters": unknown,
        "transaction_states": found,
    }


def _fields(view: TransactionView) -> dict[str, Any]:
    return {
        "transactional_id": view.name,
        "producer_id": view.who.producer_id,
        "transaction_state": view.phase,
    }


API: Final = Api(66, "ListTransactions", 0, 2, serve)
