"""The short way gives what Spark's own way gives, for every document there is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.tables.lake import declare, make_topic, produce, run, table

import pentalog
from pentalog.tables import shortcut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id BIGINT, small INT, amount DOUBLE, name STRING NOT NULL, good BOOLEAN"
ODD = [
    b"{}", b"", b" ", b"null", b"[]", b"1", b"x", b"\xff", b"{", b"}", b'{"id":1',
    b'{"name":"a"}', b'{"name":""}', b'{"name":null}', b'{"name":5}', b'{"name":"\xc3\xa9"}',
    b'{"name":"\xc3"}', b'{"name":"a\\nb"}', b'{"name":"\\ud800"}', b'{"name":"a\tb"}',
    b'{"name":"a\x7fb"}', b' {"name":"a"}', b'{"name":"a"} ', b'{"name":"a"}\n',
    b'{"name":"a"}{"name":"b"}', b'{"name":"a"}\n{"name":"b"}', b'{"name":"a"}}',
    b'[{"name":"a"}]', b'{"name":"a",}', b'{"name":"a","name":"b"}', b'{"NAME":"a"}',
    b'{"name":"a","other":{"deep":[1,{"x":null}]}}', b'{"name":"a","other":"}{"}',
    b'{"name":"a","id":9223372036854775807}', b'{"name":"a","id":9223372036854775808}',
    b'{"name":"a","id":-0}', b'{"name":"a","id":1.0}', b'{"name":"a","id":1e2}',
    b'{"name":"a","id":"1"}', b'{"name":"a","id":01}', b'{"name":"a","id":null}',
    b'{"name":"a","id":true}', b'{"name":"a","small":2147483648}', b'{"name":"a","small":-7}',
    b'{"name":"a","amount":-0}', b'{"name":"a","amount":-0.0}', b'{"name":"a","amount":0}',
    b'{"name":"a","amount":1e400}', b'{"name":"a","amount":4.9e-324}', b'{"name":"a","amount":NaN}',
    b'{"name":"a","amount":0.1}', b'{"name":"a","amount":123456789012345678901234567890}',
    b'{"name":"a","amount":2.2250738585072011e-308}', b'{"name":"a","amount":"1.5"}',
    b'{"name":"a","amount":.5}', b'{"name":"a","amount":1.}', b'{"name":"a","amount":+1}',
    b'{"name":"a","good":true}', b'{"name":"a","good":"true"}', b'{"name":"a","good":1}',
    b'{"name":"a","good":tru}', b"{'name':'a'}", b'{name:"a"}', b'{"name":"a"/*c*/}',
    b'{"name":"%s"}' % (b"n" * 2000), b'{"name":"a","other":%s}' % (b"9" * 1200),
    b'{"name":"a","other":%s1%s}' % (b"[" * 400, b"]" * 400),
    b'{"name":"\\"\\\\\\/\\b\\f\\n\\r\\t}{\\u00e9"}', b'{"name":"\\ud83d\\ude00"}',
    b'{"name":"\\u0000"}',
    b'{"name":"\\u001f\\u007f\\uFFFF"}', b'{"n\\u0061me":"a"}', b'{"name":"a","other":"\\ud800"}',
    b'{"name":"\\x"}', b'{"name":"a","other":"\\x"}', b'{"name":"\\ude00\\ud83d"}',
    b'{"name":"\\u12"}',
    b"not JSON", b"no", b"nul", b"nullx", b"null x", b"true", b"truely", b"False", b"NaN", b"nan",
    b"Infinity", b"INF", b"In short", b"a{}", b'x{"name":"a"}', b"\xc3\xa9", b"\xef\xbb\xbf{}",
    b"\xed\xa0\x80", b"\xe0\x80\x80", b"\xf5\x80\x80\x80", b"\xf4\x90\x80\x80", b"a\xff",
    b'{"name":"\xff"}', b"\x00", b"a\x00", b"-Infinity", b"+INF", b"-x", b'"a"', b"'a'", b"/", b"#",
]  # fmt: skip


def both(
    spark: SparkSession, broker: pentalog.Broker, topic: str, folder: Path, decode: dict[str, str]
) -> None:
    """The tables of both ways, compared row by row."""
    server = broker.address("kafka")
    found, schemas = {}, {}
    with pytest.MonkeyPatch.context() as changed:
        for way in ("short", "long"):
            declared = declare(server, topic, folder / way, decode=decode)
            told = run(spark, declared)
            assert sum(one["rows"] for one in told) == table(declared, "bronze").num_rows > 0
            found[way] = {
                layer: sorted(
                    repr(sorted(row.items())) for row in table(declared, layer).to_pylist()
                )
                for layer in ("bronze", "silver", "dead_letters")
            }
            schemas[way] = {layer: table(declared, layer).schema for layer in found[way]}
            changed.setattr(shortcut, "silver_schema", lambda *_: None)
    assert schemas["short"] == schemas["long"]
    for layer, rows in found["long"].items():
        assert found["short"][layer] == rows, layer


@pytest.mark.parametrize("decode", [{"format": "json", "schema": SCHEMA}, {"format": "raw"}])
def test_both_ways_write_the_same(
    spark: SparkSession,
    broker: pentalog.Broker,
    topic: str,
    tmp_path: Path,
    decode: dict[str, str],
) -> None:
    make_topic(broker.address("kafka"), topic)
    plain = [
        b'{"id":%d,"small":%d,"amount":%d.5,"name":"n","good":false}' % (n, n, n)
        for n in range(500)
    ]
    mixed = [*plain, *ODD, None, *plain, *(ODD[5::7] * 3), *plain]
    produce(broker.address("kafka"), topic, mixed, headers=[("cursus.seq", b"5")])
    both(spark, broker, topic, tmp_path, decode)
