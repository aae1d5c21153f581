"""What a node answers that leads no partition and coordinates nothing: ask another one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from pentalog.model.kio_schemas import ErrorCode
from pentalog.protocols.kafka.codec import Made
from pentalog.protocols.kafka.messages import Call, Steps

_NOT_LEADER: Final = int(ErrorCode.not_leader_or_follower)
_NOT_COORDINATOR: Final = int(ErrorCode.not_coordinator)
_NO_ACKS: Final = 0
_PRODUCE: Final = 0
_SYNC_GROUP: Final = 14


def refer_to_leaders(call: Call) -> Steps[None] | None:
    """For what is asked of the leader of each partition."""
    body = call.body
    if call.key == _PRODUCE and body.acks == _NO_ACKS:
        # It waits for no answer: a connection that ends makes it look for the leader.
        call.line.hang_up()
        return None
    asked = body.topic_data if call.key == _PRODUCE else body.topics
    topics = Made(asked, partial(_topic, _NOT_LEADER))
    return call.reply({"responses": topics, "topics": topics})


def refer_to_coordinator(call: Call) -> Steps[None]:
    """For what is asked of the coordinator of a group or of a transaction."""
    body = call.body
    asked = getattr(body, "v3_and_below_topics", None) or getattr(body, "topics", None) or ()
    topics = Made(asked, partial(_topic, _NOT_COORDINATOR))
    return call.reply(
        {
            "error_code": _NOT_COORDINATOR,
            "topics": topics,
            "results_by_topic_v3_and_below": topics,
            "results_by_transaction": (),
            "groups": Made(
                getattr(body, "groups", ()),
                lambda group: {
                    "group_id": group.group_id,
                    "topics": (),
                    "error_code": _NOT_COORDINATOR,
                },
            ),
            "members": (),
            "member_id": getattr(body, "member_id", ""),
            "member_epoch": 0,
            "heartbeat_interval": 0,
            "protocol_name": "",
            "leader": "",
            "assignment": b"" if call.key == _SYNC_GROUP else None,
            "producer_id": -1,
            "producer_epoch": -1,
        }
    )


def _topic(error: int, topic: Any) -> dict[str, Any]:
    """A topic of a request as any of the answers has it: each takes the fields it knows."""
    parts = Made(list(_indexes(topic)), partial(_partition, error))
    named = {name: getattr(topic, name, None) for name in ("name", "topic", "topic_id")}
    return {
        **named,
        "partitions": parts,
        "partition_responses": parts,
        "results_by_partition": parts,
    }


def _indexes(topic: Any) -> Iterable[int]:
    for field in ("partition_data", "partitions", "partition_indexes"):
        for part in getattr(topic, field, ()):
            if isinstance(part, int):
                yield part
                continue
            for name in ("index", "partition_index", "partition"):
                if hasattr(part, name):
                    yield getattr(part, name)
                    break


def _partition(error: int, index: int) -> dict[str, Any]:
    return {
        "index": index,
        "partition_index": index,
        "partition": index,
        "error_code": error,
        "partition_error_code": error,
        "base_offset": -1,
        "record_errors": (),
        "high_watermark": -1,
        "aborted_transactions": None,
        "records": None,
        "committed_offset": -1,
        "metadata": "",
    }
