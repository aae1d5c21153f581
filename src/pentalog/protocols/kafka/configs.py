"""Settings as Kafka's clients see them: resources, sources, synonyms, types.

The broker's settings of topics carry Kafka's names already; here are the names the same settings
have on a Kafka broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from pentalog.broker.operation import Layer
from pentalog.broker.port import Setting
from pentalog.broker.security import Kind, Operation
from pentalog.protocols.kafka.administration import answer_settled, error_fields, find_repeated
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import Call, Steps


class Resource(IntEnum):
    TOPIC = 2
    BROKER = 4
    GROUP = 32
    USER = 64
    """Ours: a user's keys."""


_RESOURCES: Final = frozenset(Resource)


class Source(IntEnum):
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


_ABOUT_USERS: Final = {
    Operation.DESCRIBE_SETTINGS: Operation.DESCRIBE,
    Operation.ALTER_SETTINGS: Operation.ALTER,
}
"""What is needed of the cluster: the same as for their passwords."""

SOURCES: Final = {
    Layer.BROKER: Source.DYNAMIC_BROKER,
    Layer.CLUSTER: Source.DYNAMIC_DEFAULT_BROKER,
    Layer.GIVEN: Source.STATIC_BROKER,
    Layer.DEFAULT: Source.DEFAULT,
}

TYPES: Final = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7}

SYNONYMS: Final = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "derived.from": "log.derived.from",
    "derived.parameters": "log.derived.parameters",
    "derived.smartmodule": "log.derived.smartmodule",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "subscription.attempts.max": "log.subscription.attempts.max",
    "subscription.backlog.max": "log.subscription.backlog.max",
    "subscription.lease.ms": "log.subscription.lease.ms",
    "subscription.ttl.ms": "log.subscription.ttl.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Topic setting to the broker setting that is its default, where Kafka has one."""


class Entry(NamedTuple):
    """One setting of a resource."""

    name: str
    value: str
    source: Source
    kind: str
    documentation: str
    synonyms: tuple[tuple[str, str, Source], ...]
    read_only: bool = False

    def fields(self, *, synonyms: bool = True, documentation: bool = False) -> dict[str, Any]:
        given = self.synonyms if synonyms else ()
        return {
            "name": self.name,
            "value": self.value,
            "read_only": self.read_only,
            "config_source": int(self.source),
            "is_sensitive": False,
            "synonyms": [
                {"name": name, "value": value, "source": int(source)}
                for name, value, source in given
            ],
            "config_type": TYPES[self.kind],
            "documentation": self.documentation if documentation else None,
        }


def topic_entries(call: Call, settings: Sequence[Setting]) -> list[Entry]:
    """A topic's settings, each with where its value comes from."""
    return [_topic_entry(call, setting) for setting in settings]


def _topic_entry(call: Call, setting: Setting) -> Entry:
    name = SYNONYMS.get(setting.name)
    synonyms = synonyms_of(call, name, setting.name) if name else ()
    if setting.overridden:
        synonyms = ((setting.name, setting.value, Source.DYNAMIC_TOPIC), *synonyms)
    return Entry(
        name=setting.name,
        value=setting.value,
        source=synonyms[0][2] if synonyms else Source.DEFAULT,
        kind=setting.kind,
        documentation=setting.documentation,
        synonyms=synonyms,
    )


def synonyms_of(call: Call, name: str, setting: str) -> tuple[tuple[str, str, Source], ...]:
    """Every value a setting of the broker has, the one in force first."""
    values = call.context.broker.settings.values(setting)
    return tuple((name, value.text, SOURCES[value.layer]) for value in values)


def check_alterable(call: Call, resource: Any) -> Steps[None]:
    """Raise unless settings of this kind of resource can be changed, each named once."""
    if resource.resource_type not in _RESOURCES:
        raise Refused(ErrorCode.invalid_request, unknown_resource(resource.resource_type))
    for key in (yield from find_repeated(call, (config.name for config in resource.configs))):
        raise Refused(ErrorCode.invalid_request, f"setting {key!r} is named twice: name it once")


def demand_settings(call: Call, resource: Any, operation: Operation) -> None:
    """Raise unless the settings of this resource may be seen, or changed."""
    kind, name = resource.resource_type, resource.resource_name
    if kind == Resource.TOPIC:
        demand(call.access, operation, Kind.TOPIC, name)
    elif kind == Resource.GROUP:
        demand(call.access, operation, Kind.GROUP, name)
    elif kind == Resource.USER:
        demand(call.access, _ABOUT_USERS[operation], Kind.CLUSTER)
    else:
        demand(call.access, operation, Kind.CLUSTER)


def alter(call: Call, alter_one: Callable[[Call, Any], Steps[None]]) -> Steps[None]:
    """Change each resource of a request by `alter_one` and answer when that is on the disk."""
    resources = call.body.resources
    names = ((each.resource_type, each.resource_name) for each in resources)
    twice = yield from find_repeated(call, names)
    results: list[dict[str, Any]] = []
    for resource in resources:
        flaw: Exception | None = None
        try:
            if (resource.resource_type, resource.resource_name) in twice:
                raise Refused(ErrorCode.invalid_request, "a resource is named twice: name it once")
            demand_settings(call, resource, Operation.ALTER_SETTINGS)
            yield from alter_one(call, resource)
        except REFUSALS as refusal:
            flaw = refusal
        results.append(
            {
                **error_fields(flaw),
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
        yield None
    yield from answer_settled(
        call, {"responses": results}, results, changed=not call.body.validate_only
    )


def unknown_resource(kind: int) -> str:
    return (
        f"resources of type {kind} have no settings here: ask for topics (2), brokers (4), "
        "groups (32) or users (64)"
    )


def missing_value(name: str) -> Refused:
    return Refused(
        ErrorCode.invalid_request, f"setting {name[:100]!r} has no value: give one, or delete it"
    )
