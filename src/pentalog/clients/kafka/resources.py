"""What has settings: where the topics are found that a list of all topics does not tell of.

A pentalog broker has topics under names that Kafka cannot give, and leaves them out of that list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

_LIST: Final = 74
_TOPICS: Final = 2


def unlisted(ask: Callable[[int, Mapping[str, Any]], Any], listed: Collection[str]) -> list[str]:
    """Names of topics beside those listed; none if the broker does not tell the one who asks."""
    answer = ask(_LIST, {"resource_types": (_TOPICS,)})
    if answer.error_code:
        return []
    return sorted({found.resource_name for found in answer.config_resources}.difference(listed))
