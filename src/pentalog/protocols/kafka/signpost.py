"""Kafka's port of a gateway: it tells clients where the cluster is, and serves nothing else.

A client that begins here is told the cluster's own nodes, leaders and coordinators, and goes on to
them.  Requests for leaders and coordinators are in the list of what is served, and answered as a
node does that is neither: some clients take the list of the first node for that of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from typing import Any, ClassVar, Final, TypeAlias
from uuid import UUID

from pentalog.broker.security import Kind, Operation
from pentalog.broker.signpost import Said, Signpost
from pentalog.kernels import Frames, ProduceRun
from pentalog.model.errors import BrokerError
from pentalog.model.kafka_names import is_carried
from pentalog.model.later import Later
from pentalog.protocols.kafka.administration import OPERATIONS_NOT_ASKED
from pentalog.protocols.kafka.api import (
    APIS,
    k03_metadata,
    k10_find_coordinator,
    k17_sasl_handshake,
    k18_api_versions,
    k22_init_producer_id,
    k36_sasl_authenticate,
)
from pentalog.protocols.kafka.authorization import refusal_of
from pentalog.protocols.kafka.codec import Made
from pentalog.protocols.kafka.errors import ErrorCode, code_of
from pentalog.protocols.kafka.messages import Api, Call, Steps
from pentalog.protocols.kafka.referrals import refer_to_coordinator, refer_to_leaders
from pentalog.protocols.kafka.session import KafkaSession

Wanted: TypeAlias = tuple[str | None, UUID | None]
"""A topic by its name or by its id."""

_FOR_LEADERS: Final = (0, 1, 2, 23)
_FOR_COORDINATORS: Final = (8, 9, 11, 12, 13, 14, 24, 25, 26, 28, 68)
_LENGTH_BYTES: Final = 4
_NAMELESS_FROM: Final = 12
_KEYS_MAX: Final = 100
"""The cluster is asked for the coordinator of each by itself."""
_KINDS: Final = {0: Kind.GROUP, 1: Kind.TRANSACTION}


def _signpost(call: Call) -> Signpost:
    signpost = call.context.broker.signpost
    assert signpost is not None, "only gateways have such a port"
    return signpost


def _tell_versions(call: Call) -> None:
    if not k18_api_versions.well_named(call):
        call.answer({"error_code": int(ErrorCode.invalid_request), "api_keys": []})
        return
    offered: Later[Any] = _signpost(call).versions()

    def go_on(kept: Call) -> None:
        try:
            kept.answer({"api_keys": _common(offered.value)})
        except BrokerError as refusal:
            kept.answer({"error_code": code_of(refusal), "api_keys": []})

    call.when_all([offered], go_on)


def _common(offered: Mapping[int, tuple[int, int]]) -> list[dict[str, Any]]:
    """What both this port and the cluster's nodes know."""
    found = []
    for key, api in sorted(TABLE.items()):
        least, most = api.version_min, api.version_max
        if key not in _OUR_OWN:
            theirs_least, theirs_most = offered.get(key, (0, -1))
            least, most = max(least, theirs_least), min(most, theirs_most)
        if least <= most:
            found.append({"api_key": key, "min_version": least, "max_version": most})
    return found


def _tell_metadata(call: Call) -> Steps[None]:
    wanted = _wanted(call)
    refused: list[dict[str, Any]] = []
    asked: list[Wanted] | None = None
    if wanted is not None:
        asked = []
        flaws = yield from call.each(wanted, lambda topic: _flaw(call, topic))
        for topic, error in zip(wanted, flaws, strict=True):
            if error:
                refused.append(_missing(call, topic, error))
            else:
                asked.append(topic)
    create = bool(call.field("allow_auto_topic_creation", True))
    if call.access.guarded:
        create = create and call.access.could(Operation.CREATE, Kind.CLUSTER)
    said: Later[Any] = _signpost(call).metadata(asked, create=create)
    yield said
    try:
        found = said.value
    except BrokerError:
        # There is no place for that in the answer; clients ask the next gateway.
        call.context.metrics.request_errors += 1
        call.line.send()
        call.line.hang_up()
        return
    seen = yield from call.each(found["topics"], lambda topic: _may_see(call, topic))
    topics = [*map(_topic, compress(found["topics"], seen)), *refused]
    yield from call.reply(
        {**found, "topics": topics, "cluster_authorized_operations": OPERATIONS_NOT_ASKED}
    )


def _wanted(call: Call) -> list[Wanted] | None:
    topics = call.body.topics
    if topics is None or (call.version == 0 and not topics):
        return None
    ids = [getattr(topic, "topic_id", None) for topic in topics]
    # As in Kafka, a topic that is named again is answered once.
    return list(
        dict.fromkeys(
            (topic.name if topic_id is None else None, topic_id)
            for topic, topic_id in zip(topics, ids, strict=True)
        )
    )


