"""The broker's own settings under the names Kafka's tools look for.

Where Kafka has no counterpart, a setting is listed as `pentalog.` and its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pentalog.broker.operation import Layer
from pentalog.broker.port import Setting
from pentalog.config import SETTINGS
from pentalog.model.errors import InvalidConfig
from pentalog.protocols.kafka.configs import SOURCES, SYNONYMS, Entry, Source, synonyms_of
from pentalog.protocols.kafka.errors import ErrorCode, Refused
from pentalog.protocols.kafka.messages import Call

_COUNTERPARTS: Final = {
    "auto.create.topics.enable": "auto_create_topics",
    "broker.id": "node_id",
    "connections.max.idle.ms": "connections_max_idle_ms",
    "group.consumer.heartbeat.interval.ms": "consumer_heartbeat_interval_ms",
    "group.consumer.max.heartbeat.interval.ms": "consumer_heartbeat_interval_ms_max",
    "group.consumer.max.session.timeout.ms": "consumer_session_timeout_ms_max",
    "group.consumer.min.heartbeat.interval.ms": "consumer_heartbeat_interval_ms_min",
    "group.consumer.min.session.timeout.ms": "consumer_session_timeout_ms_min",
    "group.consumer.session.timeout.ms": "consumer_session_timeout_ms",
    "group.initial.rebalance.delay.ms": "group_initial_rebalance_delay_ms",
    "group.max.session.timeout.ms": "group_session_timeout_ms_max",
    "group.max.size": "group_size_max",
    "group.min.session.timeout.ms": "group_session_timeout_ms_min",
    "log.dirs": "data",
    "log.retention.check.interval.ms": "retention_interval_ms",
    "max.connections": "connections_max",
    "max.connections.per.ip": "connections_per_address_max",
    "node.id": "node_id",
    "num.partitions": "default_partitions",
    "offsets.retention.minutes": "offsets_retention_minutes",
    "producer.id.expiration.ms": "producer_expiration_ms",
    "socket.request.max.bytes": "frame_bytes_max",
    "transaction.max.timeout.ms": "transaction_timeout_ms_max",
    "transactional.id.expiration.ms": "transactional_id_expiration_ms",
}
_SHOWN_OTHERWISE: Final = "topic_defaults"
OWN: Final[Mapping[str, str]] = {
    **_COUNTERPARTS,
    **{
        f"pentalog.{field.replace('_', '.')}": field
        for field in SETTINGS
        if field not in _COUNTERPARTS.values() and field != _SHOWN_OTHERWISE
    },
}
"""Kafka's name to ours."""
_TOPIC_DEFAULTS: Final = {name: setting for setting, name in SYNONYMS.items()}
_FACTS: Final = (
    ("default.replication.factor", "1", "int", "Every partition has one copy."),
    ("delete.topic.enable", "true", "boolean", "Topics can be deleted."),
    ("quota.window.num", "11", "int", "Samples a client's rate is measured over."),
    ("quota.window.size.seconds", "1", "int", "Time one such sample spans."),
)
_INT_MAX: Final = (1 << 31) - 1


def scope(call: Call, name: str) -> Layer:
    """Which settings a resource's name means: those of this broker, or of all (no name)."""
    node_id = call.context.config.node_id
    if not name:
        return Layer.CLUSTER
    if name != str(node_id):
        raise Refused(
            ErrorCode.invalid_request,
            f"there is no broker {name[:100]!r}: the only one is {node_id}",
        )
    return Layer.BROKER


def broker_entries(call: Call, resource: str) -> list[Entry]:
    """The settings of this broker, or what was changed for all of them."""
    if scope(call, resource) is Layer.CLUSTER:
        return _cluster_entries(call)
    entries = [_fact_entry(*fact) for fact in _FACTS]
    entries += [_own_entry(call, name) for name in OWN]
    entries += [_topic_entry(call, setting) for setting in _topic_defaults(call)]
    return sorted(entries)


def _fact_entry(name: str, text: str, kind: str, documentation: str) -> Entry:
    synonym = (name, text, Source.DEFAULT)
    return Entry(name, text, Source.DEFAULT, kind, documentation, (synonym,), read_only=True)


def _own_entry(call: Call, name: str) -> Entry:
    setting = OWN[name]
    synonyms = synonyms_of(call, name, setting)
    return Entry(
        name=name,
        value=synonyms[0][1],
        source=synonyms[0][2],
        kind=_kind(setting),
        documentation=SETTINGS[setting].metadata["text"],
        synonyms=synonyms,
        read_only=not call.context.broker.settings.changeable(setting),
    )


def _topic_entry(call: Call, setting: Setting) -> Entry:
    name = SYNONYMS[setting.name]
    synonyms = synonyms_of(call, name, setting.name)
    return Entry(
        name=name,
        value=synonyms[0][1],
        source=synonyms[0][2],
        kind=setting.kind,
        documentation=setting.documentation,
        synonyms=synonyms,
    )


def _cluster_entries(call: Call) -> list[Entry]:
    changed = call.context.broker.settings.changed(Layer.CLUSTER)
    source = SOURCES[Layer.CLUSTER]
    return [
        entry._replace(
            value=changed[setting], source=source, synonyms=((name, changed[setting], source),)
        )
        for name, setting, entry in _changeable_entries(call)
        if setting in changed
    ]


def _changeable_entries(call: Call) -> list[tuple[str, str, Entry]]:
    found = [(name, setting, _own_entry(call, name)) for name, setting in OWN.items()]
    found += [
        (SYNONYMS[default.name], default.name, _topic_entry(call, default))
        for default in _topic_defaults(call)
    ]
    return found


def _topic_defaults(call: Call) -> list[Setting]:
    return [each for each in call.context.broker.topics.defaults() if each.name in SYNONYMS]


def _kind(setting: str) -> str:
    field = SETTINGS[setting]
    if isinstance(field.default, bool):
        return "boolean"
    if isinstance(field.default, int):
        return "int" if field.metadata["most"] <= _INT_MAX else "long"
    return "list" if isinstance(field.default, tuple) else "string"


def current(call: Call, resource: str) -> dict[str, Entry]:
    """Every setting that could be changed, by name."""
    scope(call, resource)
    return {name: entry for name, _, entry in _changeable_entries(call)}


def change(
    call: Call, resource: str, changes: Mapping[str, str | None], *, replace: bool, dry_run: bool
) -> None:
    """Change settings by Kafka's names (None: take the change back)."""
    layer = scope(call, resource)
    translated: dict[str, str | None] = {}
    for name, text in changes.items():
        setting = OWN.get(name) or _TOPIC_DEFAULTS.get(name)
        if setting is None and text is None:
            continue
        if setting is None or not call.context.broker.settings.changeable(setting):
            raise _not_dynamic(name, known=setting is not None or _is_fact(name))
        translated[setting] = text
    try:
        call.context.broker.settings.change(layer, translated, replace=replace, dry_run=dry_run)
    except InvalidConfig as refusal:
        # Kafka's answer for brokers, where topics get INVALID_CONFIG.
        raise Refused(ErrorCode.invalid_request, str(refusal)) from None


def _is_fact(name: str) -> bool:
    return any(name == fact[0] for fact in _FACTS)


def _not_dynamic(name: str, *, known: bool) -> Refused:
    if known:
        text = (
            f"{name} cannot be changed while the broker runs: change its configuration and "
            "restart it"
        )
    else:
        text = f"there is no broker setting {name[:100]!r}: describe the broker to list them"
    return Refused(ErrorCode.invalid_request, text)
