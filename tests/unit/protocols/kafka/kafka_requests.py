"""Requests of every version, written by kio from one description."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, get_args
from uuid import UUID

from kafka_schemas import frame
from kio.index import load_request_schema


def make(schema: Any, fields: dict[str, Any]) -> Any:
    """An entity from plain dicts; what the version lacks is left out."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        if field.name not in fields:
            continue
        value = fields[field.name]
        nested = [arm for arm in _types(field.type) if dataclasses.is_dataclass(arm)]
        if isinstance(value, dict):
            value = make(nested[0], value)
        elif isinstance(value, list):
            value = tuple(make(nested[0], entry) if nested else entry for entry in value)
        values[field.name] = value
    return schema(**values)


def _types(kind: Any) -> list[Any]:
    found = [kind]
    for arm in get_args(kind):
        found.extend(_types(arm))
    return found


def request(key: int, version: int, fields: dict[str, Any], *, correlation_id: int = 7) -> bytes:
    entity = make(load_request_schema(key, version), fields)
    return frame(entity, correlation_id=correlation_id)


def produce(
    version: int,
    parts: Sequence[tuple[str | UUID, int, bytes | bytearray | None]],
    *,
    acks: int = 1,
    correlation_id: int = 7,
    transactional_id: str | None = None,
) -> bytes:
    """Each part is topic (an id from version 13 on), partition and batches."""
    topics: list[dict[str, Any]] = []
    for topic, index, data in parts:
        named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
        records = None if data is None else bytes(data)
        topics.append({**named, "partition_data": [{"index": index, "records": records}]})
    fields = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timedelta(seconds=30),
        "topic_data": topics,
    }
    return request(0, version, fields, correlation_id=correlation_id)


def fetch(
    version: int,
    parts: Sequence[tuple[str | UUID, int, int]],
    *,
    correlation_id: int = 7,
    bytes_max: int = 1 << 20,
    partition_bytes_max: int = 1 << 20,
    bytes_min: int = 1,
    wait_ms: int = 0,
    isolation: int = 0,
    session: tuple[int, int] = (0, -1),
    epoch: int = -1,
    forgotten: Sequence[tuple[str | UUID, int]] = (),
) -> bytes:
    """Each part is topic (an id from version 13 on), partition and offset."""
    fields: dict[str, Any] = {
        "replica_id": -1,
        "max_wait": timedelta(milliseconds=wait_ms),
        "min_bytes": bytes_min,
        "max_bytes": bytes_max,
        "isolation_level": isolation,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [
            {
                **_named(topic),
                "partitions": [
                    {
                        "partition": index,
                        "current_leader_epoch": epoch,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": partition_bytes_max,
                    }
                ],
            }
            for topic, index, offset in parts
        ],
        "forgotten_topics_data": [
            {**_named(topic), "partitions": [index]} for topic, index in forgotten
        ],
        "rack_id": "",
    }
    return request(1, version, fields, correlation_id=correlation_id)


def _named(topic: str | UUID) -> dict[str, Any]:
    return {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}
