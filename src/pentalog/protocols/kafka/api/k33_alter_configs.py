"""AlterConfigs: replace all settings of a topic or group, or all changes of a broker's.

v1 throttles before it answers; v2 is flexible.
"""

from __future__ import annotations

from typing import Any

from pentalog.protocols.kafka import broker_configs, group_configs, user_keys
from pentalog.protocols.kafka.authorization import demand_source
from pentalog.protocols.kafka.configs import Resource, alter, check_alterable, missing_value
from pentalog.protocols.kafka.messages import Api, Call, Steps


def serve(call: Call) -> Steps[None]:
    return alter(call, _alter)


def _alter(call: Call, resource: Any) -> Steps[None]:
    yield from check_alterable(call, resource)
    if resource.resource_type == Resource.USER:
        raise user_keys.one_by_one()
    changes: dict[str, str | None] = {}

    def note(config: Any) -> None:
        if config.value is None:
            raise missing_value(config.name)
        changes[config.name] = config.value

    yield from call.each(resource.configs, note)
    name, dry_run = resource.resource_name, call.body.validate_only
    if resource.resource_type == Resource.BROKER:
        broker_configs.change(call, name, changes, replace=True, dry_run=dry_run)
    elif resource.resource_type == Resource.GROUP:
        group_configs.change(call, name, changes, replace=True, dry_run=dry_run)
    else:
        demand_source(call.access, changes)
        call.context.broker.topics.configure(name, changes, replace=True, dry_run=dry_run)


API = Api(33, "AlterConfigs", 0, 2, serve, finishes=True)
