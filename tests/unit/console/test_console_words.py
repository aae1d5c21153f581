"""What pages say of records, times, metrics and dead letters."""

from __future__ import annotations

import pytest

from pentalog.cli.console import command
from pentalog.config import Config, ConfigError, load
from pentalog.console.dead_letters import read_letter
from pentalog.console.history import History, Lags, Point, per_second
from pentalog.console.observed import Sample, parse_metrics
from pentalog.console.pages.charts import duration_text, short_number, size_text
from pentalog.console.pages.produce import partition_of
from pentalog.console.records import Row, full, hex_dump, kind_of, parse_time, short, time_text
from pentalog.model.types import Partition
from pentalog.session import Address


@pytest.mark.parametrize(
    ("data", "kind", "line"),
    [
        (None, "null", "null"),
        (b"", "empty", ""),
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b"12", "json", "12"),
        (b"12 apples", "text", "12 apples"),
        ("Grüße\n aus".encode(), "text", "Grüße aus"),
        (b"\x00\x01\xff", "binary", "00 01 ff"),
        (b"\x01\x02\x03", "binary", "01 02 03"),
    ],
)
def test_bytes_are_shown_as_what_they_are(data: bytes | None, kind: str, line: str) -> None:
    assert kind_of(data) == kind
    assert short(data) == line


