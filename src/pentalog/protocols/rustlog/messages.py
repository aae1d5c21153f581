"""Requests as both dialects mean them, and the document's JSON read into them.

The binary dialect fills the same classes by hand, in `frames.py`.
"""

from __future__ import annotations

import codecs
import re
from typing import Annotated, Final, TypeAlias

import msgspec

from pentalog.protocols.rustlog.errors import Invalid, NotJson

RECORDS_MAX: Final = 1000
"""Records of one Produce in JSON, by the document."""
PARTITIONS_MAX: Final = 1000
VALUES_MAX: Final = 100_000
"""Values of one request in JSON, as its commas count them."""
ESCAPES_MAX: Final = 500_000
"""Of one request in JSON: records are base64, of which an encoder escapes `/` at most."""
LARGE_BYTES: Final = 1 << 20
"""A request in JSON that is looked through and decoded in different turns."""
_CHUNK_BYTES: Final = 64 << 10
"""Looked through at a time."""
_QUOTED_MAX: Final = 1000
NAME_CHARACTERS_MAX: Final = 255
TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,255}", re.ASCII)
_U64_MAX: Final = (1 << 64) - 1

Unsigned32: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
Unsigned64: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Tagged(msgspec.Struct, frozen=True, gc=False, tag_field="type"):
    """A request; `type` in JSON is the name of its class."""


class Produce(_Tagged, frozen=True, tag="Produce"):
    topic: str
    partition: Unsigned32
    records: list[bytes]


class Fetch(_Tagged, frozen=True, tag="Fetch"):
    topic: str
    partition: Unsigned32
    offset: Unsigned64
    max_bytes: Unsigned64
    group_id: str = ""


class OffsetCommit(_Tagged, frozen=True, tag="OffsetCommit"):
    group: str
    topic: str
    partition: Unsigned32
    offset: Unsigned64


class OffsetFetch(_Tagged, frozen=True, tag="OffsetFetch"):
    group: str
    topic: str
    partition: Unsigned32


class CreateTopic(_Tagged, frozen=True, tag="CreateTopic"):
    topic: str
    partition_count: Unsigned32


class ListTopics(_Tagged, frozen=True, tag="ListTopics"):
    pass


class DescribeTopic(_Tagged, frozen=True, tag="DescribeTopic"):
    topic: str


class DescribePartition(_Tagged, frozen=True, tag="DescribePartition"):
    topic: str
    partition: Unsigned32


class MetricsFetch(_Tagged, frozen=True, tag="MetricsFetch"):
    pass


class Ping(_Tagged, frozen=True, tag="Ping"):
    pass


Request: TypeAlias = (
    Produce
    | Fetch
    | OffsetCommit
    | OffsetFetch
    | CreateTopic
    | ListTopics
    | DescribeTopic
    | DescribePartition
    | MetricsFetch
    | Ping
)

_DECODER: Final[msgspec.json.Decoder[Request]] = msgspec.json.Decoder(Request)
_SHAPE: Final = msgspec.json.Decoder(msgspec.Raw)


def decode(payload: memoryview, *, looked_through: bool = False) -> Request:
    """A request in JSON; raises `Invalid` for wrong fields and `NotJson` for what is no JSON.

    `looked_through`: `look_through` has accepted it.
    """
    if not looked_through:
        look_through(payload)
    try:
        request = _DECODER.decode(payload)
    except msgspec.ValidationError as flaw:
        _require_json(payload)
        raise Invalid(_shown(flaw)) from flaw
    except (msgspec.DecodeError, RecursionError) as flaw:
        raise NotJson(_shown(flaw)) from flaw
    _check(request)
    return request


def look_through(payload: memoryview) -> None:
    """Refuse what would take long to decode, and what is not UTF-8; raises as `decode` does."""
    if len(payload) > VALUES_MAX:
        _check_size(payload)
    _check_utf_8(payload)


def _shown(flaw: Exception) -> str:
    """The words of a refusal, which may quote a value of the request."""
    text = str(flaw)
    return text if len(text) <= _QUOTED_MAX else text[:_QUOTED_MAX] + "..."


def _check_size(payload: memoryview) -> None:
    """Refuse millions of small values or escapes: they would be read whole before one is used."""
    commas = escapes = 0
    for start in range(0, len(payload), _CHUNK_BYTES):
        chunk = bytes(payload[start : start + _CHUNK_BYTES])
        commas += chunk.count(b",")
        escapes += chunk.count(b"\\")
        if commas > VALUES_MAX:
            raise Invalid(
                f"more than {VALUES_MAX} values in one request; at most {RECORDS_MAX} records are "
                "accepted in one Produce: send several"
            )
        if escapes > ESCAPES_MAX:
            raise Invalid(
                f"more than {ESCAPES_MAX} escaped characters in one request; send them as they "
                "are, or in several requests"
            )


def _check_utf_8(payload: memoryview) -> None:
    """Refuse what is not UTF-8; a large text is decoded in pieces, and none is kept."""
    start, size = 0, len(payload)
    while start < size:
        end = min(start + _CHUNK_BYTES, size)
        try:
            start += codecs.utf_8_decode(payload[start:end], "strict", end == size)[1]
        except UnicodeDecodeError as flaw:
            at = start + flaw.start
            raise NotJson(f"the frame is not UTF-8: {flaw.reason} at byte {at}") from flaw


def _require_json(payload: memoryview) -> None:
    """A wrong field is found before the end is reached: is the rest JSON at all?"""
    try:
        _SHAPE.decode(payload)
    except (msgspec.DecodeError, RecursionError) as flaw:
        raise NotJson(_shown(flaw)) from flaw


def _check(request: Request) -> None:
    """The document's limits that a type cannot tell."""
    if isinstance(request, Produce):
        if len(request.records) > RECORDS_MAX:
            raise Invalid(
                f"{len(request.records)} records in one Produce; at most {RECORDS_MAX} are "
                "accepted: send several"
            )
    elif isinstance(request, Fetch):
        if request.offset > _U64_MAX or request.max_bytes > _U64_MAX:
            raise Invalid(f"offset and max_bytes are whole numbers from 0 to {_U64_MAX}")
    elif isinstance(request, OffsetCommit):
        if request.offset > _U64_MAX:
            raise Invalid(f"offset is a whole number from 0 to {_U64_MAX}")
    elif isinstance(request, CreateTopic):
        if TOPIC_NAME.fullmatch(request.topic) is None:
            raise Invalid(name_flaw(request.topic))
        if not 1 <= request.partition_count <= PARTITIONS_MAX:
            raise Invalid(
                f"partition_count is {request.partition_count}; 1 to {PARTITIONS_MAX} are accepted"
            )


def name_flaw(topic: str) -> str:
    """What is wrong with a name the document does not know as one of a topic."""
    return (
        f"topic name {topic[:260]!r}; 1 to 255 letters, digits, underscores and dashes are accepted"
    )
