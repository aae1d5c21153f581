"""AddPartitionsToTxn: these partitions take part in the transaction.

2: fenced producers get their own error.  3: flexible.  4: several transactions at once, and a
mode that only asks; sent by brokers.  5: what is not part is an abortable error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError, TopicNotFound
from pentalog.model.types import Identity, Partition
from pentalog.protocols.kafka.authorization import demand, refusal_of
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call
from pentalog.protocols.kafka.transactions import transaction_code

_FENCED: Final = 2
_BATCHED: Final = 4
_ABORTABLE: Final = 5


def serve(call: Call) -> None:
    if call.version >= _BATCHED:
        denied = refusal_of(call.access, Operation.ADMINISTER, Kind.CLUSTER)
        if denied:
            call.answer({"error_code": denied, "results_by_transaction": []})
            return
        results = [_transaction(call, asked) for asked in call.body.transactions]
        call.answer({"results_by_transaction": results})
        return
    body = call.body
    codes = _add(
        call,
        body.v3_and_below_transactional_id,
        Identity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch),
        body.v3_and_below_topics,
    )
    call.answer({"results_by_topic_v3_and_below": _results(body.v3_and_below_topics, codes)})


def _transaction(call: Call, asked: Any) -> dict[str, Any]:
    who = Identity(asked.producer_id, asked.producer_epoch)
    work = _verify if asked.verify_only else _add
    codes = work(call, asked.transactional_id, who, asked.topics)
    return {
        "transactional_id": asked.transactional_id,
        "topic_results": _results(asked.topics, codes),
    }


def _add(call: Call, name: str, who: Identity, topics: Sequence[Any]) -> Mapping[Partition, int]:
    named = _partitions(topics)
    if not name:
        return dict.fromkeys(named, int(ErrorCode.invalid_request))
    # All or none: those that could be added are told that they were not tried.
    flaws = {at: code for at in named if (code := _flaw(call, at))}
    if flaws:
        return {at: flaws.get(at, int(ErrorCode.operation_not_attempted)) for at in named}
    try:
        demand(call.access, Operation.WRITE, Kind.TRANSACTION, name)
        call.context.broker.transactions.enlist(name, who, named)
    except BrokerError as refusal:
        code = transaction_code(refusal, fenced=call.version >= _FENCED)
        return dict.fromkeys(named, code)
    return dict.fromkeys(named, 0)


def _verify(call: Call, name: str, who: Identity, topics: Sequence[Any]) -> Mapping[Partition, int]:
    abortable = call.version >= _ABORTABLE
    absent = ErrorCode.transaction_abortable if abortable else ErrorCode.invalid_txn_state
    transactions = call.context.broker.transactions
    codes: dict[Partition, int] = {}
    for at in _partitions(topics):
        try:
            codes[at] = 0 if transactions.enlisted(name, who, at) else int(absent)
        except BrokerError as refusal:
            codes[at] = transaction_code(refusal, fenced=True)
    return codes


def _flaw(call: Call, at: Partition) -> int:
    denied = refusal_of(call.access, Operation.WRITE, Kind.TOPIC, at.topic)
    if denied and call.version < _BATCHED:
        return denied
    try:
        if 0 <= at.index < call.context.broker.topics.get(at.topic).partitions:
            return 0
    except TopicNotFound:
        pass
    return int(ErrorCode.unknown_topic_or_partition)


def _partitions(topics: Sequence[Any]) -> list[Partition]:
    return [Partition(topic.name, index) for topic in topics for index in topic.partitions]


def _results(topics: Sequence[Any], codes: Mapping[Partition, int]) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": index,
                    "partition_error_code": codes[Partition(topic.name, index)],
                }
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]


API: Final = Api(24, "AddPartitionsToTxn", 0, 5, serve)
