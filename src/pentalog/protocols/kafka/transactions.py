"""What the requests about transactions share: error codes, answers that come later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pentalog.model.errors import BrokerError, ProducerFenced
from pentalog.model.later import Later
from pentalog.protocols.kafka.codec import Fields
from pentalog.protocols.kafka.errors import ErrorCode, code_of
from pentalog.protocols.kafka.messages import Call

T = TypeVar("T")


def transaction_code(refusal: Exception, *, fenced: bool) -> int:
    """The code of a refusal; `fenced`: the version knows PRODUCER_FENCED."""
    if fenced and isinstance(refusal, ProducerFenced):
        return int(ErrorCode.producer_fenced)
    return code_of(refusal)


def answer_later(
    call: Call,
    begin: Callable[[], Later[T]],
    done: Callable[[T], Fields],
    refused: Callable[[BrokerError], Fields],
) -> None:
    """Begin something and answer when it has come about, or was refused."""

    def fields(later: Later[T]) -> Fields:
        try:
            value = later.value
        except BrokerError as refusal:
            return refused(refusal)
        return done(value)

    try:
        later = begin()
    except BrokerError as refusal:
        call.answer(refused(refusal))
        return
    if later.ready:
        call.answer(fields(later))
        return
    place = call.place()
    later.then(lambda arrived: place.answer(fields(arrived)))
