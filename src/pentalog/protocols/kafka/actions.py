"""What the audit writes down of Kafka's administrative requests: what, on what, how it ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from pentalog.protocols.kafka.codec import Fields
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.messages import Call

_NAMES_MAX: Final = 20
_CHARACTERS_MAX: Final = 300
"""Of one name, with the word for its error."""
_PARTS_MAX: Final = 3
"""Of one entity with a quota: a user, a client, an address."""
_CODES_PER_STEP: Final = 64
_Names = Callable[[Any], Iterable[str]]


def _topics(body: Any) -> Iterable[str]:
    return (topic.name for topic in body.topics or ())


def _deleted(body: Any) -> Iterable[str]:
    if hasattr(body, "topic_names"):
        names: Iterable[str] = body.topic_names
        return names
    return (topic.name or topic.topic_id for topic in body.topics)


def _resources(body: Any) -> Iterable[str]:
    return (f"{each.resource_type}:{each.resource_name}" for each in body.resources)


def _entities(body: Any) -> Iterable[str]:
    return (
        ",".join(f"{each.entity_type}={each.entity_name}" for each in entry.entity[:_PARTS_MAX])
        for entry in body.entries
    )


ACTIONS: Final[Mapping[int, tuple[str, _Names]]] = {
    19: ("create topics", _topics),
    20: ("delete topics", _deleted),
    21: ("delete records", _topics),
    27: ("write markers", lambda body: (str(each.producer_id) for each in body.markers)),
    33: ("replace settings", _resources),
    37: ("create partitions", _topics),
    42: ("delete groups", lambda body: iter(body.groups_names)),
    43: ("elect leaders", lambda body: (each.topic for each in body.topic_partitions or ())),
    44: ("change settings", _resources),
    45: ("reassign partitions", _topics),
    47: ("delete offsets", lambda body: iter((body.group_id,))),
    49: ("change quotas", _entities),
    57: ("change features", lambda body: (each.feature for each in body.feature_updates)),
}
"""Those about rules, users and tokens write their own lines, which tell more."""


_LABELS: Final = ("name", "topic", "resource_name", "group_id", "feature", "producer_id")
"""Fields of answers that say what a part of them is about."""


def watch(call: Call) -> None:
    """Write down what was asked for and what became of it, as soon as that is answered."""
    call.answered = lambda fields: _record_answer(call, fields)


def _record_answer(call: Call, fields: Fields) -> Iterator[None]:
    record(call, (yield from outcome(call, fields)))


def record(call: Call, end: str) -> None:
    call.answered = None
    action, names_of = ACTIONS[call.key]
    call.access.record(action, _listed(names_of(call.body)), end)


def outcome(call: Call, fields: Fields) -> Generator[None, None, str]:
    """Say in steps what an answer says: `done`, `refused`, or what was not done, and why."""
    refused: dict[tuple[str, int], None] = {}
    codes: set[int] = set()
    for number, (label, code) in enumerate(_codes(fields, ""), 1):
        codes.add(code)
        if code:
            refused[label, code] = None
        if not number % _CODES_PER_STEP:
            yield
    done = "checked" if call.field("validate_only", False) else "done"
    if not refused:
        return done
    if len(codes) == 1:
        return f"refused: {_word(*codes)}"
    told = _listed(refused, lambda one: f"{one[0]} {_word(one[1])}".strip())
    all_refused = all(codes)
    return f"refused: {told}" if all_refused else f"{done}, except {told}"


def _codes(part: Any, label: str) -> Iterator[tuple[str, int]]:
    """The error codes of an answer's parts, each with what it is about."""
    if isinstance(part, Mapping):
        label = next((str(part[each])[:260] for each in _LABELS if part.get(each)), label)
        code = part.get("error_code")
        if code:
            yield label, int(code)
        inner = False
        for value in part.values():
            for found in _codes(value, label):
                inner = True
                yield found
        if code == 0 and not inner:
            yield label, 0
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _codes(each, label)


def _word(code: int) -> str:
    return ErrorCode(code).name


def _listed(items: Iterable[Any], shown: Callable[[Any], str] = str) -> str:
    each = iter(items)
    named = ",".join(shown(item)[:_CHARACTERS_MAX] for item in islice(each, _NAMES_MAX))
    left = sum(1 for _ in each)
    return f"{named} and {left} more" if left else named
