"""IncrementalAlterConfigs: change some settings of a topic, group or broker and leave the others.

v1 is flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

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


def serve(call: Call) -> Steps[None]:
    return alter(call, _alter)


def _alter(call: Call, resource: Any) -> None:
    check_alterable(resource, (config.name for config in resource.configs))
    name, dry_run = resource.resource_name, call.body.validate_only
    current: Mapping[str, Setting | Entry]
    if resource.resource_type == Resource.BROKER:
        current = broker_configs.current(call, name)
        changes = _changes(resource.configs, current)
        broker_configs.change(call, name, changes, replace=False, dry_run=dry_run)
    elif resource.resource_type == Resource.GROUP:
        current = {entry.name: entry for entry in group_configs.group_entries(call, name)}
        changes = _changes(resource.configs, current)
        group_configs.change(call, name, changes, replace=False, dry_run=dry_run)
    elif resource.resource_type == Resource.USER:
        user_keys.change(call, name, _changes(resource.configs, {}), dry_run=dry_run)
    else:
        topics = call.context.broker.topics
        current = {setting.name: setting for setting in topics.settings(name)}
        # As in Kafka there is nothing to take back of a setting that nobody knows.
        changes = {
            each: value
            for each, value in _changes(resource.configs, current).items()
            if value is not None or each in current
        }
        demand_source(call.access, changes)
        topics.configure(name, changes, dry_run=dry_run)


def _changes(configs: Any, current: Mapping[str, Setting | Entry]) -> dict[str, str | None]:
    return {config.name: _changed(config, current.get(config.name)) for config in configs}


def _changed(config: Any, current: Setting | Entry | None) -> str | None:
    """The value a setting gets; None for the default."""
    if config.config_operation not in tuple(Operation):
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
