"""What the audit writes down of Kafka's administrative requests: what, on what, how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from pentalog.protocols.kafka.codec import Fields
from pentalog.protocols.kafka.errors import ErrorCode
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


_LABELS: Final = ("name", "topic", "resource_name", "group_id", "feature", "producer_id")
"""Fields of answers that say what a part of them is about."""


def watch(call: Call) -> None:
    """Write down what was asked for and what became of it, as soon as that is answered."""
    call.answered = lambda fields: record(call, outcome(call, fields))


def record(call: Call, end: str) -> None:
    call.answered = None
    action, names_of = ACTIONS[call.key]
    call.access.record(action, _listed(str(name)[:260] for name in names_of(call.body)), end)


def outcome(call: Call, fields: Fields) -> str:
    """What an answer says: `done`, `refused`, or what of it was not done, and why."""
    codes = list(_codes(fields, ""))
    refused = {(label, code): None for label, code in codes if code}
    done = "checked" if call.field("validate_only", False) else "done"
    if not refused:
        return done
    if len({code for _, code in codes}) == 1:
        return f"refused: {_word(codes[0][1])}"
    told = _listed(f"{label} {_word(code)}".strip() for label, code in refused)
    all_refused = all(code for _, code in codes)
    return f"refused: {told}" if all_refused else f"{done}, except {told}"


def _codes(part: Any, label: str) -> Iterator[tuple[str, int]]:
    """The error codes of an answer's parts, each with what it is about."""
    if isinstance(part, Mapping):
        label = next((str(part[each])[:260] for each in _LABELS if part.get(each)), label)
        inner = [found for value in part.values() for found in _codes(value, label)]
        code = part.get("error_code")
        if code or (code is not None and not inner):
            yield label, int(code)
        yield from inner
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _codes(each, label)


def _word(code: int) -> str:
    return ErrorCode(code).name


def _listed(texts: Iterable[str]) -> str:
    every = list(texts)
    more = f" and {len(every) - _NAMES_MAX} more" if len(every) > _NAMES_MAX else ""
    return ",".join(every[:_NAMES_MAX]) + more
