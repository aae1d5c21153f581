"""The log as text and as JSON."""

from __future__ import annotations

import json
import logging

import pytest

from pentalog.cli.logs import JsonLines, TextLines
from pentalog.config import ConfigError, LogFormat, load


def test_an_entry_is_one_object() -> None:
    record = logging.makeLogRecord(
        {"name": "pentalog.x", "levelname": "WARNING", "msg": "of %s\nü", "args": ("two lines",),
         "created": 1_700_000_000.25, "peer": "1.2.3.4:5"}
    )  # fmt: skip
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "logger": "pentalog.x",
        "message": "of two lines\nü",
        "peer": "1.2.3.4:5",
    }


def test_no_name_breaks_a_line_of_text() -> None:
    record = logging.makeLogRecord({"msg": "topic %s", "args": ("a\n\x1b[2J\u202eü",)})
    assert TextLines("%(message)s").format(record) == "topic a\\n\\x1b[2J\\u202eü"


def test_traces_are_in_the_object() -> None:
    try:
        raise ZeroDivisionError("oh")
    except ZeroDivisionError as error:
        trace = (type(error), error, error.__traceback__)
    entry = json.loads(JsonLines().format(logging.makeLogRecord({"exc_info": trace, "msg": "m"})))
    assert entry["exception"].endswith("ZeroDivisionError: oh")


def test_the_setting_is_read() -> None:
    assert load().config.log_format is LogFormat.TEXT
    assert load(environment={"PENTALOG_LOG_FORMAT": "JSON"}).config.log_format is LogFormat.JSON
    with pytest.raises(ConfigError, match="text or json"):
        load(flags={"log_format": "xml"})
