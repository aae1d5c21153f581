"""What the requests of group members share: codes, answers that wait, what members subscribe to."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

from pentalog.model.errors import BrokerError, Overloaded, StorageFailed, StorageFull
from pentalog.model.later import Later
from pentalog.protocols.kafka.errors import ErrorCode, code_of
from pentalog.protocols.kafka.messages import Call

T = TypeVar("T")

CONSUMER: Final = "consumer"
"""Protocol type of members whose metadata is a subscription; others are not understood."""
PROTOCOLS_MAX: Final = 100
"""Protocols that a member may propose; clients have one to five."""
TOPICS_MAX: Final = 10_000
"""Names that a member's subscription may have; of a longer one the broker understands nothing."""
_SIZE: Final = struct.Struct(">h")
_HEAD: Final = struct.Struct(">hi")
_BUSY: Final = (Overloaded, StorageFailed, StorageFull)


def group_code(refusal: BrokerError) -> int:
    """The code of a refusal, among those that group members expect and retry."""
    if isinstance(refusal, _BUSY):
        return int(ErrorCode.coordinator_not_available)
    return code_of(refusal)


def answer_when_there(
    call: Call, later: Later[T], fields: Callable[[Later[T]], dict[str, Any]]
) -> None:
    """Answer with `fields(later)`, at once or as soon as it is there."""
    if later.ready:
        call.answer(fields(later))
        return
    place = call.place()
    later.then(lambda done: place.answer(fields(done)))


def client_host(call: Call) -> str:
    """The member's address as Kafka shows it."""
    return "/" + call.context.peer.rpartition(":")[0].strip("[]")


def subscribed_topics(
    protocol_type: str, metadata: bytes, most: int = TOPICS_MAX
) -> frozenset[str] | None:
    """The topics a member asks for, or None if its metadata tells nothing of the kind.

    A consumer's metadata begins, in every version of it, with a version number and the names.
    """
    if protocol_type != CONSUMER:
        return None
    try:
        _, count = _HEAD.unpack_from(metadata, 0)
        if not 0 <= count <= most:
            return None
        position = _HEAD.size
        found = []
        for _ in range(count):
            (size,) = _SIZE.unpack_from(metadata, position)
            position += _SIZE.size
            end = position + size
            if not position <= end <= len(metadata):
                return None
            found.append(str(metadata[position:end], "utf-8"))
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(found)
