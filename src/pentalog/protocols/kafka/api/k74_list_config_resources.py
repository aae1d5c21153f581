"""ListConfigResources: what has settings, by kind.

v0 lists client metrics only, of which there are none here; v1 asks for kinds, none meaning all.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pentalog.broker.security import Kind, Operation
from pentalog.model.kafka_names import is_carried
from pentalog.protocols.kafka.authorization import refusal_of
from pentalog.protocols.kafka.codec import Made
from pentalog.protocols.kafka.configs import Resource
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Api, Call, Steps

_LOGGERS: Final = 8
_METRICS: Final = 16
_KINDS: Final = (*Resource, _LOGGERS, _METRICS)
"""Brokers have no loggers that can be set here, and nothing collects metrics of clients."""


def serve(call: Call) -> Steps[None]:
    denied = refusal_of(call.access, Operation.DESCRIBE_SETTINGS, Kind.CLUSTER)
    if denied:
        call.answer({"error_code": denied, "config_resources": []})
        return
    kinds = tuple(call.field("resource_types", ())) if call.version >= 1 else (_METRICS,)
    if not set(kinds) <= set(_KINDS):
        call.answer({"error_code": int(ErrorCode.unsupported_version), "config_resources": []})
        return
    found = [
        (name, int(kind)) for kind in dict.fromkeys(kinds or _KINDS) for name in _names(call, kind)
    ]
    resources = Made(found, lambda one: {"resource_name": one[0], "resource_type": one[1]})
    yield from call.reply({"error_code": 0, "config_resources": resources})


def _names(call: Call, kind: int) -> Collection[str]:
    broker = call.context.broker
    if kind == Resource.TOPIC:
        every = broker.topics.all(internal=True)
        return [topic.name for topic in every if is_carried(topic.name)]
    if kind == Resource.BROKER:
        return [str(call.context.config.node_id)]
    if kind == Resource.GROUP:
        return sorted(broker.groups.settings.groups())
    return ()


API = Api(74, "ListConfigResources", 0, 1, serve)
