"""Kafka messages made of plain values, by the schemas of kio."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import struct
import typing
from collections.abc import Mapping
from typing import Any, Final

from pentalog.model.kio_schemas import (
    ErrorCode,
    entity_reader,
    entity_writer,
    load_request_schema,
    load_response_schema,
)

# The versions this package can fill and read: topics by name, transactions the client ends itself.
VERSIONS: Final[Mapping[int, tuple[int, int]]] = {
    0: (3, 9),
    1: (11, 11),
    2: (1, 7),
    3: (4, 12),
    8: (5, 9),
    9: (2, 7),
    10: (1, 3),
    11: (5, 5),
    12: (3, 3),
    13: (3, 3),
    14: (3, 3),
    15: (0, 5),
    16: (0, 5),
    17: (1, 1),
    18: (0, 0),
    19: (2, 7),
    20: (1, 5),
    21: (0, 2),
    22: (0, 4),
    24: (0, 3),
    25: (0, 3),
    26: (0, 3),
    28: (0, 3),
    29: (1, 3),
    30: (1, 3),
    31: (1, 3),
    32: (1, 4),
    35: (1, 4),
    36: (0, 2),
    37: (0, 3),
    38: (3, 3),
    39: (1, 2),
    40: (1, 2),
    41: (3, 3),
    42: (0, 2),
    44: (0, 1),
    47: (0, 0),
    48: (0, 1),
    49: (0, 1),
    50: (0, 0),
    51: (0, 0),
    61: (0, 0),
    65: (0, 0),
    68: (1, 1),
    69: (0, 1),
    74: (1, 1),
}
NAMES: Final[Mapping[int, str]] = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    15: "DescribeGroups",
    16: "ListGroups",
    17: "SaslHandshake",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    21: "DeleteRecords",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
    29: "DescribeAcls",
    30: "CreateAcls",
    31: "DeleteAcls",
    32: "DescribeConfigs",
    35: "DescribeLogDirs",
    36: "SaslAuthenticate",
    37: "CreatePartitions",
    38: "CreateDelegationToken",
    39: "RenewDelegationToken",
    40: "ExpireDelegationToken",
    41: "DescribeDelegationToken",
    42: "DeleteGroups",
    44: "IncrementalAlterConfigs",
    47: "OffsetDelete",
    48: "DescribeClientQuotas",
    49: "AlterClientQuotas",
    50: "DescribeUserScramCredentials",
    51: "AlterUserScramCredentials",
    61: "DescribeProducers",
    65: "DescribeTransactions",
    68: "ConsumerGroupHeartbeat",
    69: "ConsumerGroupDescribe",
    74: "ListConfigResources",
}

API_VERSIONS: Final = 18

_HEADER: Final = struct.Struct(">hhih")
_CODE: Final = struct.Struct(">h")
_TIMED: Final = frozenset({38, 39, 40})
"""Answers with times, which a refusal gives as -1, and kio refuses to read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """What is left of an answer of which only the error code can be read."""

    error_code: ErrorCode


def head(key: int, version: int, correlation_id: int, client_id: bytes) -> bytes:
    """The first fields of every request's header."""
    return _HEADER.pack(key, version, correlation_id, len(client_id)) + client_id


def request(
    key: int, version: int, correlation_id: int, client_id: bytes, fields: Mapping[str, Any]
) -> bytes:
    """A whole request without its length."""
    entity = _entity(load_request_schema(key, version), fields)
    out = io.BytesIO()
    out.write(head(key, version, correlation_id, client_id))
    if entity.__flexible__:
        out.write(b"\0")
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def answer(key: int, version: int, data: bytes) -> Any:
    """The decoded answer to a request."""
    schema = load_response_schema(key, version)
    # The correlation id, and in newer headers an empty list of tagged fields.
    start = 5 if schema.__flexible__ and key != API_VERSIONS else 4
    if key in _TIMED:
        (code,) = _CODE.unpack_from(data, start)
        if code:
            return Refusal(ErrorCode(code))
    return entity_reader(schema)(data, start)[0]


def ms(value: int) -> datetime.timedelta:
    """A time as kio's schemas want it."""
    return datetime.timedelta(milliseconds=value)


@functools.cache
def _nested(kind: type) -> dict[str, type | None]:
    """Field names of a message, with the type of those that are arrays of structures."""
    found: dict[str, type | None] = {}
    for field in dataclasses.fields(kind):
        choices = [field.type, *typing.get_args(field.type)]
        inner = [part for choice in choices for part in (choice, *typing.get_args(choice))]
        found[field.name] = next(
            (part for part in inner if isinstance(part, type) and dataclasses.is_dataclass(part)),
            None,
        )
    return found


def _entity(kind: type, fields: Mapping[str, Any]) -> Any:
    """Build a message of one version; fields that this version lacks are left out."""
    values: dict[str, Any] = {}
    for name, inner in _nested(kind).items():
        if name not in fields:
            continue
        value = fields[name]
        if inner is not None and value is not None:
            value = tuple(_entity(inner, item) for item in value)
        values[name] = value
    return kind(**values)
