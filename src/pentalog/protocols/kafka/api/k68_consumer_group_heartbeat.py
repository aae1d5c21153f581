"""ConsumerGroupHeartbeat: join, stay in and leave a group that the broker plans."""

from __future__ import annotations

from typing import Any, Final

from pentalog.broker.port import Beat, Beaten
from pentalog.broker.security import Kind, Operation
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.codec import milliseconds
from pentalog.protocols.kafka.coordination import (
    TOPICS_MAX,
    answer_when_there,
    client_host,
    group_code,
)
from pentalog.protocols.kafka.errors import ErrorCode, Refused, code_of
from pentalog.protocols.kafka.messages import Api, Call

_JOIN: Final = 0
_AWAY: Final = -2


def serve(call: Call) -> None:
    body = call.body
    try:
        demand(call.access, Operation.READ, Kind.GROUP, body.group_id)
        _check(call, body)
        for topic in dict.fromkeys(body.subscribed_topic_names or ()):
            demand(call.access, Operation.DESCRIBE, Kind.TOPIC, topic)
        later = call.context.broker.consumers.beat(body.group_id, _beat(call, body))
    except (BrokerError, Refused) as refusal:
        call.answer(_refused(refusal))
        return
    answer_when_there(call, later, _fields)


def _beat(call: Call, body: Any) -> Beat:
    timeout_ms = milliseconds(body.rebalance_timeout)
    topics = body.subscribed_topic_names
    owned = body.topic_partitions
    return Beat(
        member_id=body.member_id,
        epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        client_id=call.client_id or "",
        client_host=client_host(call),
        rebalance_timeout_ms=None if timeout_ms == -1 else timeout_ms,
        topics=None if topics is None else frozenset(topics),
        pattern=call.field("subscribed_topic_regex", None),
        sight=call.access.sight,
        assignor=body.server_assignor,
        owner=call.access.owner,
        owned=None
        if owned is None
        else {entry.topic_id: frozenset(entry.partitions) for entry in owned},
    )


def _check(call: Call, body: Any) -> None:
    """What a request must hold before the group is asked."""
    epoch: int = body.member_epoch
    if not body.group_id:
        raise _invalid("an empty group id; give one")
    if not body.member_id and (call.version >= 1 or epoch != _JOIN):
        raise _invalid("an empty member id; make one up, and keep it")
    if len(body.subscribed_topic_names or ()) > TOPICS_MAX:
        raise _invalid(
            f"{len(body.subscribed_topic_names)} topics; accepted are {TOPICS_MAX}: use a pattern"
        )
    for name in ("instance_id", "rack_id"):
        if getattr(body, name) == "":
            raise _invalid(f"an empty {name}; leave it out, or give one")
    if epoch < _AWAY:
        raise _invalid(f"member epoch {epoch}; accepted are -2 and higher")
    if epoch == _AWAY and body.instance_id is None:
        raise _invalid("a member without an instance id leaves for a while: leave with epoch -1")
    if epoch != _JOIN:
        return
    if milliseconds(body.rebalance_timeout) == -1:
        raise _invalid("no rebalance timeout; whoever joins must say how long it may take")
    if body.topic_partitions is None or body.topic_partitions:
        raise _invalid("a member that joins owns partitions; it must give an empty list of them")
    pattern = call.field("subscribed_topic_regex", None)
    if body.subscribed_topic_names is None and pattern is None:
        raise _invalid("no subscription; whoever joins must name topics or a pattern")


def _invalid(text: str) -> Refused:
    return Refused(ErrorCode.invalid_request, text)


def _fields(later: Later[Beaten]) -> dict[str, Any]:
    try:
        beaten = later.value
    except BrokerError as refusal:
        return _refused(refusal)
    share = beaten.share
    return {
        "error_code": 0,
        "member_id": beaten.member_id,
        "member_epoch": beaten.epoch,
        "heartbeat_interval": beaten.interval_ms,
        "assignment": None
        if share is None
        else {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": sorted(indexes)}
                for topic_id, indexes in share.items()
            ]
        },
    }


def _refused(refusal: BrokerError | Refused) -> dict[str, Any]:
    code = code_of(refusal) if isinstance(refusal, Refused) else group_code(refusal)
    return {
        "error_code": code,
        "error_message": str(refusal),
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval": 0,
        "assignment": None,
    }


API = Api(68, "ConsumerGroupHeartbeat", 0, 1, serve)
