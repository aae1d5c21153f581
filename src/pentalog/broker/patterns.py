"""Regular expressions over topic names, in time proportional to the name.

The syntax is RE2's.  Python's own expressions go back and try again, so a client could make one
that takes hours; these are run as automata over the few characters a topic name may have.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from pentalog.model.errors import InvalidPattern

LENGTH_MAX: Final = 1024
STATES_MAX: Final = 5_000
REPEATS_MAX: Final = 1_000
DEPTH_MAX: Final = 50

_OTHER: Final = "\0"
"""Stands for every character that Kafka's topic names do not have, and others' may."""
_ALPHABET: Final = frozenset(string.ascii_letters + string.digits + "._-" + _OTHER)
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_") & _ALPHABET
_DIGIT: Final = frozenset(string.digits)
_NONE: Final[frozenset[str]] = frozenset()
_CLASSES: Final = {"d": _DIGIT, "w": _WORD, "s": _NONE}
_POSIX: Final = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": _ALPHABET,
    "blank": _NONE,
    "cntrl": _NONE,
    "digit": _DIGIT,
    "graph": _ALPHABET,
    "lower": frozenset(string.ascii_lowercase),
    "print": _ALPHABET,
    "punct": frozenset("._-"),
    "space": _NONE,
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CONTROLS: Final = frozenset("tnrfva")


@dataclass(frozen=True, slots=True)
class _Set:
    characters: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Edge:
    begin: bool


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


_Node: TypeAlias = _Set | _Edge | _Sequence | _Choice | _Repeat


class Pattern:
    """A compiled expression; a name matches if all of it does."""

    __slots__ = ("_accepting", "_machine", "_next", "_start")

    def __init__(self, text: str) -> None:
        self._machine = _Machine()
        self._machine.compile(_Parser(text).parse())
        self._start = self._machine.closure({0}, begin=True)
        self._next: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._accepting: dict[frozenset[int], bool] = {}

    def matches(self, name: str) -> bool:
        states = self._start
        for character in name:
            key = (states, character if character in _ALPHABET else _OTHER)
            after = self._next.get(key)
            if after is None:
                if len(self._next) >= STATES_MAX:
                    self._next.clear()
                after = self._next[key] = self._machine.step(*key)
            states = after
            if not states:
                return False
        accepted = self._accepting.get(states)
        if accepted is None:
            if len(self._accepting) >= STATES_MAX:
                self._accepting.clear()
            accepted = self._accepting[states] = self._machine.ends(states, empty=not name)
        return accepted


@lru_cache(maxsize=256)
def pattern(text: str) -> Pattern:
    """Compile, or raise `InvalidPattern`."""
    return Pattern(text)


class _Parser:
    """Text to nodes, by descent."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise InvalidPattern(
                f"a pattern of {len(text)} characters; at most {LENGTH_MAX} are accepted"
            )
        self._text = text
        self._at = 0
        self._depth = 0
        self._fold = False

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise self._flaw("a closing parenthesis without an opening one")
        return node

    def _flaw(self, what: str) -> InvalidPattern:
        shown = self._text[:100]
        return InvalidPattern(
            f"pattern {shown!r} has {what} at character {self._at}; accepted is RE2's syntax"
        )

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if self._peek(text):
            self._at += len(text)
            return True
        return False

    def _character(self, missing: str) -> str:
        if self._at >= len(self._text):
            raise self._flaw(missing)
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> _Node:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and not self._peek("|") and not self._peek(")"):
            parts += self._repeated()
        return _Sequence(tuple(parts))

    def _repeated(self) -> list[_Node]:
        atoms = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return atoms
        if not atoms:
            raise self._flaw("nothing to repeat")
        self._take("?")
        if self._bounds() is not None:
            raise self._flaw("a repetition of a repetition without parentheses")
        return [*atoms[:-1], _Repeat(atoms[-1], *bounds)]

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self._peek("{"):
            return None
        inside, closed, _ = self._text[self._at + 1 :].partition("}")
        least, comma, most = inside.partition(",")
        if not closed or not _number(least) or (most and not _number(most)):
            return None
        self._at += len(inside) + 2
        low = int(least)
        high = int(most) if most else (None if comma else low)
        if max(low, high or 0) > REPEATS_MAX or (high is not None and high < low):
            raise self._flaw(f"a repetition that is not 0..{REPEATS_MAX} in order")
        return low, high

    def _atom(self) -> list[_Node]:
        character = self._character("nothing")
        if character in "*+?":
            self._at -= 1
            raise self._flaw("nothing to repeat")
        if character == "(":
            return self._group()
        if character == "[":
            return [self._bracket()]
        if character == ".":
            return [_Set(_ALPHABET)]
        if character in "^$":
            return [_Edge(character == "^")]
        if character == "\\":
            return self._escape()
        return [self._set({character})]

    def _set(self, characters: Iterable[str]) -> _Set:
        found = set(characters)
        if self._fold:
            found |= {c.lower() for c in found} | {c.upper() for c in found}
        return _Set(_ALPHABET & found)

    def _group(self) -> list[_Node]:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._flaw(f"more than {DEPTH_MAX} groups in each other")
        fold = self._fold
        if self._take("?") and self._opening():
            # Flags without a group: they hold for the rest of the group around them.
            self._depth -= 1
            return []
        node = self._choice()
        if not self._take(")"):
            raise self._flaw("no closing parenthesis")
        self._fold = fold
        self._depth -= 1
        return [node]

    def _opening(self) -> bool:
        """What follows `(?`; True if it was flags alone."""
        for sign in ("P<", "<"):
            if not self._peek(sign):
                continue
            self._at += len(sign)
            name, closed, _ = self._text[self._at :].partition(">")
            if not closed or not name.isidentifier():
                raise self._flaw("a group without a proper name")
            self._at += len(name) + 1
            return False
        value = True
        while True:
            flag = self._character("no closing parenthesis")
            if flag == "i":
                self._fold = value
            elif flag == "-":
                value = False
            elif flag == ":":
                return False
            elif flag == ")":
                return True
            elif flag not in "msU":
                self._at -= 1
                raise self._flaw("an unknown kind of group")

    def _escape(self) -> list[_Node]:
        if self._take("Q"):
            quoted, closed, _ = self._text[self._at :].partition("\\E")
            self._at += len(quoted) + (2 if closed else 0)
            return [self._set({character}) for character in quoted]
        if self._take("A"):
            return [_Edge(True)]
        if self._take("z"):
            return [_Edge(False)]
        return [self._set(self._escaped())]

    def _escaped(self) -> frozenset[str]:
        """The characters meant by what follows a backslash, in a class or outside."""
        character = self._character("nothing behind a backslash")
        if character.lower() in _CLASSES:
            named = _CLASSES[character.lower()]
            return named if character.islower() else _ALPHABET - named
        if character in "pP":
            return self._category(negated=character == "P")
        if character == "x":
            return frozenset(self._hexadecimal())
        if character in _CONTROLS:
            return _NONE
        if character.isalnum():
            self._at -= 1
            raise self._flaw(f"an unknown escape {character!r}")
        return frozenset(character)

    def _category(self, *, negated: bool) -> frozenset[str]:
        if self._take("{"):
            name, closed, _ = self._text[self._at :].partition("}")
            if not closed:
                raise self._flaw("an unfinished class")
            self._at += len(name) + 1
        else:
            name = self._character("an unfinished class")
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        named = frozenset(c for c in _ALPHABET if unicodedata.category(c).startswith(name))
        return _ALPHABET - named if negated else named

    def _hexadecimal(self) -> str:
        if self._take("{"):
            digits, closed, _ = self._text[self._at :].partition("}")
            used = len(digits) + 1
        else:
            digits, closed, used = self._text[self._at : self._at + 2], "}", 2
        if not closed or not digits or not set(digits) <= set(string.hexdigits):
            raise self._flaw("a character number that is not hexadecimal")
        if int(digits, 16) > 0x10FFFF:
            raise self._flaw("a character number that is too high")
        self._at += used
        return chr(int(digits, 16))

    def _bracket(self) -> _Set:
        negated = self._take("^")
        found: set[str] = set()
        first = True
        while first or not self._take("]"):
            first = False
            if self._peek("[:"):
                found |= self._posix()
                continue
            low = self._member()
            if self._peek("-") and not self._peek("-]"):
                self._at += 1
                high = self._member()
                if len(low) != 1 or len(high) != 1 or max(low) > max(high):
                    raise self._flaw("a range that has no order")
                found |= {c for c in _ALPHABET if max(low) <= c <= max(high)}
            else:
                found |= low
        folded = self._set(found)
        return _Set(_ALPHABET - folded.characters) if negated else folded

    def _member(self) -> frozenset[str]:
        character = self._character("a class without its bracket")
        return self._escaped() if character == "\\" else frozenset(character)

    def _posix(self) -> frozenset[str]:
        name, closed, _ = self._text[self._at + 2 :].partition(":]")
        negated = name.startswith("^")
        named = _POSIX.get(name.removeprefix("^"))
        if not closed or named is None:
            raise self._flaw("an unknown class")
        self._at += len(name) + 4
        return _ALPHABET - named if negated else named


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


