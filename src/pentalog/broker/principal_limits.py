"""Limits that all clients share, of which no single principal can take everything.

A count or a number of bytes is charged to an owner: the principal of the client (`Access.owner`),
and its address too where it has not logged in, because all such clients are one principal.  An
empty owner is the broker itself, or what an earlier life of it has left: it counts for the total
only.

`PrincipalLimits` refuses what is beyond a limit.  `FairKeys` is for what can be dropped instead.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from pentalog.model.errors import BrokerError, Overloaded

K = TypeVar("K", bound=Hashable)


def share_of(total: int, share_percent: int) -> int:
    """Return what one principal may have of a total: at least 1."""
    return max(1, -(-total * share_percent // 100))


class PrincipalLimits:
    """Counts one kind of thing, in total and by owner; raises before either is exceeded."""

    __slots__ = ("_by_owner", "_refusal", "_setting", "_share", "_total", "_used", "_what")

    def __init__(
        self,
        what: str,
        total: int,
        *,
        share_percent: int,
        setting: str = "",
        refusal: type[BrokerError] = Overloaded,
    ) -> None:
        """`what` names the things in messages, `setting` what an operator can raise, if any."""
        self._what = what
        self._setting = setting
        self._refusal = refusal
        self._total = total
        self._share = share_of(total, share_percent)
        self._used = 0
        self._by_owner: dict[str, int] = {}

    @property
    def used(self) -> int:
        return self._used

    def used_by(self, owner: str) -> int:
        return self._by_owner.get(owner, 0)

    def fits(self, owner: str, amount: int = 1) -> bool:
        """Return whether so much more would pass `check`."""
        return amount <= 0 or (
            self._used + amount <= self._total
            and (not owner or self.used_by(owner) + amount <= self._share)
        )

    def check(self, owner: str, amount: int = 1) -> None:
        """Raise the refusal if so much more does not fit."""
        if amount <= 0:
            return
        if self._used + amount > self._total:
            raise self._refusal(
                f"{self._what}: {self._used} of {self._total} are in use and {amount} more do not "
                f"fit: remove some{self._raising(', or raise ')}"
            )
        if owner and self.used_by(owner) + amount > self._share:
            raise self._refusal(
                f"{self._what}: {owner[:260]} has {self.used_by(owner)} of the {self._share} that "
                f"one principal may have and {amount} more do not fit: remove some, or raise "
                f"{self._raising(after=' or ')}principal_share_percent"
            )

    def _raising(self, before: str = "", after: str = "") -> str:
        return f"{before}{self._setting}{after}" if self._setting else ""

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


class FairKeys(Generic[K]):
    """Keys of a cache by owner; says which one to drop when there are too many.

    One beyond its share loses its own oldest key.  Beyond the total, the owner with the most keys
    does, so that no owner can make the broker drop the keys of those with fewer.
    """

    __slots__ = ("_by_owner", "_owners", "_share", "_total")

    def __init__(self, total: int, *, share_percent: int) -> None:
        self._total = total
        self._share = share_of(total, share_percent)
        self._owners: dict[K, str] = {}
        self._by_owner: dict[str, dict[K, None]] = {}
        """Keys of each owner in the order of their last use, oldest first."""

    def __len__(self) -> int:
        return len(self._owners)

    def use(self, key: K, owner: str) -> None:
        """Charge the key to this owner from now on, as its newest."""
        self.discard(key)
        self._owners[key] = owner
        self._by_owner.setdefault(owner, {})[key] = None

    def touch(self, key: K) -> None:
        """Make a known key the newest of its owner."""
        keys = self._by_owner[self._owners[key]]
        del keys[key]
        keys[key] = None

    def discard(self, key: K) -> None:
        """Forget a key; does nothing if it is not known."""
        owner = self._owners.pop(key, None)
        if owner is None:
            return
        keys = self._by_owner[owner]
        del keys[key]
        if not keys:
            del self._by_owner[owner]

    def excess(self, owner: str) -> K | None:
        """Return the key to drop after `owner` has used one; None if there is room for all."""
        if not owner or len(self._by_owner.get(owner, ())) <= self._share:
            if len(self._owners) <= self._total:
                return None
            owner = max(self._by_owner, key=lambda one: len(self._by_owner[one]))
        return next(iter(self._by_owner[owner]))
