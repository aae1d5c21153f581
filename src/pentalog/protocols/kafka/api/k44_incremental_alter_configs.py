"""IncrementalAlterConfigs: change some settings of a topic, group or broker and leave the others.

v1 is flexible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from typing import Any, Final

from pentalog.broker.port import Setting
from pentalog.model.errors import InvalidConfig
from pentalog.protocols.kafka import broker_configs, group_configs, user_keys
from pentalog.protocols.kafka.authorization import demand_source
from pentalog.protocols.kafka.configs import (
    Entry,
    Resource,
    alter,
    check_alterable,
    missing_value,
)
from pentalog.protocols.kafka.errors import ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call, Steps


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS: Final = frozenset(Operation)


def serve(call: Call) -> Steps[None]:
    return alter(call, _alter)


def _alter(call: Call, resource: Any) -> Steps[None]:
    yield from check_alterable(call, resource)
    name, dry_run = resource.resource_name, call.body.validate_only
    if resource.resource_type == Resource.BROKER:
        changes = yield from _changes(call, resource, partial(broker_configs.current, call, name))
        broker_configs.change(call, name, changes, replace=False, dry_run=dry_run)
    elif resource.resource_type == Resource.GROUP:
        changes = yield from _changes(call, resource, partial(_group_entries, call, name))
        group_configs.change(call, name, changes, replace=False, dry_run=dry_run)
    elif resource.resource_type == Resource.USER:
        changes = yield from _changes(call, resource, dict)
        yield from user_keys.change(call, name, changes, dry_run=dry_run)
    else:
        changes = yield from _changes(call, resource, partial(_topic_settings, call, name))
        demand_source(call.access, changes)
        call.context.broker.topics.configure(name, changes, dry_run=dry_run)


def _topic_settings(call: Call, topic: str) -> dict[str, Setting | Entry]:
    return {setting.name: setting for setting in call.context.broker.topics.settings(topic)}


def _group_entries(call: Call, group: str) -> dict[str, Setting | Entry]:
    return {entry.name: entry for entry in group_configs.group_entries(call, group)}


def _changes(
    call: Call, resource: Any, current: Callable[[], Mapping[str, Setting | Entry]]
) -> Steps[dict[str, str | None]]:
    """Return what each setting becomes, in steps.

    What depends on the value in force is found in the last one, with `current` as it is then: the
    caller changes it in the same step.
    """
    known = current()
    dependent: list[Any] = []
    changes: dict[str, str | None] = {}

    def note(config: Any) -> None:
        if config.name in known:
            dependent.append(config)
            return
        value = _changed(config, None)
        # As in Kafka, deleting the value of an unknown setting changes nothing.
        if value is not None or resource.resource_type != Resource.TOPIC:
            changes[config.name] = value

    yield from call.each(resource.configs, note)
    if dependent:
        known = current()
        changes.update({each.name: _changed(each, known.get(each.name)) for each in dependent})
    return changes


def _changed(config: Any, current: Setting | Entry | None) -> str | None:
    """The value a setting gets; None for the default."""
    if config.config_operation not in _OPERATIONS:
        raise Refused(
            ErrorCode.invalid_request,
            f"operation {config.config_operation} is unknown: set is 0, delete 1, append 2, "
            "subtract 3",
        )
    if config.config_operation == Operation.DELETE:
        return None
    if config.value is None:
        raise missing_value(config.name)
    value = str(config.value)
    if config.config_operation == Operation.SET or current is None:
        return value
    if current.kind != "list":
        raise InvalidConfig(
            f"{config.name} is no list, so nothing can be appended or subtracted: set it instead"
        )
    kept, given = _parts(current.value), _parts(value)
    if config.config_operation == Operation.APPEND:
        return ",".join(dict.fromkeys(kept + given))
    removed = set(given)
    return ",".join(part for part in kept if part not in removed)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


API = Api(44, "IncrementalAlterConfigs", 0, 1, serve, finishes=True)