@dataclass(slots=True)
class _State:
    characters: frozenset[str] = _NONE
    following: int = -1
    jumps: list[int] = field(default_factory=list)
    at_begin: list[int] = field(default_factory=list)
    at_end: list[int] = field(default_factory=list)


class _Machine:
    """States with jumps between them; 0 is the first one, the last to be made accepts."""

    def __init__(self) -> None:
        self._states = [_State()]
        self._accept = 0

    def compile(self, node: _Node) -> None:
        self._accept = self._add(node, 0)

    def step(self, states: Iterable[int], character: str) -> frozenset[int]:
        reached = {
            self._states[number].following
            for number in states
            if character in self._states[number].characters
        }
        return self.closure(reached)

    def ends(self, states: Iterable[int], *, empty: bool) -> bool:
        return self._accept in self.closure(set(states), begin=empty, end=True)

    def closure(
        self, states: set[int], *, begin: bool = False, end: bool = False
    ) -> frozenset[int]:
        waiting = list(states)
        while waiting:
            state = self._states[waiting.pop()]
            reached = list(state.jumps)
            if begin:
                reached += state.at_begin
            if end:
                reached += state.at_end
            for number in reached:
                if number not in states:
                    states.add(number)
                    waiting.append(number)
        return frozenset(states)

    def _new(self) -> int:
        if len(self._states) >= STATES_MAX:
            raise InvalidPattern(
                f"the pattern needs more than {STATES_MAX} states: repeat less in it"
            )
        self._states.append(_State())
        return len(self._states) - 1

    def _add(self, node: _Node, start: int) -> int:
        """Append a node's states behind `start`; returns where it ends."""
        if isinstance(node, _Sequence):
            for part in node.parts:
                start = self._add(part, start)
            return start
        if isinstance(node, _Repeat):
            return self._add_repeat(node, start)
        end = self._new()
        if isinstance(node, _Choice):
            for part in node.parts:
                entry = self._new()
                self._states[start].jumps.append(entry)
                self._states[self._add(part, entry)].jumps.append(end)
        elif isinstance(node, _Edge):
            state = self._states[start]
            (state.at_begin if node.begin else state.at_end).append(end)
        else:
            entry = self._new()
            self._states[start].jumps.append(entry)
            self._states[entry].characters = node.characters
            self._states[entry].following = end
        return end

    def _add_repeat(self, node: _Repeat, start: int) -> int:
        for _ in range(node.least):
            start = self._add(node.part, start)
        if node.most is None:
            entry, end = self._new(), self._new()
            self._states[start].jumps += [entry, end]
            self._states[self._add(node.part, entry)].jumps += [entry, end]
            return end
        ends = [start]
        for _ in range(node.most - node.least):
            entry = self._new()
            self._states[start].jumps.append(entry)
            start = self._add(node.part, entry)
            ends.append(start)
        end = self._new()
        for number in ends:
            self._states[number].jumps.append(end)
        return end
