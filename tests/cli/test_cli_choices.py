"""What a command line says about records, moments and brokers, read without a broker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentalog.cli import hex_view, profiles, record_filters, segments
from pentalog.cli.client import explained
from pentalog.cli.moments import parse_moment
from pentalog.cli.output import Misused
from pentalog.clients.kafka import groups
from pentalog.clients.kafka.errors import KafkaFailed
from pentalog.model import batch
from pentalog.model.types import Record

NOW_MS = 1_800_000_000_000


def wanted(record: Record, **given: object) -> bool:
    chosen = record_filters.wanted(
        **{  # type: ignore[arg-type]
            "grep": None, "keys": [], "headers": [], "where": [], "since_ms": None,
            "until_ms": None, **given,
        }
    )  # fmt: skip
    return chosen is None or chosen(record)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("user.id=7", True),
        (".user.id=7", True),
        ("$.user.id=7", True),
        ("user.id=8", False),
        ('items[1].name="milk"', True),
        ("items[1].name=milk", True),
        ("items[9].name=milk", False),
        ("items.name=milk", False),
        ('["odd key"]=1', True),
        ("open=true", True),
        ("open=1", False),
        ("none=null", True),
        ("absent=null", False),
        ('text="7"', True),
        ("text=7", True),
        ("a.b=1=2", False),
    ],
)
def test_places_in_json(path: str, found: bool) -> None:
    value = (
        b'{"user": {"id": 7}, "items": [{"name": "tea"}, {"name": "milk"}], "odd key": 1,'
        b' "open": true, "none": null, "text": "7"}'
    )
    assert wanted(Record(value), where=[path]) is found


@pytest.mark.parametrize("value", [None, b"", b"no json", b"7", b"[]", b"\xff"])
def test_what_is_no_object_has_no_places(value: bytes | None) -> None:
    assert not wanted(Record(value), where=["a=1"])


def test_all_conditions_must_hold() -> None:
    record = Record(b"tea time", b"k", (("h", b"1"), ("h", b"2")), NOW_MS)
    assert wanted(record)
    assert wanted(record, grep="t.a", keys=["x", "k"], headers=["h=2", "h"], since_ms=NOW_MS)
    assert wanted(record, grep="^2$")
    for given_ in (
        {"grep": "T.A"}, {"keys": ["x"]}, {"headers": ["h=3"]}, {"headers": ["g"]},
        {"since_ms": NOW_MS + 1}, {"until_ms": NOW_MS},
    ):  # fmt: skip
        assert not wanted(record, **given_)


@pytest.mark.parametrize(
    "given_", [{"grep": "("}, {"where": ["a"]}, {"where": ["=1"]}, {"headers": ["=1"]}]
)
def test_conditions_nobody_can_mean(given_: dict[str, object]) -> None:
    with pytest.raises(Misused):
        wanted(Record(b""), **given_)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW_MS),
        ("10m", NOW_MS - 600_000),
        ("-2h", NOW_MS - 7_200_000),
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000),
    ],
)
def test_moments(text: str, expected: int) -> None:
    assert parse_moment(text, "--since", now_ms=NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "10", "10x", "m"])
def test_moments_nobody_can_mean(text: str) -> None:
    with pytest.raises(Misused, match="--since"):
        parse_moment(text, "--since", now_ms=NOW_MS)


def test_bytes_as_people_read_them() -> None:
    lines = list(hex_view.lines(bytes(range(60, 80)), start=16, indent="  "))
    assert lines == [
        "  00000010  3c 3d 3e 3f 40 41 42 43  44 45 46 47 48 49 4a 4b  |<=>?@ABCDEFGHIJK|",
        "  00000020  4c 4d 4e 4f                                       |LMNO|",
    ]


@given(st.lists(st.integers(0, 400), max_size=3), st.integers(0, 30))
def test_segments_are_walked_whatever_is_damaged(
    tmp_path_factory: pytest.TempPathFactory, flips: list[int], cut: int
) -> None:
    data = bytearray()
    for number in range(4):
        built = batch.build([Record(b"%d" % number * 20)], timestamp_ms=5)
        built[:8] = number.to_bytes(8, "big")
        data += built
    sound = bytes(data)
    for bit in flips:
        data[bit % len(data)] ^= 1
    path = tmp_path_factory.mktemp("segment") / "00000000000000000000.log"
    path.write_bytes(bytes(data[: len(data) - cut]))
    with segments.walked(path) as found:
        kept = list(segments.headers(found))
        assert found.records == sum(header.records for _, header in kept) <= 4
        for position, header in kept:
            assert position % (len(sound) // 4) == 0
            assert header.records == 1
        if not flips and not cut:
            assert (found.batches, found.tail_bytes, found.damages) == (4, 0, ())


@given(st.binary(max_size=60))
def test_shares_of_members_may_hold_anything(data: bytes) -> None:
    assert isinstance(list(groups._assigned(data)), list)


def test_profiles_set_what_commands_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PENTALOG_SERVER", "before:1")
    monkeypatch.delenv("PENTALOG_LOGIN_PASSWORD", raising=False)
    (tmp_path / "password").write_text("open sesame\n")
    fields = {"server": "h:1", "user": 'o"p', "password_file": str(tmp_path / "password")}
    profiles.write({"odd name.": fields})
    assert profiles.read() == {"odd name.": fields}
    with profiles.chosen("odd name."):
        assert os.environ["PENTALOG_SERVER"] == "h:1"
        assert os.environ["PENTALOG_LOGIN_USER"] == 'o"p'
        assert os.environ["PENTALOG_LOGIN_PASSWORD"] == "open sesame"
    assert os.environ["PENTALOG_SERVER"] == "before:1"
    assert "PENTALOG_LOGIN_PASSWORD" not in os.environ
    profiles.path().write_text('[a]\nserver = "h:1"\ncolour = "red"\n')
    with pytest.raises(Misused, match="colour"):
        profiles.read()
    profiles.path().write_text("[a\n")
    with pytest.raises(Misused, match="correct it"):
        profiles.read()


def test_who_may_not_is_told_what_to_do() -> None:
    assert "acl add" in explained(KafkaFailed("writing was refused: TOPIC_AUTHORIZATION_FAILED"))
    assert "password" in explained(KafkaFailed("SASL_AUTHENTICATION_FAILED"))
    assert "profile" in explained(KafkaFailed("h:1 broke off: reset"))
    assert explained(KafkaFailed("other")) == "other"
