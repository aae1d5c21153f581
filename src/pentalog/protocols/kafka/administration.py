"""What the administrative requests share: refusals, answers that wait for the disk, rights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pentalog.model.errors import BrokerError
from pentalog.model.types import Offset, Partition
from pentalog.protocols.kafka.codec import Fields
from pentalog.protocols.kafka.errors import code_of
from pentalog.protocols.kafka.messages import Call, Steps

OPERATIONS_NOT_ASKED: Final = -(1 << 31)
_ENDS_AT_ONCE: Final = 64
_TEXT_CHARACTERS_MAX: Final = 8_000
"""A refusal may name what has a long name; a text has 32,767 bytes at most."""


def error_fields(flaw: Exception | None) -> dict[str, Any]:
    """The two fields by which an answer tells one part's error."""
    if flaw is None:
        return {"error_code": 0, "error_message": None}
    # It holds the frames of whoever keeps it: garbage that only a long collection would find.
    flaw.__traceback__ = None
    return {"error_code": code_of(flaw), "error_message": str(flaw)[:_TEXT_CHARACTERS_MAX]}


def repeated(names: Iterable[object]) -> set[object]:
    """Those that are there more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


def find_repeated(call: Call, names: Iterable[object]) -> Steps[set[object]]:
    """Return those that are there more than once, found in steps."""
    seen: set[object] = set()
    twice: set[object] = set()
    yield from call.each(names, lambda name: (twice if name in seen else seen).add(name))
    return twice


def ends_of(call: Call, partitions: Sequence[Partition]) -> Steps[dict[Partition, Offset]]:
    """Return where partitions end, once all that was acknowledged before is on the disk."""
    log = call.context.broker.log
    laters = []
    for start in range(0, len(partitions), _ENDS_AT_ONCE):
        if start:
            yield None
        laters.append(log.ends(set(partitions[start : start + _ENDS_AT_ONCE])))
    ends: dict[Partition, Offset] = {}
    for later in laters:
        if not later.ready:
            yield later
        ends.update(later.value)
    return ends


def answer_settled(
    call: Call, fields: Fields, results: Sequence[dict[str, Any]], *, changed: bool
) -> Steps[None]:
    """Answer when the changes are on the disk.

    If they cannot be written, every one of `results` (the parts of `fields` that carry an error)
    that had gone well says so instead.
    """
    if changed:
        settled = call.context.broker.topics.settle()
        yield settled
        try:
            settled.check()
        except BrokerError as refusal:
            told = error_fields(refusal)
            yield from call.each(
                results, lambda result: None if result["error_code"] else result.update(told)
            )
    yield from call.reply(fields)
