"""Places in topics: how they are written, named, shared out and missed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentalog.model.types import Partition
from pentalog.tables.options import OptionRefused, read_options
from pentalog.tables.positions import (
    LostRecords,
    check_start,
    from_json,
    resolve,
    shares,
    to_json,
)

A0, A1, B0 = Partition("a/b", 0), Partition("a/b", 1), Partition("c", 0)


class Places:
    """Every partition holds 10..100, one record a second."""

    def starts(self, at: Any) -> dict[Partition, int]:
        return dict.fromkeys(at, 10)

    def ends(self, at: Any) -> dict[Partition, int]:
        return dict.fromkeys(at, 100)

    def at_time(self, asked: Any) -> dict[Partition, int]:
        return {at: min(100, when // 1000) for at, when in asked.items()}


def resolved(*, ending: bool = False, **given: str) -> dict[Partition, int]:
    options = read_options({"servers": "x:1", "topics": "a/b,c", **given})
    origin: Any = Places()
    return resolve(origin, [A0, A1, B0], options, ending=ending)


def test_what_a_checkpoint_keeps_comes_back() -> None:
    places = {A0: 3, A1: 0, B0: 1 << 50}
    assert to_json(places) == {"a/b/0": 3, "a/b/1": 0, "c/0": 1 << 50}
    assert from_json(to_json(places)) == places


def test_places_are_named_in_every_way() -> None:
    assert resolved() == {A0: 10, A1: 10, B0: 10}
    assert resolved(ending=True) == {A0: 100, A1: 100, B0: 100}
    assert resolved(starting="latest") == {A0: 100, A1: 100, B0: 100}
    assert resolved(starting="1970-01-01T00:00:42") == {A0: 42, A1: 42, B0: 42}
    assert resolved(starting="1970-01-01T01:00:42+01:00") == {A0: 42, A1: 42, B0: 42}
    assert resolved(endingTimestampMs="30000", ending=True) == {A0: 30, A1: 30, B0: 30}
    nested = '{"a/b": {"0": 7, "1": "latest"}}'
    assert resolved(starting=nested) == {A0: 7, A1: 100, B0: 10}
    assert resolved(starting='{"a/b/1": 9, "c/0": 8}') == {A0: 10, A1: 9, B0: 8}


@pytest.mark.parametrize(
    "wrong", ["soon", "{", '{"c": {"7": 1}}', '{"c": {"0": -1}}', '{"c": {"x": 1}}', '{"c": []}']
)
def test_places_that_are_none_are_refused(wrong: str) -> None:
    with pytest.raises(OptionRefused, match="starting"):
        resolved(starting=wrong)


def test_what_is_gone_is_named() -> None:
    assert check_start(A0, 12, 10, fail=True) == 12
    assert check_start(A0, 3, 10, fail=False) == 10
    with pytest.raises(LostRecords, match=r"offsets 3\.\.9 are lost"):
        check_start(A0, 3, 10, fail=True)


@given(st.dictionaries(st.sampled_from([A0, A1, B0]), st.integers(0, 1000)), st.integers(1, 500))
def test_shares_are_never_more_than_allowed_and_waste_nothing(
    lags: dict[Partition, int], rows_max: int
) -> None:
    found = shares(lags, rows_max)
    assert sum(found.values()) == min(rows_max, sum(lags.values()))
    assert all(0 <= share <= lags[at] for at, share in found.items())
