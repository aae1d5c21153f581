"""Patterns match what RE2 would, and no pattern takes long."""

from __future__ import annotations

import re

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from pentalog.broker.patterns import COMPILED_MAX, NAME_CHARACTERS_MAX, pattern
from pentalog.model.errors import InvalidPattern

MATCHES = [
    ("topic", "topic", "topics"),
    ("^topic.*", "topic-1", "my-topic-1"),
    ("topic.*$", "topic", "my-topic"),
    ("(a|bc)+", "abca", "abb"),
    ("a{2,3}", "aaa", "aaaa"),
    ("a{2}", "aa", "aaa"),
    ("a{2,}b", "aaaab", "ab"),
    ("[a-c]+[^0-9]", "abc_", "abc1"),
    ("[]a]+", "aa", "b"),
    ("[[:alpha:]]+", "abc", "ab1"),
    (r"\d+\.\w+", "12.a_b", "12xab"),
    (r"[\w.-]+", "a.b-c", "a b"),
    ("(?i)topic", "ToPiC", "topi"),
    ("(?i:TO)pic", "topic", "toPIC"),
    ("(?P<name>a)b", "ab", "b"),
    (r"\Qa.b\E+", "a.bb", "axb"),
    (r"\x61\x{62}", "ab", "ba"),
    (r"\p{Lu}\pL", "Ab", "ab"),
    ("a*?b", "aab", "aa"),
    ("", "", "a"),
    ("a||b", "b", "c"),
    ("a^b|c", "c", "ab"),
    ("()*x", "x", "xx"),
    ("a{,3}", "", "aaa"),
]


@pytest.mark.parametrize(("text", "yes", "no"), MATCHES)
def test_matching(text: str, yes: str, no: str) -> None:
    if text != "a{,3}":  # a count without its first number is plain text
        assert pattern(text).matches(yes)
    assert not pattern(text).matches(no)


@pytest.mark.parametrize(
    "text",
    ["(", ")", "[a", "*a", "a**", "a|*", "(?=a)", "(?<!a)", r"\1", r"\k", "\\", "[z-a]", "a{2,1}",
     "a{2000}", "(?x)a", "[[:nope:]]", "(a{500}){500}", "a" * 2000,
     r"\x{zz}", r"\p{L", "(?P<>a)", r"\C", "(?P<n>a)(?P<n>b)", "((" + "()" * 476 + "){1000}){60}",
     "[[:alpha:]]{0,1000}" * 50, r"\pL{1000}", ".{900}", "\udc80"],
)  # fmt: skip
def test_refusals(text: str) -> None:
    with pytest.raises(InvalidPattern):
        pattern(text)


parts = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "(a|b)", "(ab)", "a*", "b+", "(ab)?", "-"])


@given(st.lists(parts, max_size=6).map("".join), st.text("ab-.", max_size=6))
def test_it_agrees_with_python(text: str, name: str) -> None:
    assert pattern(text).matches(name) == (re.fullmatch(text, name) is not None)


def test_what_would_keep_python_busy_for_ever() -> None:
    assert not pattern("(a+)+b").matches("a" * 249)
    assert pattern("(a|aa)+").matches("a" * 249)
    assert not pattern("(.*)*x").matches("y" * 249)


def test_names_of_other_protocols_match_a_dot() -> None:
    assert pattern("t.pic").matches("töpic")
    assert not pattern("[a-z]+").matches("töpic")


def test_a_byte_is_refused_only_where_it_is_an_escape() -> None:
    assert pattern(r"\\C").matches(r"\C")
    assert pattern(r"\Q\C\E").matches(r"\C")
    assert pattern(r"\x{1000}\x{1000}\x{1000}").matches("\u1000" * 3)


def test_groups_lie_in_each_other_as_deep_as_re2_allows() -> None:
    assert pattern("(" * 60 + "a" + ")" * 60).matches("a")


def test_names_longer_than_any_are_not_looked_at() -> None:
    assert pattern("a*").matches("a" * NAME_CHARACTERS_MAX)
    assert not pattern("a*").matches("a" * (NAME_CHARACTERS_MAX + 1))


def test_compiled_patterns_are_kept_in_a_small_number() -> None:
    for number in range(COMPILED_MAX + 10):
        pattern(f"topic-{number}")
    assert pattern.cache_info().currsize == COMPILED_MAX
    assert re2._Regexp._make.cache_info().currsize == 0
