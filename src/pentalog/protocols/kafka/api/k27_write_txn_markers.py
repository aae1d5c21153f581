"""WriteTxnMarkers: end a producer's transaction in some partitions by hand.

Between Kafka's brokers it is how every transaction ends; here it is for administrators only, who
clean up after transactions that nobody else can end.  2: the dialect of the transaction.
"""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Identity, Partition
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import code_of
from pentalog.protocols.kafka.messages import Api, Call, Steps, portions

_MARK_COST: Final = 8
_MARKS_UNDER_WAY: Final = 100


def serve(call: Call) -> Steps[None]:
    answers: list[dict[str, Any]] = []
    waiting: list[tuple[dict[str, Any], Later[None]]] = []
    for marker in call.body.markers:
        who = Identity(marker.producer_id, marker.producer_epoch)
        topics: list[dict[str, Any]] = []
        for topic in marker.topics:

            def mark(
                index: int,
                topic: str = topic.name,
                who: Identity = who,
                commit: bool = marker.transaction_result,
            ) -> dict[str, Any]:
                result = {"partition_index": index, "error_code": 0}
                try:
                    if not call.access.could(Operation.ALTER, Kind.CLUSTER):
                        demand(call.access, Operation.ADMINISTER, Kind.CLUSTER)
                    at = Partition(topic, index)
                    written = call.context.broker.transactions.mark(who, at, commit=commit)
                except BrokerError as refusal:
                    result["error_code"] = code_of(refusal)
                else:
                    waiting.append((result, written))
                return result

            # As in Kafka, a partition that is named again gets one marker.
            indexes = list(dict.fromkeys(topic.partition_indexes))
            results: list[dict[str, Any]] = []
            for some in portions(indexes, _MARKS_UNDER_WAY):
                results += yield from call.each(some, mark, cost=_MARK_COST)
                if len(waiting) >= _MARKS_UNDER_WAY:
                    yield from _settle(waiting)
            topics.append({"name": topic.name, "partitions": results})
        answers.append({"producer_id": marker.producer_id, "topics": topics})
    yield from _settle(waiting)
    yield from call.reply({"markers": answers})


def _settle(waiting: list[tuple[dict[str, Any], Later[None]]]) -> Steps[None]:
    """Wait until the markers are on the disk, before more of them are written."""
    for result, later in waiting:
        yield later
        try:
            later.check()
        except BrokerError as refusal:
            result["error_code"] = code_of(refusal)
    waiting.clear()


API: Final = Api(27, "WriteTxnMarkers", 1, 2, serve, finishes=True)
