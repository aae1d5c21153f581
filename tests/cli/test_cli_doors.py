"""`pentalog rustlog` and `pentalog blipmq`, as a user types them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
Start = Callable[..., "subprocess.Popen[bytes]"]
TIMEOUT_S = 180


def test_rustlog_writes_and_reads(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    lines = b"".join(b"line %d\n" % number for number in range(2500))
    done = json.loads(run("rustlog", "produce", topic, "--json", stdin=lines).stdout)
    assert done == {"topic": topic, "partition": 0, "records": 2500, "base_offset": 0}
    for dialect in ("binary", "json"):
        assert run("rustlog", "fetch", topic, "--dialect", dialect).stdout == lines
    last = run("rustlog", "fetch", topic, "--offset", "2499", "--json").stdout
    assert json.loads(last) == {"offset": 2499, "value": "line 2499", "timestamp_us": None}
    assert run("consume", topic).stdout == lines
    listed = json.loads(run("rustlog", "topics", "--json").stdout)
    assert {"name": topic, "partitions": 1} in listed
    assert b"# TYPE" in run("rustlog", "metrics").stdout
    assert "# TYPE" in json.loads(run("rustlog", "metrics", "--json").stdout)["metrics"]


def test_a_blipmq_listener_goes_on_where_it_stopped(run: Run, start: Start, topic: str) -> None:
    listener = start("blipmq", "listen", topic, "--count", "2")
    assert listener.stderr is not None
    found = re.fullmatch(rb"subscription (\d+)\n", listener.stderr.readline())
    assert found is not None
    run("blipmq", "publish", topic, stdin=b"one\ntwo\nthree\n")
    out, errors = listener.communicate(timeout=TIMEOUT_S)
    assert (listener.returncode, out) == (0, b"one\ntwo\n"), errors
    number = found[1].decode()
    more = run("blipmq", "listen", topic, "--subscription", number, "--count", "1", "--json")
    assert json.loads(more.stdout)["message"] == "three"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("rustlog", "produce", "t", "--server", "127.0.0.1:1"), 1, "pentalog start"),
        (("rustlog", "fetch", "absent-topic"), 1, "absent-topic"),
        (("rustlog", "topics", "--dialect", "latin"), 2, "binary, json"),
        (("rustlog", "topics", "--server", "nowhere"), 2, "nowhere"),
        (("blipmq", "publish", "t", "--server", "127.0.0.1:1"), 1, "pentalog start"),
        (("blipmq", "publish", "t", "--key", "wrong"), 1, "invalid API key"),
        (("blipmq", "publish", "t", "--qos", "2"), 2, "neither 0 nor 1"),
        (("blipmq", "listen", "t", "--count", "0"), 2, "1 or more"),
    ],
)
def test_what_goes_wrong_is_one_line(
    run: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    text = run(*arguments, stdin=b"x\n", code=code).stderr.decode()
    assert words in text
    assert text.startswith("pentalog: ")
    assert text.count("\n") == 1
