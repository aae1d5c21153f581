"""DescribeTransactions: how far the transactions of some ids have come."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import TransactionUnknown
from pentalog.protocols.kafka.authorization import refusal_of
from pentalog.protocols.kafka.codec import Made
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None]:
    # A transaction that is named again is answered once.
    names = list(dict.fromkeys(call.body.transactional_ids))
    states = Made(names, lambda name: _state(call, name), at_once=8)
    return call.reply({"transaction_states": states})


def _state(call: Call, name: str) -> dict[str, Any]:
    error = refusal_of(call.access, Operation.DESCRIBE, Kind.TRANSACTION, name)
    try:
        view = call.context.broker.transactions.view(name)
    except TransactionUnknown:
        unknown = ErrorCode.transactional_id_not_found if name else ErrorCode.invalid_request
        error = error or int(unknown)
    if error:
        return {
            "error_code": error,
            "transactional_id": name,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": -1,
            "producer_epoch": -1,
            "topics": [],
        }
    topics: dict[str, list[int]] = defaultdict(list)
    for at in view.partitions:
        if not call.access.sees(Kind.TOPIC, at.topic):
            continue
        topics[at.topic].append(at.index)
    return {
        "error_code": 0,
        "transactional_id": name,
        "transaction_state": view.phase,
        "transaction_timeout": view.timeout_ms,
        "transaction_start_time": view.started_ms,
        "producer_id": view.who.producer_id,
        "producer_epoch": view.who.epoch,
        "topics": [{"topic": topic, "partitions": at} for topic, at in topics.items()],
    }


API: Final = Api(65, "DescribeTransactions", 0, 0, serve)
