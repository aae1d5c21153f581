"""What `pentalog sql` reads and writes, without Spark."""

from __future__ import annotations

import datetime
import decimal
import io

import pytest

from pentalog.cli import prompt, refusals, sql


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" ; ;", []),
        ("select 1", ["select 1"]),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("select ';', \";\", `a;b`; x", ["select ';', \";\", `a;b`", "x"]),
        (r"select 'it\'s; one'; y", [r"select 'it\'s; one'", "y"]),
        ("select 1 -- a; b\n; c", ["select 1 -- a; b", "c"]),
        ("select /* ; */ 1; c", ["select /* ; */ 1", "c"]),
        ("select 'open; end", ["select 'open; end"]),
        ("select 1 -- open; end", ["select 1 -- open; end"]),
    ],
)
def test_statements_end_at_semicolons(text: str, expected: list[str]) -> None:
    assert list(sql.statements(text)) == expected


def test_cells_as_text() -> None:
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5, 6)
    assert sql.text_of(moment) == "2024-01-02 03:04:05.000006"
    assert sql.text_of(decimal.Decimal("1.50")) == "1.50"
    assert sql.text_of(bytearray(b"a\xff")) == "a\\xff"
    assert sql.text_of([b"x", None, {"k": True}]) == '["x", null, {"k": true}]'
    assert sql.text_of(1.5) == "1.5"
    assert [sql.plain(float(one)) for one in ("nan", "-inf")] == ["NaN", "-Infinity"]


def test_csv_quotes_what_it_must() -> None:
    out = io.StringIO()
    sql._print(["a", "b,c"], [(1, 'say "x"'), (None, "two\nlines")], "csv", out)
    assert out.getvalue() == 'a,"b,c"\n1,"say ""x"""\n,"two\nlines"\n'


def test_tables_are_not_cut_in_a_pipe() -> None:
    out = io.StringIO()
    sql._print(["wide"], [("x" * 300,), ("[bold]y",)], "table", out)
    assert "x" * 300 in out.getvalue()
    assert "[bold]y" in out.getvalue()


def test_suggestions_continue_the_word() -> None:
    known = ["topic.orders", "topic.`a-b`", "table.orders"]
    assert prompt.suggestions("select * from to", known) == [
        ("topic.orders", 2),
        ("topic.`a-b`", 2),
    ]
    assert prompt.suggestions("select * from topic.`a", known) == [("topic.`a-b`", 8)]
    assert ("select", 3) in prompt.suggestions("SEL", known)
    assert prompt.suggestions("select ", known) == []


def test_reasons_are_one_line() -> None:
    analysis = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. "
        "SQLSTATE: 42703; line 1 pos 7;\n'Project ['x]\n+- Range (0, 1)\n"
    )
    assert refusals.reason(analysis).endswith("cannot be resolved.")
    worker = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n"
        '  File "/x/worker.py", line 98, in main\n    read()\n'
        "pentalog.tables.options.OptionRefused: topic 'a' does not exist; there are: b\n"
        " SQLSTATE: 38000\n\tat org.apache.spark.X: y"
    )
    assert refusals.reason(worker) == "topic 'a' does not exist; there are: b"
    inner = (
        "[STREAM_FAILED] Return Message: Traceback (most recent call last):\n"
        '  File "/x/job.py", line 176, in take\n    written = self.write(rows)\n'
        "pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the"
        " Python worker:\nTraceback (most recent call last):\n"
        '  File "/x/orders.py", line 3, in udf\n    return prices[one]\n'
        "KeyError: 'EUR'\n SQLSTATE: 38000\n"
    )
    assert refusals.reason(inner) == "KeyError: 'EUR'"
    rule = (
        "[STREAM_FAILED] Query terminated with exception: Job aborted due to stage failure: Task 0"
        " in stage 3.0 failed: org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION]"
        " RuleBroken: pipeline p stops at orders/0 offset 20: rule 1: not id >= 0 SQLSTATE: P0001\n"
        "\tat org.apache.spark.X: y"
    )
    assert refusals.reason(rule) == "pipeline p stops at orders/0 offset 20: rule 1: not id >= 0"
    stream = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: no space left "
        "SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: orders\n\nCurrent State: ACTIVE\n"
    )
    assert refusals.reason(stream).endswith("terminated with exception: no space left")
    assert "\n" not in refusals.reason(stream)
