"""Documents that are certain are read as any JSON reader does; others are left alone."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentalog.tables import documents

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("name", pa.string())])
_VALUES = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=5), st.booleans(),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip
_OBJECTS = st.dictionaries(st.sampled_from(["id", "amount", "name", "else"]), _VALUES)
_VALUE = st.one_of(
    _OBJECTS.map(lambda one: json.dumps(one, ensure_ascii=False).encode("utf-8", "replace")),
    st.builds(lambda one: json.dumps(one).encode(), _OBJECTS),
    st.binary(max_size=12),
    st.none(),
    st.sampled_from([b"{}{}", b'{"id":1}\n{"id":2}', b'{"id":1} ', b'{"id":1,"id":2}', b"{}"]),
)


@given(st.lists(_VALUE, max_size=200))
def test_certain_documents_are_what_they_say(values: list[bytes | None]) -> None:
    found = documents.parse(pa.array(values, pa.binary()), SCHEMA, ())
    sure = [value for value, yes in zip(values, found.certain.to_pylist(), strict=True) if yes]
    rows = found.columns.to_pylist()
    assert len(rows) == len(sure)
    for text, row in zip(sure, rows, strict=True):
        assert text is not None
        assert {name: _plain(name, json.loads(text)) for name in SCHEMA.names} == row


def _plain(name: str, document: dict[str, Any]) -> Any:
    value = document.get(name)
    if name == "amount" and value is not None:
        assert math.isfinite(value)
        return float(value)
    assert value is None or type(value) is (int if name == "id" else str)
    return value


def test_one_bad_document_leaves_most_others_certain() -> None:
    values = [b'{"id":%d,"amount":0.5,"name":"n"}' % number for number in range(10_000)]
    values[5000] = b'{"id":"five"}'
    values[7000] = b"\xff"
    found = documents.parse(pa.array(values, pa.binary()), SCHEMA, ("name",))
    assert not found.certain[5000].as_py()
    assert not found.certain[7000].as_py()
    assert found.certain.false_count < 200
    assert found.columns.num_rows == 10_000 - found.certain.false_count


@pytest.mark.parametrize(
    "value",
    [b'{"name":"a\\ud800b"}', b'{"amount":-0,"name":"a"}', b'{"amount":1e999,"name":"a"}',
     b'{"id":1}', b'{"id":1.0,"name":"a"}', b' {"name":"a"}',
     b'{"name":"%s"}' % (b"n" * 1000), None],
)  # fmt: skip
def test_what_readers_disagree_about_is_not_certain(value: bytes | None) -> None:
    found = documents.parse(pa.array([value], pa.binary()), SCHEMA, ("name",))
    assert found.certain.to_pylist() == [False]
    assert found.columns.num_rows == 0


def test_slices_are_read_where_they_begin() -> None:
    values = pa.array([b'{"id":%d}' % number for number in range(100)], pa.binary())
    found = documents.parse(values.slice(40, 20), SCHEMA, ())
    assert found.columns.column("id").to_pylist() == list(range(40, 60))
