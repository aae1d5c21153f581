"""What has settings: topics, and those of them that a list of all topics does not tell of.

A pentalog broker has topics under names that Kafka cannot give, and leaves them out of that list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

DESCRIBE_CONFIGS: Final = 32
_LIST: Final = 74
TOPIC: Final = 2


def unlisted(ask: Callable[[int, Mapping[str, Any]], Any], listed: Collection[str]) -> list[str]:
    """Names of topics beside those listed; none if the broker does not tell the one who asks."""
    answer = ask(_LIST, {"resource_types": (TOPIC,)})
    if answer.error_code:
        return []
    return sorted({found.resource_name for found in answer.config_resources}.difference(listed))


def settings_of(topic: str) -> dict[str, Any]:
    """What asks for all settings of a topic, by DESCRIBE_CONFIGS."""
    resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
    return {
        "resources": [resource],
        "include_synonyms": False,
        "include_documentation": False,
    }
