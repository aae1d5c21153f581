"""The verbs as a user types them, against a running broker."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
Start = Callable[..., "subprocess.Popen[bytes]"]
pytestmark = pytest.mark.clients


def lines(done: Any) -> list[str]:
    found: list[str] = done.lines
    return found


def test_a_topic_from_its_making_to_its_end(run: Run, topic: str) -> None:
    assert lines(run("topic", "create", topic, "--partitions", "3", "--set", "retention.ms=9000"))
    assert topic in {row["topic"] for row in json.loads(run("topic", "list", "--json").stdout)}
    assert f"{topic}\t3" in lines(run("topic", "list"))

    run("topic", "alter", topic, "--set", "cleanup.policy=compact", "--unset", "retention.ms")
    said = run("topic", "alter", topic, "--unset", "retention.sm", code=1).stderr.decode()
    assert "has no setting 'retention.sm'" in said
    run("topic", "alter", topic, "--partitions", "4")
    found = json.loads(run("topic", "describe", topic, "--json").stdout)
    assert found["overrides"] == ["cleanup.policy"]
    assert found["settings"]["cleanup.policy"] == "compact"
    empty = [{"partition": index, "start": 0, "end": 0} for index in range(4)]
    assert found["partitions"] == empty

    run("topic", "delete", topic)
    assert topic not in {row["topic"] for row in json.loads(run("topic", "list", "--json").stdout)}


def test_what_is_produced_is_consumed(run: Run, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "3")
    run("produce", topic, "--key-separator", ":", "--header", "h=1", stdin=b"a:1\nb:2\na:3\n")
    found = [json.loads(line) for line in lines(run("consume", topic, "--json"))]
    by_key = {(row["key"], row["value"]): row for row in found}
    assert set(by_key) == {("a", "1"), ("b", "2"), ("a", "3")}
    assert by_key["a", "1"]["partition"] == by_key["a", "3"]["partition"]
    assert by_key["a", "1"]["offset"] < by_key["a", "3"]["offset"]
    assert all(row["headers"] == [["h", "1"]] for row in found)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_round_trips(run: Run, topic: str, codec: str) -> None:
    sent = b"".join(b"line %d\n" % number for number in range(30_000))
    run("topic", "create", topic)
    run("produce", topic, "--compression", codec, stdin=sent)
    assert run("consume", topic).stdout == sent


def test_json_feeds_back_byte_for_byte(run: Run, topic: str) -> None:
    sent = [
        {"key": None, "value": "text", "headers": [], "timestamp": 1700000000001},
        {"key": "", "value": None, "headers": [["x", None], ["x", ""]], "timestamp": 1},
        {"key_base64": "/w==", "value_base64": "/wA=", "headers": [["b", {"base64": "/w=="}]]},
    ]
    text = "".join(json.dumps(record) + "\n" for record in sent).encode()
    run("topic", "create", topic, "--set", "retention.ms=-1")  # they are years old
    summary = json.loads(run("produce", topic, "--json", stdin=text).stdout)
    assert summary == {"topic": topic, "records": 3, "offsets": {"0": 3}}
    first = run("consume", topic, "--json").stdout

    run("topic", "create", f"{topic}-copy", "--set", "retention.ms=-1")
    run("produce", f"{topic}-copy", "--json", stdin=first)
    second = run("consume", f"{topic}-copy", "--json").stdout
    assert second.replace(f"{topic}-copy".encode(), topic.encode()) == first
    for expected, line in zip(sent, first.splitlines(), strict=True):
        assert expected.items() <= json.loads(line).items()


def test_where_to_start_and_to_stop(run: Run, topic: str) -> None:
    records = [
        {"value": str(number), "timestamp": 1_700_000_000_000 + number} for number in range(20)
    ]
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    run("topic", "create", topic, "--set", "retention.ms=-1")  # they are years old
    run("produce", topic, "--json", stdin=text)

    def values(*arguments: str) -> list[int]:
        return [int(line) for line in lines(run("consume", topic, *arguments))]

    assert values() == list(range(20))
    assert values("--from", "7", "--to", "9") == [7, 8]
    assert values("--from", "-3") == [17, 18, 19]
    assert values("--from", "end") == []
    assert values("--from", "1700000000015") == [15, 16, 17, 18, 19]
    assert values("--from", "2023-11-14T22:13:20.018+00:00") == [18, 19]
    assert values("--to", "1700000000002") == [0, 1]
    assert values("--from", "-1h") == []
    assert values("--count", "2") == [0, 1]
    assert values("--count", "0") == []
    assert values("--partition", "0", "--from", "19") == [19]


def test_format(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    run("produce", topic, "--key", "k", "--header", "a=1", "--header", "b=2", stdin=b"hello\n")
    layout = "%t|%p|%o|%k|%v|%h|%K|%S|100%%\\n"
    expected = f"{topic}|0|0|k|hello|a=1,b=2|1|5|100%\n".encode()
    assert run("consume", topic, "--format", layout).stdout == expected


def test_following_ends_cleanly_on_interrupt(run: Run, start: Start, topic: str) -> None:
    run("topic", "create", topic)
    follower = start("consume", topic, "--follow")
    assert follower.stdout is not None
    for number in (1, 2):
        run("produce", topic, stdin=b"%d\n" % number)
        assert follower.stdout.readline() == b"%d\n" % number
    follower.send_signal(signal.SIGINT)
    rest, errors = follower.communicate(timeout=30)
    assert (follower.returncode, rest, errors) == (0, b"", b"")


def test_a_reader_that_leaves_is_no_error(run: Run, start: Start, topic: str) -> None:
    run("topic", "create", topic)
    run("produce", topic, stdin=b"x" * 50 + b"\n" + b"some line of text\n" * 60_000)
    reader = start("consume", topic)
    assert reader.stdout is not None
    assert reader.stderr is not None
    assert reader.stdout.readline() == b"x" * 50 + b"\n"
    reader.stdout.close()
    assert reader.stderr.read() == b""
    assert reader.wait(30) == 0


def test_lines_leave_while_stdin_stays_open(run: Run, start: Start, topic: str) -> None:
    run("topic", "create", topic)
    writer = start("produce", topic)
    assert writer.stdin is not None
    writer.stdin.write(b"first\nhalf")
    writer.stdin.flush()
    assert lines(run("consume", topic, "--follow", "--count", "1")) == ["first"]
    writer.stdin.close()
    assert writer.wait(30) == 0
    assert lines(run("consume", topic, "--from", "1")) == ["half"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("consume", "no-such-topic"), 1, "does not exist"),
        (("consume", "t", "--from", "yesterday"), 2, "is none of"),
        (("consume", "t", "--json", "--format", "%v"), 2, "exclude each other"),
        (("produce", "t", "--compression", "zip"), 2, "none, gzip, snappy, lz4, zstd"),
        (("produce", "t", "--acks", "2"), 2, "0, 1, all"),
        (("topic", "create", "a/b"), 1, "was refused"),
        (("topic", "create", "t", "--set", "oops"), 2, "NAME=VALUE"),
        (("topic", "delete", "no-such-topic"), 1, "was refused"),
        (("topic", "list", "--server", "127.0.0.1:1"), 1, "cannot reach 127.0.0.1:1"),
        (("topic", "list", "--server", "nonsense"), 2, "HOST:PORT"),
    ],
)
def test_errors_are_one_line_and_a_code(
    run: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    errors = run(*arguments, code=code).said
    assert words in errors
    assert len(errors.splitlines()) == 1


def test_a_bad_line_says_how_far_it_came(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    text = b'{"value": "1"}\n{"value": "2"}\n{"nonsense": 1}\n'
    errors = run("produce", topic, "--json", stdin=text, code=1).stderr.decode()
    assert "line 3" in errors
    assert "2 records before it were written" in errors
    assert lines(run("consume", topic)) == ["1", "2"]
