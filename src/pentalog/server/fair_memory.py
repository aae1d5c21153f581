"""Memory that clients share by address, so that no address can use up all of it."""

from __future__ import annotations


class FairMemory:
    """Counts bytes by address; an address may hold as much as it leaves free for the others.

    So one address gets at most half, two get a third each, and a new one always finds some:
    a fixed share would leave nothing as soon as a few addresses use theirs.
    """

    __slots__ = ("_held", "used_bytes")

    def __init__(self) -> None:
        self.used_bytes = 0
        self._held: dict[str, int] = {}

    def held(self, block: str) -> int:
        return self._held.get(block, 0)

    def fits(self, block: str, size: int, total: int, largest: int) -> bool:
        """Would the address hold no more than is left free, if it took `size` of `total` bytes?

        One request may need `largest` bytes.  Where that is over half of all, an address may
        hold so much: otherwise that request could never be served.
        """
        left = total - self.used_bytes - size
        share = max(left, largest) if 2 * largest > total else left
        return left >= 0 and self.held(block) + size <= share

    def take_fairly(self, block: str, size: int, total: int, largest: int) -> bool:
        """Take `size` bytes of `total`, if they fit the share of the address."""
        fits = self.fits(block, size, total, largest)
        if fits:
            self.charge(block, size)
        return fits

    def take(self, block: str, size: int, total: int) -> bool:
        """Take `size` bytes of `total` if they are free, whatever the address holds."""
        if self.used_bytes + size > total:
            return False
        self.charge(block, size)
        return True

    def charge(self, block: str, size: int) -> None:
        """Count `size` bytes that are in use already, even if there should be none left."""
        self.used_bytes += size
        self._held[block] = self.held(block) + size

    def give_back(self, block: str, size: int) -> None:
        self.used_bytes -= size
        held = self._held.pop(block, 0) - size
        assert held >= 0, "more was given back than was taken"
        if held:
            self._held[block] = held
