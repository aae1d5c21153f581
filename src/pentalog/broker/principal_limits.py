"""Limits that all clients share, of which no single principal can take everything.

A count or a number of bytes is charged to an owner: the principal of the client (`Access.owner`),
and its address too where it has not logged in, because all such clients are one principal.  An
empty owner is the broker itself, or what an earlier life of it has left: it counts for the total
only.
"""

from __future__ import annotations

from pentalog.model.errors import BrokerError, Overloaded


class PrincipalLimits:
    """Counts one kind of thing, in total and by owner; raises before either is exceeded."""

    __slots__ = ("_by_owner", "_refusal", "_setting", "_share", "_total", "_used", "_what")

    def __init__(
        self,
        what: str,
        total: int,
        *,
        share_percent: int,
        setting: str,
        refusal: type[BrokerError] = Overloaded,
    ) -> None:
        """`what` names the things in messages, `setting` what an operator can raise."""
        self._what = what
        self._setting = setting
        self._refusal = refusal
        self._total = total
        self._share = max(1, -(-total * share_percent // 100))
        self._used = 0
        self._by_owner: dict[str, int] = {}

    @property
    def used(self) -> int:
        return self._used

    def used_by(self, owner: str) -> int:
        return self._by_owner.get(owner, 0)

    def check(self, owner: str, amount: int = 1) -> None:
        """Raise the refusal if so much more does not fit."""
        if amount <= 0:
            return
        if self._used + amount > self._total:
            raise self._refusal(
                f"{self._what}: {self._used} of {self._total} are in use and {amount} more do not "
                f"fit: remove some, or raise {self._setting}"
            )
        if owner and self.used_by(owner) + amount > self._share:
            raise self._refusal(
                f"{self._what}: {owner[:260]} has {self.used_by(owner)} of the {self._share} that "
                f"one principal may have and {amount} more do not fit: remove some, or raise "
                f"{self._setting} or principal_share_percent"
            )

    def add(self, owner: str, amount: int = 1) -> None:
        """Count so much more, which `check` has passed or which is there already."""
        self._used += amount
        if owner and amount:
            self._by_owner[owner] = self.used_by(owner) + amount
            if self._by_owner[owner] <= 0:
                del self._by_owner[owner]

    def take(self, owner: str, amount: int = 1) -> None:
        """Check and count."""
        self.check(owner, amount)
        self.add(owner, amount)

    def release(self, owner: str, amount: int = 1) -> None:
        """Count so much less."""
        self.add(owner, -amount)
