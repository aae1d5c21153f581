"""Who is logged in by what, so that he is out as soon as that is taken back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

PASSWORD: Final = "password"
KEY: Final = "key"
TOKEN: Final = "token"


class Proof(NamedTuple):
    """What somebody logged in by."""

    kind: str
    """One of these, or the name of the mechanism whose verifier it was."""
    name: str
    """The user's name, the key's fingerprint or the token's id."""


class Logins:
    """The open ones; each leaves when its connection does, or logs in anew."""

    __slots__ = ("_ends", "_entered")

    def __init__(self, entered: Callable[[Proof], None] | None = None) -> None:
        """`entered` is told by what somebody has just logged in."""
        self._entered = entered
        self._ends: dict[Proof, dict[object, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._ends.values()))

    def proofs(self) -> Collection[Proof]:
        return self._ends.keys()

    def enter(self, proof: Proof, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` when the proof is good no more; what is returned takes that back."""
        mark = object()
        self._ends.setdefault(proof, {})[mark] = end
        if self._entered is not None:
            self._entered(proof)

        def leave() -> None:
            ends = self._ends.get(proof)
            if ends is not None:
                ends.pop(mark, None)
                if not ends:
                    del self._ends[proof]

        return leave

    def end(self, proof: Proof) -> None:
        """End the logins by what has been revoked."""
        for end in self._ends.pop(proof, {}).values():
            end()

    def end_unless(self, good: Callable[[Proof], bool]) -> None:
        """Something has changed: end those by what is good no more."""
        for proof in [proof for proof in self._ends if not good(proof)]:
            self.end(proof)
