"""What the audit writes down of Kafka's administrative requests: the action, and on what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pentalog.protocols.kafka.messages import Call

_NAMES_MAX: Final = 20
_Names = Callable[[Any], Iterable[str]]


def _topics(body: Any) -> Iterable[str]:
    return [topic.name for topic in body.topics or ()]


def _deleted(body: Any) -> Iterable[str]:
    if hasattr(body, "topic_names"):
        return list(body.topic_names)
    return [topic.name or str(topic.topic_id) for topic in body.topics]


def _resources(body: Any) -> Iterable[str]:
    return [f"{each.resource_type}:{each.resource_name}" for each in body.resources]


def _entities(body: Any) -> Iterable[str]:
    return [
        ",".join(f"{each.entity_type}={each.entity_name}" for each in entry.entity)
        for entry in body.entries
    ]


ACTIONS: Final[Mapping[int, tuple[str, _Names]]] = {
    19: ("create topics", _topics),
    20: ("delete topics", _deleted),
    21: ("delete records", _topics),
    27: ("write markers", lambda body: [str(each.producer_id) for each in body.markers]),
    33: ("replace settings", _resources),
    37: ("create partitions", _topics),
    42: ("delete groups", lambda body: list(body.groups_names)),
    43: ("elect leaders", lambda body: [each.topic for each in body.topic_partitions or ()]),
    44: ("change settings", _resources),
    45: ("reassign partitions", _topics),
    47: ("delete offsets", lambda body: [body.group_id]),
    49: ("change quotas", _entities),
    57: ("change features", lambda body: [each.feature for each in body.feature_updates]),
}
"""Those about rules, users and tokens write their own lines, which tell more."""


def record(call: Call) -> None:
    """Write down that this was asked for; a denial has a line of its own."""
    action, names_of = ACTIONS[call.key]
    names = [str(name)[:260] for name in names_of(call.body)]
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    call.access.record(action, ",".join(names[:_NAMES_MAX]) + more, "asked")
