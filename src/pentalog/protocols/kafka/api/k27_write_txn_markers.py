"""WriteTxnMarkers: end a producer's transaction in some partitions by hand.

Between Kafka's brokers it is how every transaction ends; here it is for administrators only, who
clean up after transactions that nobody else can end.  2: the dialect of the transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Identity, Partition
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import code_of
from pentalog.protocols.kafka.messages import Api, Call


def serve(call: Call) -> None:
    answers: list[dict[str, Any]] = []
    waiting: list[tuple[dict[str, Any], Later[None]]] = []
    for marker in call.body.markers:
        who = Identity(marker.producer_id, marker.producer_epoch)
        topics: list[dict[str, Any]] = []
        for topic in marker.topics:
            results: list[dict[str, Any]] = []
            for index in topic.partition_indexes:
                result = {"partition_index": index, "error_code": 0}
                results.append(result)
                at = Partition(topic.name, index)
                try:
                    if not call.access.could(Operation.ALTER, Kind.CLUSTER):
                        demand(call.access, Operation.ADMINISTER, Kind.CLUSTER)
                    written = call.context.broker.transactions.mark(
                        who, at, commit=marker.transaction_result
                    )
                except BrokerError as refusal:
                    result["error_code"] = code_of(refusal)
                else:
                    waiting.append((result, written))
            topics.append({"name": topic.name, "partitions": results})
        answers.append({"producer_id": marker.producer_id, "topics": topics})
    place = call.place()
    _when_all(waiting, lambda: place.answer({"markers": answers}))


def _when_all(waiting: list[tuple[dict[str, Any], Later[None]]], run: Callable[[], None]) -> None:
    left = len(waiting) + 1

    def arrived() -> None:
        nonlocal left
        left -= 1
        if not left:
            run()

    def settled(result: dict[str, Any], later: Later[None]) -> None:
        try:
            _ = later.value
        except BrokerError as refusal:
            result["error_code"] = code_of(refusal)
        arrived()

    for result, later in waiting:
        later.then(lambda done, result=result: settled(result, done))  # type: ignore[misc]
    arrived()


API: Final = Api(27, "WriteTxnMarkers", 1, 2, serve)
