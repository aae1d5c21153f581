"""DescribeProducers: which producers partitions remember, and what they have open."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from pentalog.broker.port import WriterView
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.types import Partition
from pentalog.protocols.kafka.administration import error_fields
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.codec import Made
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None]:
    # A partition that is named again is answered once.
    asked: dict[str, dict[int, None]] = {}
    for topic in call.body.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))

    def describe(name: str) -> dict[str, Any]:
        producers = partial(_producers, call, name)
        return {"name": name, "partitions": Made(list(asked[name]), producers, at_once=4)}

    return call.reply({"topics": Made(list(asked), describe)})


def _producers(call: Call, topic: str, index: int) -> dict[str, Any]:
    return _partition(call, Partition(topic, index))


def _partition(call: Call, at: Partition) -> dict[str, Any]:
    try:
        demand(call.access, Operation.READ, Kind.TOPIC, at.topic)
        writers = call.context.broker.transactions.writers(at)
    except BrokerError as refusal:
        return {"partition_index": at.index, **error_fields(refusal), "active_producers": []}
    producers = Made(writers, _producer)
    return {"partition_index": at.index, **error_fields(None), "active_producers": producers}


def _producer(writer: WriterView) -> dict[str, Any]:
    return {
        "producer_id": writer.who.producer_id,
        "producer_epoch": writer.who.epoch,
        "last_sequence": writer.last_sequence,
        "last_timestamp": writer.timestamp_ms,
        "coordinator_epoch": 0,
        "current_txn_start_offset": writer.transaction_start,
    }


API: Final = Api(61, "DescribeProducers", 0, 0, serve)
