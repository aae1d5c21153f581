"""Refusals that come again and again: few lines, and every one counted."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from tests.support.runtimes import SteppedRuntime

from pentalog.broker.repetitions import (
    ENTRIES_MAX,
    LINES_ALL,
    LINES_MAX,
    OTHERS,
    WINDOW_MS,
    Repetitions,
)


class Book:
    def __init__(self) -> None:
        self.runtime = SteppedRuntime()
        self.lines: list[Mapping[str, str]] = []
        self.repetitions = Repetitions(self.runtime, self.lines.append)

    def refuse(self, what: str, who: str = "eve", host: str = "h") -> None:
        self.repetitions.say({"who": who, "host": host, "event": "denied", "what": what})

    @property
    def counted(self) -> int:
        return sum(int(line.get("repeated", 1)) for line in self.lines)


def test_a_hundred_are_written_at_once_and_the_others_at_the_end_of_the_minute() -> None:
    book = Book()
    for _ in range(LINES_MAX + 4):
        book.refuse("a")
    book.refuse("b")
    assert [line["what"] for line in book.lines] == ["a"] * LINES_MAX
    book.runtime.advance(WINDOW_MS)
    counted = [(line["what"], line["repeated"]) for line in book.lines[LINES_MAX:]]
    assert counted == [("a", "4"), ("b", "1")]
    book.refuse("a")
    assert book.lines[-1] == {"who": "eve", "host": "h", "event": "denied", "what": "a"}
    book.runtime.advance(2 * WINDOW_MS)
    assert len(book.lines) == LINES_MAX + 3


def test_who_asks_for_ever_new_things_takes_no_more_memory_and_is_counted() -> None:
    book = Book()
    asked = LINES_MAX + 2 * ENTRIES_MAX
    for number in range(asked):
        book.refuse(str(number))
    book.refuse("mine", who="alice")
    assert len(book.lines) == LINES_MAX + 1
    book.repetitions.close()
    assert len(book.lines) == LINES_MAX + 1 + ENTRIES_MAX + 1
    assert book.lines[-1]["what"] == OTHERS
    assert book.counted == asked + 1


def test_many_at_many_addresses_take_no_more_memory() -> None:
    book = Book()
    asked = 3 * ENTRIES_MAX
    for number in range(asked):
        book.refuse("a", host=str(number))
    assert len(book.lines) == ENTRIES_MAX
    book.repetitions.close()
    assert len(book.lines) == 2 * ENTRIES_MAX + 1
    assert book.counted == asked


def test_many_who_ask_often_get_no_more_than_all_may() -> None:
    book = Book()
    for host in range(2 * LINES_ALL // LINES_MAX):
        for _ in range(LINES_MAX):
            book.refuse("a", host=str(host))
    assert len(book.lines) == LINES_ALL
    book.repetitions.close()
    assert book.counted == 2 * LINES_ALL


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 40_000))))
def test_nothing_is_lost_from_the_count(refusals: list[tuple[str, str, int]]) -> None:
    book = Book()
    for what, who, later_ms in refusals:
        book.refuse(what, who)
        book.runtime.advance(later_ms)
    book.repetitions.close()
    assert book.counted == len(refusals)
