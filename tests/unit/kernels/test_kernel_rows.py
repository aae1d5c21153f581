"""Rows in columns become record batches."""

from __future__ import annotations

import importlib
import struct
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentalog import kernels
from pentalog.kernels.facts import Malformed
from pentalog.kernels.pure import rows as pure_rows
from pentalog.kernels.row_facts import Cells, HeaderCells, Producing
from pentalog.model import batch
from pentalog.model.types import Record

NOBODY = Producing(-1, -1, 0)
needs_both = pytest.mark.skipif(
    kernels.KERNELS["rows"] == "pure", reason="the kernel rows is not compiled here"
)


def both() -> tuple[Any, Any]:
    return importlib.import_module("pentalog.kernels.compiled.rows"), pure_rows


def cells(values: list[bytes | None], first: int = 0) -> Cells:
    array = pa.array([b"before"] * first + values, pa.binary())
    validity, offsets, data = array.buffers()
    return Cells(validity, offsets, data or b"", first)


def header_cells(lists: list[list[tuple[str, bytes | None]] | None]) -> HeaderCells:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = [
        None if found is None else [{"key": name, "value": value} for name, value in found]
        for found in lists
    ]
    array = pa.array(rows, kind)
    names, values = array.values.field("key"), array.values.field("value")
    validity, offsets = array.buffers()[:2]
    return HeaderCells(
        validity,
        offsets,
        0,
        Cells(names.buffers()[0], names.buffers()[1], names.buffers()[2] or b"", 0),
        Cells(values.buffers()[0], values.buffers()[1], values.buffers()[2] or b"", 0),
    )


def times(*timestamps: int) -> bytes:
    return struct.pack(f"={len(timestamps)}q", *timestamps)


def places(*partitions: int) -> bytes:
    return struct.pack(f"={len(partitions)}i", *partitions)


@pytest.mark.parametrize(
    ("key", "partition"),
    # What Apache Kafka's own partitioner gives for twelve partitions, by its published hash values.
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
     (b"a-little-bit-longer-string", -1486304829), (b"abc", 479470107), (b"", 275646681)],
)  # fmt: skip
def test_keys_choose_the_partition_that_kafka_would(
    twin: SimpleNamespace, key: bytes, partition: int
) -> None:
    placed = twin.place_rows(cells([key, None]), 2, 12, 7)
    assert placed == places((partition & 0x7FFFFFFF) % 12, 7)


def test_rows_come_back_as_records(twin: SimpleNamespace) -> None:
    keys = cells([b"a", None, b"", b"d"], first=3)
    values = cells([b"1", b"22", None, b""], first=1)
    headers = header_cells([[("h", b"x"), ("h", None)], None, [], [("n", b"")]])
    sequences = bytearray(places(0, 5, 9))
    encoded = twin.encode_rows(
        keys, values, headers, times(10, 20, 5, 30), places(1, 0, 1, 1), 4, sequences, 1 << 20,
        Producing(77, 3, batch.TRANSACTIONAL),
    )  # fmt: skip
    assert [(partition, records) for partition, _, _, records in encoded.batches] == [
        (0, 1),
        (1, 3),
    ]
    assert sequences == places(1, 8, 9)
    (_, start, end, _), (_, second, last, _) = encoded.batches
    assert (start, end, last) == (0, second, len(encoded.data))
    assert kernels.check_batches(encoded.data, 0, end).flaw == 0
    facts = kernels.check_batches(encoded.data, second, last)
    assert (facts.flaw, facts.producer_id, facts.producer_epoch) == (0, 77, 3)
    assert (facts.sequence_first, facts.sequence_last, facts.timestamp_max) == (5, 7, 30)
    assert batch.records_of(encoded.data, 0, bytes_max=1 << 20) == [
        (0, Record(b"22", None, (), 20))
    ]
    assert batch.records_of(encoded.data, second, bytes_max=1 << 20) == [
        (0, Record(b"1", b"a", (("h", b"x"), ("h", None)), 10)),
        (1, Record(None, b"", (), 5)),
        (2, Record(b"", b"d", (("n", b""),), 30)),
    ]


def test_batches_stay_within_their_size(twin: SimpleNamespace) -> None:
    count = 300
    encoded = twin.encode_rows(
        None, cells([b"x" * 50] * count), None, times(*range(count)), places(*[0] * count), count,
        bytearray(4), 1000, NOBODY,
    )  # fmt: skip
    assert len(encoded.batches) > 10
    assert all(end - start <= 1000 for _, start, end, _ in encoded.batches)
    facts = kernels.check_batches(encoded.data, 0, len(encoded.data))
    assert (facts.flaw, facts.records) == (0, count)


