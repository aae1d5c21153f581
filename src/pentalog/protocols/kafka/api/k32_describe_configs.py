"""DescribeConfigs: the settings of topics, groups and this broker, and where each value comes from.

v1 is the first that Kafka 4 serves; v2 throttles before it answers.
v3 adds types and documentation; v4 is flexible.
"""

from __future__ import annotations

from typing import Any

from pentalog.broker.security import Operation
from pentalog.model.errors import InvalidTopic, TopicNotFound
from pentalog.protocols.kafka import user_keys
from pentalog.protocols.kafka.administration import error_fields
from pentalog.protocols.kafka.broker_configs import broker_entries
from pentalog.protocols.kafka.codec import Made
from pentalog.protocols.kafka.configs import (
    Entry,
    Resource,
    demand_settings,
    topic_entries,
    unknown_resource,
)
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.group_configs import group_entries
from pentalog.protocols.kafka.messages import Api, Call, Steps
from pentalog.protocols.kafka.names import kafka_name_flaw


def serve(call: Call) -> Steps[None]:
    # A resource that is asked for again in the same way is answered once.
    asked = {
        (each.resource_type, each.resource_name, each.configuration_keys): each
        for each in call.body.resources
    }
    described = Made(list(asked.values()), lambda each: _describe(call, each), at_once=1)
    return call.reply({"results": described})


def _describe(call: Call, resource: Any) -> dict[str, Any]:
    flaw: Exception | None = None
    entries: list[Entry] = []
    try:
        demand_settings(call, resource, Operation.DESCRIBE_SETTINGS)
        entries = _entries(call, resource)
    except REFUSALS as refusal:
        flaw = refusal
    wanted = frozenset(resource.configuration_keys or ())
    synonyms = call.field("include_synonyms", False)
    documentation = call.field("include_documentation", False)
    return {
        **error_fields(flaw),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [
            entry.fields(synonyms=synonyms, documentation=documentation)
            for entry in entries
            if not wanted or entry.name in wanted
        ],
    }


def _entries(call: Call, resource: Any) -> list[Entry]:
    if resource.resource_type == Resource.TOPIC:
        return _topic(call, resource.resource_name)
    if resource.resource_type == Resource.BROKER:
        return broker_entries(call, resource.resource_name)
    if resource.resource_type == Resource.GROUP:
        return group_entries(call, resource.resource_name)
    if resource.resource_type == Resource.USER:
        return user_keys.entries(call, resource.resource_name)
    raise Refused(ErrorCode.invalid_request, unknown_resource(resource.resource_type))


def _topic(call: Call, name: str) -> list[Entry]:
    try:
        settings = call.context.broker.topics.settings(name)
    except TopicNotFound:
        flaw = kafka_name_flaw(name)
        if flaw is None:
            raise
        raise InvalidTopic(flaw) from None
    return topic_entries(call, settings)


API = Api(32, "DescribeConfigs", 1, 4, serve)