def test_long_values_are_cut_and_said_to_be() -> None:
    assert short(b"x" * 500, 10) == "x" * 10 + "…"
    assert short(b"\xff" * 500, 30).endswith(" …")
    assert full(b"x" * (2 << 20)).endswith("bytes more")
    assert full(b'{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
    assert full(None) == "null"


def test_hex_is_shown_beside_what_can_be_read() -> None:
    assert hex_dump(b"ab\x00") == f"00000000  {'61 62 00':<47}  ab."


def test_times_are_written_and_read() -> None:
    assert time_text(1_700_000_000_123) == "2023-11-14 22:13:20.123"
    assert time_text(-1) == "no time"
    assert time_text(1 << 62) == f"{1 << 62} ms"
    assert parse_time("2023-11-14 22:13:20.123") == 1_700_000_000_123
    assert parse_time("2023-11-14T23:13:20.123+01:00") == 1_700_000_000_123
    assert parse_time(" 1700000000123 ") == 1_700_000_000_123
    with pytest.raises(ValueError, match="is no time; write"):
        parse_time("yesterday")


def test_numbers_are_short() -> None:
    assert [short_number(one) for one in (0, 12.34, 999, 1500, 2_000_000)] == [
        "0", "12.3", "999", "1.5 k", "2 M",
    ]  # fmt: skip
    assert [size_text(one) for one in (0, 1023, 1536)] == ["0 B", "1023 B", "1.5 KiB"]
    assert [duration_text(one) for one in (5, 120, 7200, 259_200)] == [
        "5 s", "2 min", "2.0 h", "3.0 days",
    ]  # fmt: skip


def test_metrics_are_read() -> None:
    text = '# HELP x y\nx_total 3\ny{door="kafka",topic="a\\"b"} 1.5\nbad\nz +Inf\n'
    assert parse_metrics(text) == [
        Sample("x_total", {}, 3.0),
        Sample("y", {"door": "kafka", "topic": 'a"b'}, 1.5),
        Sample("z", {}, float("inf")),
    ]


def rates(time_ms: int, records: int, started_ms: int = 1) -> dict[str, object]:
    door = {
        "door": "kafka", "listeners": {"kafka": "h:1"}, "connections": 2, "requests": 0,
        "received_records": records, "sent_records": 0, "received_bytes": 0, "sent_bytes": 0,
    }  # fmt: skip
    return {"time_ms": time_ms, "started_ms": started_ms, "doors": [door]}


def test_two_totals_make_a_rate_but_not_across_a_restart() -> None:
    history = History(Lags())
    history.note_rates(rates(1000, 10))
    assert not history.doors
    history.note_rates(rates(3000, 110))
    assert history.doors["kafka"][-1].rates["received_records"] == 50.0
    history.note_rates(rates(4000, 5, started_ms=2))
    assert len(history.doors["kafka"]) == 1
    assert per_second([Point(0, 1), Point(2000, 5), Point(3000, 2)]) == [
        Point(2000, 2.0),
        Point(3000, 0.0),
    ]


def test_lags_of_partitions_add_up() -> None:
    lags = Lags()
    history = History(lags)
    name = "pentalog_group_lag_records"
    history.note_metrics(
        1000,
        [
            Sample(name, {"group": "g", "topic": "t", "partition": "0"}, 3),
            Sample(name, {"group": "g", "topic": "t", "partition": "1"}, 4),
            Sample("pentalog_sync_seconds_bucket", {"le": "1"}, 9),
        ],
    )
    assert lags.note("group g", 1001, 99) == [Point(1000, 7)]
    assert len(history.series) == 2


@pytest.mark.parametrize("prefix", ["dead.", "pentalog."])
def test_letters_say_where_they_came_from(prefix: str) -> None:
    said = {"reason": b"expired", "topic": b"other", "partition": b"3", "offset": b"9"}
    notes = tuple((prefix + name, value) for name, value in said.items())
    row = Row(Partition("t.dlq", 0), 1, 2, None, b"v", (("own", b"x"), *notes), "kafka")
    letter = read_letter(row)
    assert (letter.reason, letter.source, letter.source_offset) == (
        "expired",
        Partition("other", 3),
        9,
    )
    bare = read_letter(row._replace(headers=()))
    assert (bare.reason, bare.source.topic) == ("not said", "t")


def test_keys_choose_partitions_as_kafka_clients_do() -> None:
    # From Kafka's own tests of its partitioner: murmur2 of "21" is -973932308.
    assert partition_of(b"21", 1000) == (-973932308 & 0x7FFFFFFF) % 1000
    assert partition_of(None, 7) == 0


def test_the_console_is_told_where_the_broker_is() -> None:
    config = load(flags={"data": "/d", "console_pipelines": "/a.toml,/b.toml"}).config
    addresses = {
        "kafka": Address("127.0.0.1", 1),
        "kafka+sasl+tls": Address("0.0.0.0", 2),
        "http": Address("::", 3),
    }
    words = command(config, addresses, "kafka+sasl+tls", "http")
    assert words[words.index("--servers") + 1] == "127.0.0.1:2"
    assert words[words.index("--http") + 1] == "[::1]:3"
    assert words[words.index("--pipelines") + 1] == "/a.toml"
    assert {"--login", "--tls", "--with-parent"} <= set(words)
    assert "--allow-open" not in words
    assert words[words.index("--session-idle-s") + 1] == "1800.0"


def test_the_console_is_told_its_names() -> None:
    advertise = "http=log.example:9644,kafka=kafka.example:9092"
    settings = {"data": "/d", "advertise": advertise, "allow_open_listeners": "true"}
    addresses = {"kafka": Address("127.0.0.1", 1), "http": Address("::", 3)}
    words = command(load(flags=settings).config, addresses, "kafka", "http")
    assert words.count("--name") == 1
    assert words[words.index("--name") + 1] == "log.example"
    assert "--allow-open" in words


def test_records_that_are_hard_to_show_are_shown_as_text() -> None:
    deep = b"[" * 900 + b"1," * 100_000 + b"1" + b"]" * 900
    assert len(full(deep)) < 8 << 20
    assert full(b"[" * 5000 + b"]" * 5000).startswith("[[[[")
    assert full(b'{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'


def test_the_address_is_read() -> None:
    assert Config().console == "127.0.0.1:9645"
    assert load(flags={"console": "[::1]:80"}).config.console == "[::1]:80"
    assert not load(flags={"console": "off"}).config.console.served
    assert not load(toml="console = false").config.console.served
    with pytest.raises(ConfigError, match=r"accepted is HOST:PORT, .* or off"):
        load(flags={"console": "nonsense"})
