"""Patterns match what RE2 would, and no pattern takes long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentalog.broker.patterns import pattern
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
     r"\x{zz}", r"\p{L", "(?P<>a)"],
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
