"""Register: the model of a value that only one client writes."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.violation import Violation


class Register:
    """A value with one owner, who writes it in order: a committed offset, a version."""

    def __init__(self, name: str, initial: int) -> None:
        self.name = name
        self._values = [initial]
        self._certain = 0

    def attempt(self, value: int) -> int:
        """Returns the number by which `confirm` knows the attempt."""
        self._values.append(value)
        return len(self._values) - 1

    @property
    def certain(self) -> int:
        """The number of the oldest attempt that may still be the value."""
        return self._certain

    @property
    def underway(self) -> bool:
        """Is there an attempt of which it is not known what became of it?"""
        return self._certain < len(self._values) - 1

    def confirm(self, number: int) -> None:
        self._certain = max(self._certain, number)

    def forget(self, others: Iterable[Register]) -> None:
        """A power cut may have brought back any value, also of others of the same place."""
        self._values = [*(value for other in others for value in other._values), *self._values]
        self._certain = 0

    def observe(self, value: int, since: int) -> None:
        """Check what a client was told; `since` is what was certain when it asked."""
        possible = self._values[since:]
        if value not in possible:
            raise Violation(
                "committed value lost",
                f"{self.name} is {value}; confirmed {possible[0]}, then tried {possible[1:]}",
            )
        self.confirm(since + possible.index(value))
