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
from pentalog.protocols.kafka.messages import Api, Call, Steps
from pentalog.protocols.kafka.transactions import transaction_code

_FENCED: Final = 2
_BATCHED: Final = 4
_ABORTABLE: Final = 5


def serve(call: Call) -> Steps[None]:
    if call.version >= _BATCHED:
        denied = refusal_of(call.access, Operation.ADMINISTER, Kind.CLUSTER)
        if denied:
            call.answer({"error_code": denied, "results_by_transaction": []})
            return
        results = []
        for asked in call.body.transactions:
            results.append((yield from _transaction(call, asked)))
            yield None
        yield from call.reply({"results_by_transaction": results})
        return
    body = call.body
    codes = yield from _add(
        call,
        body.v3_and_below_transactional_id,
        Identity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch),
        body.v3_and_below_topics,
    )
    added = yield from _results(call, body.v3_and_below_topics, codes)
    yield from call.reply({"results_by_topic_v3_and_below": added})


def _transaction(call: Call, asked: Any) -> Steps[dict[str, Any]]:
    who = Identity(asked.producer_id, asked.producer_epoch)
    work = _verify if asked.verify_only else _add
    codes = yield from work(call, asked.transactional_id, who, asked.topics)
    results = yield from _results(call, asked.topics, codes)
    return {"transactional_id": asked.transactional_id, "topic_results": results}


def _add(
    call: Call, name: str, who: Identity, topics: Sequence[Any]
) -> Steps[Mapping[Partition, int]]:
    named = _partitions(topics)
    if not name:
        return dict.fromkeys(named, int(ErrorCode.invalid_request))
    # All or none: those that could be added are told that they were not tried.
    codes = yield from call.each(named, lambda at: _flaw(call, at))
    if any(codes):
        untried = int(ErrorCode.operation_not_attempted)
        return {at: code or untried for at, code in zip(named, codes, strict=True)}
    try:
        demand(call.access, Operation.WRITE, Kind.TRANSACTION, name)
        call.context.broker.transactions.enlist(name, who, named)
    except BrokerError as refusal:
        code = transaction_code(refusal, fenced=call.version >= _FENCED)
        return dict.fromkeys(named, code)
    return dict.fromkeys(named, 0)


def _verify(
    call: Call, name: str, who: Identity, topics: Sequence[Any]
) -> Steps[Mapping[Partition, int]]:
    abortable = call.version >= _ABORTABLE
    absent = ErrorCode.transaction_abortable if abortable else ErrorCode.invalid_txn_state
    transactions = call.context.broker.transactions

    def verify(at: Partition) -> int:
        try:
            return 0 if transactions.enlisted(name, who, at) else int(absent)
        except BrokerError as refusal:
            return transaction_code(refusal, fenced=True)

    named = _partitions(topics)
    codes = yield from call.each(named, verify)
    return dict(zip(named, codes, strict=True))


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
    named = (Partition(topic.name, index) for topic in topics for index in topic.partitions)
    return list(dict.fromkeys(named))


def _results(
    call: Call, topics: Sequence[Any], codes: Mapping[Partition, int]
) -> Steps[list[dict[str, Any]]]:
    results = []
    for topic in topics:

        def tell(index: int, topic: str = topic.name) -> dict[str, int]:
            code = codes[Partition(topic, index)]
            return {"partition_index": index, "partition_error_code": code}

        parts = yield from call.each(topic.partitions, tell)
        results.append({"name": topic.name, "results_by_partition": parts})
    return results


API: Final = Api(24, "AddPartitionsToTxn", 0, 5, serve, finishes=True)
