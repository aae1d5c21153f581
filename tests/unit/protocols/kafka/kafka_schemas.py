"""Random messages of any of kio's schemas, as entity and as the plain dicts we encode."""

from __future__ import annotations

import dataclasses
import random
from datetime import UTC, datetime, timedelta
from io import BytesIO
from types import NoneType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_UNSIGNED = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}


def sample(schema: Any, dice: random.Random, *, nulls: bool = True) -> tuple[Any, dict[str, Any]]:
    """An entity of the schema with random values, and the same as plain dicts."""
    entity: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        entity[field.name], plain[field.name] = _value(field, field.type, dice, nulls)
    return schema(**entity), plain


def _value(field: Any, kind: Any, dice: random.Random, nulls: bool) -> tuple[Any, Any]:
    arms = get_args(kind)
    if NoneType in arms and get_origin(kind) is not tuple:
        (kind,) = (arm for arm in arms if arm is not NoneType)
        tagged = "tag" in field.metadata
        if nulls and not tagged and dice.random() < 0.3:
            return None, None
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        length = dice.choice((0, 1, 2) if dataclasses.is_dataclass(element) else (0, 1, 2, 130))
        pairs = [_value(field, element, dice, nulls) for _ in range(length)]
        return tuple(entity for entity, _ in pairs), [plain for _, plain in pairs]
    if dataclasses.is_dataclass(kind):
        return sample(kind, dice, nulls=nulls)
    return _primitive(field.metadata["kafka_type"], dice)


def _primitive(kind: str, dice: random.Random) -> tuple[Any, Any]:
    if kind in _BITS:
        number = dice.randrange(-(1 << _BITS[kind]), 1 << _BITS[kind])
        return number, number
    if kind in _UNSIGNED:
        number = dice.randrange(1 << _UNSIGNED[kind])
        return number, number
    if kind == "float64":
        share = dice.choice((0.0, -1.5, dice.random()))
        return share, share
    if kind == "bool":
        truth = dice.random() < 0.5
        return truth, truth
    if kind == "string":
        text = "".join(dice.choice("abc._-é€") for _ in range(dice.choice((0, 1, 5, 200))))
        return text, text
    if kind in ("bytes", "records"):
        data = dice.randbytes(dice.choice((0, 1, 300)))
        return data, data
    if kind == "error_code":
        code = dice.choice(list(ErrorCode))
        return code, int(code)
    if kind == "uuid":
        topic_id = UUID(int=dice.getrandbits(128) | 1)
        return topic_id, topic_id
    number = dice.randrange(1 << 31)
    if kind == "datetime_i64":
        return datetime.fromtimestamp(number // 1000, UTC), number // 1000 * 1000
    assert kind.startswith("timedelta"), kind
    return timedelta(milliseconds=number), number


def written(entity: Any) -> bytes:
    """An entity by kio's own writer."""
    with BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


def request(
    key: int, version: int, *, correlation_id: int = 7, client_id: str = "test", **fields: Any
) -> bytes:
    """The whole frame of a request, written by kio."""
    schema = load_request_schema(key, version)
    return frame(schema(**fields), correlation_id=correlation_id, client_id=client_id)


def frame(entity: Any, *, correlation_id: int = 7, client_id: str | None = "test") -> bytes:
    header = entity.__header_schema__(
        request_api_key=entity.__api_key__,
        request_api_version=entity.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    payload = written(header) + written(entity)
    return len(payload).to_bytes(4, "big") + payload
