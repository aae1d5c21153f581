"""What tasks write: every row, and dictionaries only where values come again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pentalog.tables.files import FileSet, Layout

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def test_what_does_not_come_again_has_no_dictionary(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist(
        [
            {
                "topic": "orders",
                "offset": number,
                "value": b"%d" % number,
                "headers": [{"key": "note", "value": b"n"}],
                "counts": {"a": 1},
            }
            for number in range(500)
        ],
        schema=SCHEMA,
    )
    files = FileSet(Layout(str(tmp_path), SCHEMA, fsync=False))
    files.add(rows)
    (file,) = files.close()
    assert pq.read_table(tmp_path / file.path).equals(rows)
    group = pq.read_metadata(tmp_path / file.path).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert {one.path_in_schema: one.has_dictionary_page for one in columns} == {
        "topic": True,
        "offset": False,
        "value": False,
        "headers.list.element.key": True,
        "headers.list.element.value": True,
        "counts.key_value.key": True,
        "counts.key_value.value": True,
    }
