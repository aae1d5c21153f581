"""What the administrative requests share: refusals, answers that wait for the disk, rights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.protocols.kafka.codec import Fields
from pentalog.protocols.kafka.errors import code_of
from pentalog.protocols.kafka.messages import Call

OPERATIONS_NOT_ASKED: Final = -(1 << 31)
_TEXT_CHARACTERS_MAX: Final = 8_000
"""A refusal may name what has a long name; a text has 32,767 bytes at most."""


def error_fields(flaw: Exception | None) -> dict[str, Any]:
    """The two fields by which an answer tells one part's error."""
    if flaw is None:
        return {"error_code": 0, "error_message": None}
    return {"error_code": code_of(flaw), "error_message": str(flaw)[:_TEXT_CHARACTERS_MAX]}


def repeated(names: Iterable[object]) -> set[object]:
    """Those that are there more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


def answer_settled(
    call: Call, fields: Fields, results: Sequence[dict[str, Any]], *, changed: bool
) -> None:
    """Answer when the changes are on the disk.

    If they cannot be written, every one of `results` (the parts of `fields` that carry an error)
    that had gone well says so instead.
    """
    if not changed:
        call.answer(fields)
        return
    settled = call.context.broker.topics.settle()
    if settled.ready:
        _finish(settled, fields, results, call.answer)
        return
    place = call.place()
    settled.then(lambda later: _finish(later, fields, results, place.answer))


def _finish(
    settled: Later[None],
    fields: Fields,
    results: Sequence[dict[str, Any]],
    answer: Callable[[Fields], None],
) -> None:
    try:
        _ = settled.value
    except BrokerError as refusal:
        for result in results:
            if result["error_code"] == 0:
                result.update(error_fields(refusal))
    answer(fields)