def test_a_row_larger_than_a_batch_stands_alone(twin: SimpleNamespace) -> None:
    values = cells([b"a", b"x" * 5000, b"b"])
    encoded = twin.encode_rows(
        None, values, None, times(1, 2, 3), places(0, 0, 0), 3, bytearray(4), 1000, NOBODY
    )
    assert [records for _, _, _, records in encoded.batches] == [1, 1, 1]


def test_sequences_begin_again_behind_the_largest(twin: SimpleNamespace) -> None:
    sequences = bytearray(places((1 << 31) - 2))
    twin.encode_rows(
        None, None, None, times(1, 1, 1), places(0, 0, 0), 3, sequences, 1000, Producing(1, 0, 0)
    )
    assert sequences == places(1)


def test_the_digest_knows_rows_and_not_their_order(twin: SimpleNamespace) -> None:
    def digest(*rows: tuple[bytes | None, bytes | None]) -> int:
        keys, values = cells([key for key, _ in rows]), cells([value for _, value in rows])
        count = len(rows)
        found = twin.encode_rows(
            keys, values, None, times(*[0] * count), places(*[0] * count), count, bytearray(4),
            100, NOBODY,
        ).digest  # fmt: skip
        assert isinstance(found, int)
        return found

    rows = [(b"a", b"1"), (None, b"2"), (b"c", None)]
    assert digest(*rows) == digest(*reversed(rows)) == sum(digest(row) for row in rows) % (1 << 64)
    assert digest((b"a", b"b")) != digest((b"ab", b""))
    assert digest((b"a", None)) != digest((b"a", b""))
    assert digest((b"a", b"b")) != digest((b"b", b"a"))


@pytest.mark.parametrize(
    "change",
    [
        {"count": 3},
        {"count": -1},
        {"timestamps": times(1)},
        {"placed": places(0, 1)},
        {"placed": places(0, -1)},
        {"keys": Cells(None, places(0, 1, 4), b"abc", 0)},
        {"keys": Cells(None, places(0, 2, 1), b"abc", 0)},
        {"keys": Cells(None, places(-1, 2, 3), b"abc", 0)},
        {"keys": Cells(b"", places(0, 1, 2), b"abc", 0)},
        {"keys": Cells(None, places(0, 1, 2), b"abc", -1)},
        {"keys": Cells(None, places(0, 1, 2), b"abc", 1)},
        {"headers": header_cells([[("n", b"")], [("m", b"")]])._replace(offsets=places(0, 1, 9))},
        {"headers": header_cells([[("n", b"")], [("m", b"")]])._replace(offsets=places(0, 1))},
    ],
)
def test_columns_that_do_not_fit_are_refused(twin: SimpleNamespace, change: dict[str, Any]) -> None:
    sound: dict[str, Any] = {
        "keys": None,
        "values": None,
        "headers": None,
        "timestamps": times(1, 2),
        "placed": places(0, 0),
        "count": 2,
        "sequences": bytearray(4),
        "bytes_max": 1000,
        "producing": NOBODY,
    }
    assert twin.encode_rows(*sound.values()).batches
    with pytest.raises(Malformed):
        twin.encode_rows(*{**sound, **change}.values())


texts = st.one_of(st.none(), st.binary(max_size=40))
header_lists = st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=5), texts), max_size=3))
rows = st.lists(
    st.tuples(texts, texts, header_lists, st.integers(-(1 << 63), (1 << 63) - 1)), max_size=30
)


@needs_both
@given(rows, st.integers(1, 5), st.integers(60, 400), st.integers(0, (1 << 31) - 1))
def test_twins_agree(
    found: list[tuple[Any, Any, Any, int]], partitions: int, bytes_max: int, sequence: int
) -> None:
    keys, values = cells([row[0] for row in found]), cells([row[1] for row in found])
    headers = header_cells([row[2] for row in found])
    count = len(found)
    placed, same = (module.place_rows(keys, count, partitions, partitions - 1) for module in both())
    assert placed == same
    results = []
    for module in both():
        sequences = bytearray(places(*[sequence] * partitions))
        encoded = module.encode_rows(
            keys, values, headers, times(*(row[3] for row in found)), placed, count, sequences,
            bytes_max, Producing(5, 2, batch.TRANSACTIONAL),
        )  # fmt: skip
        results.append((encoded, sequences))
    assert results[0] == results[1]


@needs_both
@given(
    st.binary(max_size=24), st.binary(max_size=3), st.binary(max_size=10), st.integers(-3, 3),
    st.binary(max_size=24), st.integers(-1, 5),
)  # fmt: skip
def test_twins_agree_on_any_bytes(
    offsets: bytes, validity: bytes, data: bytes, first: int, placed: bytes, count: int
) -> None:
    column = Cells(validity, offsets, data, first)
    listed = HeaderCells(None, offsets, first, column, column)
    outcomes = []
    for module in both():
        try:
            outcomes.append(
                module.encode_rows(
                    column, column, listed, bytes(48), placed, count, bytearray(8), 100, NOBODY
                )
            )
        except Malformed as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
