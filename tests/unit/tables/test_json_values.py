"""Values that the source decodes as JSON: each by itself, whatever stands beside it."""

from __future__ import annotations

import datetime
import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pentalog.tables.options import OptionRefused
from pentalog.tables.rows import RowMaker, _json

KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("name", pa.string()),
    ]
)
NOTHING = {one.name: None for one in KIND}
MOMENT = datetime.datetime(2026, 1, 31, 8, tzinfo=datetime.UTC)
VALUES: dict[bytes | None, Any] = {
    b'{"id":1,"at":"2026-01-31T08:00:00Z","day":"2026-01-31","price":1.25,"name":"x"}': {
        "id": 1, "at": MOMENT, "day": MOMENT.date(), "price": Decimal("1.25"), "name": "x",
    },
    b"{}": NOTHING,
    b' {"id":\n2} ': {**NOTHING, "id": 2},
    b'{"id":null,"other":[1,{}]}': NOTHING,
    None: None,
    b"": None,
    b"[1]": None,
    b'{"id":1.5}': None,
    b'{"id":true}': None,
    b'{"id":"5"}': None,
    b'{"id":9223372036854775808}': None,
    b'{"id":1,"id":2}': None,
    b'{"id":3}{"id":4}': None,
    b'{"id":3}\n{"id":4}': None,
    b'{"id":3': None,
    b'{"day":"2026-13-01"}': None,
    b'{"at":"soon"}': None,
    b'{"name":"\xff"}': None,
    b'{"price":12345678901}': None,
}  # fmt: skip


def decoded(values: list[bytes | None]) -> list[Any]:
    return list(_json(KIND, pa.array(values, pa.binary())).to_pylist())


def test_a_value_is_what_it_is_alone() -> None:
    assert {one: decoded([one])[0] for one in VALUES} == VALUES
    assert decoded(list(VALUES)) == list(VALUES.values())
    for pair in itertools.permutations(VALUES, 2):
        assert decoded(list(pair)) == [VALUES[one] for one in pair], pair


def test_a_part_of_an_array() -> None:
    values = pa.array([b'{"id":1}', b'{"id":2}', b"x", b'{"id":4}'])[1:]
    assert [one and one["id"] for one in _json(KIND, values).to_pylist()] == [2, None, 4]


def test_types_that_cannot_be_decoded_are_refused() -> None:
    schema = StructType.fromJson(
        {"type": "struct", "fields": [
            {"name": "value", "nullable": True, "metadata": {}, "type": {
                "type": "struct", "fields": [
                    {"name": "tags", "nullable": True, "metadata": {}, "type": {
                        "type": "map", "keyType": "string", "valueType": "long",
                        "valueContainsNull": True,
                    }},
                ],
            }},
        ]}
    )  # fmt: skip
    with pytest.raises(OptionRefused, match="field tags of map<string, int64> cannot"):
        RowMaker(schema, rows_per_batch=10)
