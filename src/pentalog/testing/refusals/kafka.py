"""Refusing a Kafka request: the answer it would have got, with an error wherever it has a place.

The error stands where clients look for it: as deep as the request reaches (each partition of a
Produce), or at the top.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, get_args, get_origin

from pentalog.model.kio_schemas import ErrorCode, load_response_schema
from pentalog.protocols.kafka import codec, frames
from pentalog.protocols.kafka.api import APIS
from pentalog.protocols.kafka.entities import unwrapped

REQUESTS: Final = frozenset(api.name for api in APIS.values())

_PRODUCE: Final = 0
_ABOVE_PARTITIONS: Final = frozenset({9})
"""OffsetFetch: clients look at the group's error."""
_NAMES: Final = ("name", "topic", "topic_name", "key", "group_id", "resource_name")
_INDEXES: Final = ("index", "partition_index", "partition")


def check(error: str | int) -> None:
    _code(error)


def refuse(
    payload: memoryview, error: str | int, session: object, send: Callable[..., None]
) -> bool:
    key, version, correlation_id, _, position = frames.read_header(payload, 0, len(payload))
    if frames.flexible_header(key, version):
        position = frames.skip_tags(payload, position, len(payload))
    asked = codec.decode(key, version, payload[position:])
    if key == _PRODUCE and asked.acks == 0:
        return False
    schema = load_response_schema(key, version)
    answer, _ = _mirrored(schema, asked, _code(error), deep=key not in _ABOVE_PARTITIONS)
    send(codec.encode(key, version, correlation_id, answer))
    return True


def _code(error: str | int) -> int:
    try:
        return int(ErrorCode(error) if isinstance(error, int) else ErrorCode[error.lower()])
    except (KeyError, ValueError):
        raise ValueError(
            f"Kafka has no error {error!r}; give a name such as NOT_LEADER_OR_FOLLOWER, or its code"
        ) from None


def _mirrored(schema: Any, asked: Any, code: int, *, deep: bool) -> tuple[dict[str, Any], bool]:
    """An entity of an answer, and whether the error is in it."""
    answer: dict[str, Any] = {}
    told = False
    own: list[str] = []
    for field in fields(schema):
        if field.metadata.get("kafka_type") == "error_code":
            own.append(field.name)
            continue
        element = _element(field)
        if element is not None and _tells(element):
            inner = [_mirrored(element, one, code, deep=deep) for one in _array(asked)]
            answer[field.name] = [entity for entity, _ in inner]
            told = told or any(there for _, there in inner)
        else:
            _copy(answer, field, asked)
    if own and not (told and deep):
        answer.update(dict.fromkeys(own, code))
        told = True
    return answer, told


def _element(field: Field[Any]) -> Any:
    """The entity an array is of."""
    _, kind = unwrapped(field.type)
    if get_origin(kind) is not tuple:
        return None
    element = get_args(kind)[0]
    return element if is_dataclass(element) else None


def _tells(schema: Any) -> bool:
    """Has it, or what is in it, a place for an error?"""
    for field in fields(schema):
        element = _element(field)
        if field.metadata.get("kafka_type") == "error_code" or (element and _tells(element)):
            return True
    return False


def _array(asked: Any) -> tuple[Any, ...]:
    """What a request lists: topics, or partitions of one, or groups."""
    if not is_dataclass(asked):
        return ()
    for field in fields(asked):
        value = getattr(asked, field.name)
        if isinstance(value, tuple) and value:
            return value
    return ()


def _copy(answer: dict[str, Any], field: Field[Any], asked: Any) -> None:
    for group, kind in ((_NAMES, str), (_INDEXES, int)):
        if field.name in group:
            found = [getattr(asked, name) for name in group if hasattr(asked, name)]
            found += [asked] if isinstance(asked, kind) else []
            if found:
                answer[field.name] = found[0]
                return
    if is_dataclass(asked) and hasattr(asked, field.name):
        value = getattr(asked, field.name)
        if isinstance(value, str | int | bytes) or field.metadata.get("kafka_type") == "uuid":
            answer[field.name] = value
            return
    if field.default is MISSING:
        answer[field.name] = _nothing(field)


def _nothing(field: Field[Any]) -> Any:
    optional, kind = unwrapped(field.type)
    if get_origin(kind) is tuple:
        return ()
    if optional:
        return None
    if is_dataclass(kind):
        return _mirrored(kind, None, 0, deep=False)[0]
    word: str = field.metadata["kafka_type"]
    if word in ("string", "bytes", "records"):
        return "" if word == "string" else b""
    if word == "uuid":
        return None
    return -1 if "offset" in field.name else 0
