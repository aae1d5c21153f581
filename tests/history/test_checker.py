"""The checker finds each anomaly in a history that somebody made up, and nothing in a good one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.history.checker import (
    Attempt,
    Fate,
    History,
    Reading,
    Received,
    Written,
    anomalies,
    copy_anomalies,
    counts,
)

OK, NO, WHO_KNOWS = Fate.ACKNOWLEDGED, Fate.FAILED, Fate.UNKNOWN


def good() -> History:
    """A plain producer, a committed, an aborted and an undecided transaction, two readers."""
    return History(
        [
            Attempt("plain", False, [Written(0, "p0", 0, OK), Written(0, "p1", 1, OK)]),
            Attempt("one", True, [Written(0, "a0", 2, OK), Written(1, "a1", 0, OK)], OK),
            Attempt("two", True, [Written(0, "b0", 4, OK), Written(1, "b1", 2, OK)], NO),
            Attempt("one", True, [Written(0, "c0", 6, OK), Written(1, "c1")], WHO_KNOWS),
            Attempt("plain", False, [Written(1, "p2", fate=NO), Written(0, "p3", 8, OK)]),
        ],
        [
            Reading("committed", True, [session("p0@0", "p1@1", "a0@2", "1:a1@0", "p3@8")], True),
            Reading(
                "all",
                False,
                [session("p0@0", "p1@1", "a0@2", "1:a1@0", "b0@4", "1:b1@2", "c0@6", "p3@8")],
                True,
            ),
            Reading("live", True, [session("p0@0"), session("p0@0", "p1@1"), session("1:a1@0")]),
        ],
    )


def session(*texts: str) -> list[Received]:
    """Records from `value@offset`, with `partition:` before it when that is not 0."""
    found = []
    for text in texts:
        partition, _, rest = text.rpartition(":")
        value, _, offset = rest.partition("@")
        found.append(Received(int(partition or 0), int(offset), value))
    return found


def test_a_good_history_is_left_alone() -> None:
    assert anomalies(good()) == []
    assert counts(good()) == {
        "records": 10,
        "committed": 1,
        "aborted": 1,
        "unknown": 1,
        "received": 17,
    }


def test_an_undecided_transaction_may_be_there_entirely() -> None:
    history = good()
    for reading in history.readings[:2]:
        reading.sessions[0] = [
            *(one for one in reading.sessions[0] if one.value not in ("c0", "p3")),
            *session("c0@6", "1:c1@4", "p3@8"),
        ]
    assert anomalies(history) == []


def lost_plain(history: History) -> None:
    for reading in history.readings[:2]:
        reading.sessions[0] = [one for one in reading.sessions[0] if one.value != "p3"]


def lost_transaction(history: History) -> None:
    gone = ("a0", "a1")
    history.readings[0].sessions[0] = [
        one for one in history.readings[0].sessions[0] if one.value not in gone
    ]


def duplicated(history: History) -> None:
    history.readings[0].sessions[0] += session("p1@9")


def duplicated_in_another_partition(history: History) -> None:
    history.readings[2].sessions[0] += session("1:p0@7")


def reordered(history: History) -> None:
    history.attempts[0].records = [Written(0, "p1", None, OK), Written(0, "p0", None, OK)]


def reordered_between_transactions(history: History) -> None:
    history.attempts[1].records[0].offset = None
    history.readings[2].sessions = [session("c0@1", "a0@2")]
    history.readings[0].sessions[0].insert(0, session("c0@1")[0])


def torn(history: History) -> None:
    history.readings[0].sessions[0].insert(4, session("c0@6")[0])


def torn_commit(history: History) -> None:
    history.readings[0].sessions[0] = [
        one for one in history.readings[0].sessions[0] if one.value != "a1"
    ]


def aborted_but_seen(history: History) -> None:
    history.readings[2].sessions += [session("1:b1@2")]


def non_monotonic(history: History) -> None:
    history.readings[2].sessions[1] += session("p0@0")


def repeated(history: History) -> None:
    history.readings[2].sessions[0] += session("p0@0")


def offset_told_twice(history: History) -> None:
    history.attempts[4].records[1].offset = 6


def offset_read_twice(history: History) -> None:
    history.readings[2].sessions += [session("p3@1")]


def moved(history: History) -> None:
    history.attempts[0].records[1].offset = 3


def invented(history: History) -> None:
    history.readings[2].sessions += [session("nobody@12")]


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lost_plain, "lost"),
        (lost_transaction, "lost"),
        (duplicated, "duplicated"),
        (duplicated_in_another_partition, "duplicated"),
        (reordered, "reordered"),
        (reordered_between_transactions, "reordered"),
        (torn, "torn"),
        (torn_commit, "torn"),
        (aborted_but_seen, "aborted but seen"),
        (non_monotonic, "non-monotonic poll"),
        (repeated, "non-monotonic poll"),
        (offset_told_twice, "offset reused"),
        (offset_read_twice, "offset reused"),
        (moved, "moved"),
        (invented, "invented"),
    ],
)
def test_every_anomaly_is_found(spoil: Callable[[History], None], name: str) -> None:
    history = good()
    spoil(history)
    assert any(found.startswith(name) for found in anomalies(history)), anomalies(history)


@pytest.mark.parametrize(
    ("copied", "name"),
    [
        (["a@0", "b@1", "1:c@0"], ""),
        (["1:c@5", "a@3", "b@7"], ""),
        (["a@0", "1:c@0"], "copy lost: b"),
        (["a@0", "b@1", "b@2", "1:c@0"], "copy duplicated: b"),
        (["b@0", "a@1", "1:c@0"], "copy reordered"),
        (["a@0", "b@1", "1:c@0", "1:d@1"], "copy invented: d"),
        ([], "copy lost: a"),
    ],
)
def test_copies_are_compared(copied: list[str], name: str) -> None:
    source = Reading("source", True, [session("a@0", "b@1", "1:c@0")])
    found = copy_anomalies(source, Reading("copy", True, [session(*copied)]))
    if name:
        assert found[0].startswith(name)
    else:
        assert found == []