def _flaw(call: Call, topic: Wanted) -> ErrorCode:
    """Why the cluster is not asked for a topic."""
    name, topic_id = topic
    if name is None:
        return ErrorCode.none if topic_id is not None else ErrorCode.invalid_request
    if not is_carried(name):
        return ErrorCode.invalid_topic_exception
    if not call.access.allows(Operation.DESCRIBE, Kind.TOPIC, name):
        return ErrorCode.topic_authorization_failed
    return ErrorCode.none


def _missing(call: Call, topic: Wanted, error: ErrorCode) -> dict[str, Any]:
    name, topic_id = topic
    told = "" if name is None and call.version < _NAMELESS_FROM else name
    return {"error_code": int(error), "name": told, "topic_id": topic_id, "partitions": ()}


def _topic(said: Said) -> dict[str, Any]:
    return {
        **said,
        "partitions": Made(said["partitions"], lambda part: {"offline_replicas": (), **part}),
        "topic_authorized_operations": OPERATIONS_NOT_ASKED,
    }


def _may_see(call: Call, topic: Said) -> bool:
    name = topic["name"]
    return name is None or call.access.allows(Operation.DESCRIBE, Kind.TOPIC, name)


def _tell_coordinator(call: Call) -> None:
    kind = call.field("key_type", 0)
    keys = [call.body.key] if call.version < 4 else list(call.body.coordinator_keys)
    asked: dict[str, Later[Any]] = {}
    for key in keys[:_KEYS_MAX]:
        if key not in asked and not _coordinator_flaw(call, kind, key):
            asked[key] = _signpost(call).coordinator(kind, key)

    def go_on(kept: Call) -> None:
        found = [_coordinator(kept, kind, key, asked.get(key)) for key in keys]
        kept.answer(found[0] if kept.version < 4 else {"coordinators": found})

    call.when_all(asked.values(), go_on)


def _coordinator_flaw(call: Call, kind: int, key: str) -> int:
    if kind not in _KINDS or not is_carried(key):
        return int(ErrorCode.invalid_request)
    return refusal_of(call.access, Operation.DESCRIBE, _KINDS[kind], key)


def _coordinator(call: Call, kind: int, key: str, said: Later[Said] | None) -> dict[str, Any]:
    nobody = {"key": key, "node_id": -1, "host": "", "port": -1}
    if said is None:
        error = _coordinator_flaw(call, kind, key) or int(ErrorCode.invalid_request)
        text = f"accepted are up to {_KEYS_MAX} groups or transactional ids you may describe"
        return {**nobody, "error_code": error, "error_message": text}
    try:
        return {"error_message": None, **said.value, "key": key}
    except BrokerError as refusal:
        error = int(ErrorCode.coordinator_not_available)
        return {**nobody, "error_code": error, "error_message": str(refusal)}


def _identify(call: Call) -> Steps[None] | None:
    """Any node may; those who have transactions must ask their coordinator."""
    if call.body.transactional_id is not None:
        return refer_to_coordinator(call)
    k22_init_producer_id.serve(call)
    return None


_OUR_OWN: Final = frozenset(
    api.API.key for api in (k17_sasl_handshake, k18_api_versions, k36_sasl_authenticate)
)
"""What clients ask of this port whatever the cluster knows."""
TABLE: Final[Mapping[int, Api]] = {
    **{
        key: replace(APIS[key], serve=refer_to_leaders, decode=None, decode_steps=None)
        for key in _FOR_LEADERS
    },
    **{
        key: replace(APIS[key], serve=refer_to_coordinator, decode=None, decode_steps=None)
        for key in _FOR_COORDINATORS
    },
    3: replace(k03_metadata.API, serve=_tell_metadata),
    10: replace(k10_find_coordinator.API, serve=_tell_coordinator),
    17: k17_sasl_handshake.API,
    18: replace(k18_api_versions.API, serve=_tell_versions),
    22: replace(k22_init_producer_id.API, serve=_identify),
    36: k36_sasl_authenticate.API,
}


class SignpostSession(KafkaSession):
    """One connection of a Kafka client to a gateway."""

    apis: ClassVar[Mapping[int, Api]] = TABLE

    def _split(self, data: memoryview, start: int) -> Frames:
        """Every frame is served by itself: there are no runs of Produce."""
        items: list[ProduceRun | tuple[int, int]] = []
        used, wanted, refused = start, 0, 0
        while len(data) - used >= _LENGTH_BYTES:
            size = int.from_bytes(data[used : used + _LENGTH_BYTES], "big", signed=True)
            if not 0 <= size <= self._context.config.frame_bytes_max:
                refused = size
                break
            if len(data) - used - _LENGTH_BYTES < size:
                wanted = size + _LENGTH_BYTES
                break
            items.append((used + _LENGTH_BYTES, used + _LENGTH_BYTES + size))
            used += _LENGTH_BYTES + size
        return Frames(items, used, wanted, refused)
