"""What committed offsets take in memory, and which of them hold retention leases, by principal.

The offsets of a group are charged to the client that committed first for it, those of an open
transaction to the owner of its transactional id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from pentalog.broker.group_offsets import Committed
from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.config import Config
from pentalog.model.errors import OffsetsFull
from pentalog.model.types import Partition

LEASE: Final = "pentalog.lease="
"""How the metadata of an offset begins that asks for records to be kept."""
_OFFSET_BYTES: Final = 300
_GROUP_BYTES: Final = 1_000


class OffsetUsage:
    """Counts bytes and leases of groups, and refuses commits that would exceed a limit."""

    def __init__(self, config: Config) -> None:
        share = config.principal_share_percent
        self._memory = PrincipalLimits(
            "bytes of committed offsets",
            config.offsets_bytes_max,
            share_percent=share,
            setting="offsets_bytes_max",
            refusal=OffsetsFull,
        )
        self._leases = PrincipalLimits(
            "retention leases",
            config.retention_leases_max,
            share_percent=share,
            setting="retention_leases_max",
            refusal=OffsetsFull,
        )
        self._owners: dict[str, str] = {}
        """Principals that committed first, by group; not of groups that an earlier life left."""
        self._bytes: Counter[str] = Counter()
        self._leased: Counter[str] = Counter()

    @property
    def leaseholders(self) -> Collection[str]:
        return self._leased.keys()

    def check(
        self,
        group: str,
        owner: str,
        known: Mapping[str, Mapping[int, Committed]] | None,
        offsets: Mapping[Partition, Committed],
    ) -> None:
        """Raise `OffsetsFull` if these do not fit; makes `owner` the owner of a new group."""
        if not offsets:
            return
        size = leases = 0
        for (topic, index), committed in offsets.items():
            before = None if known is None else known.get(topic, _NONE).get(index)
            if before is None or before.metadata != committed.metadata:
                size += _size(committed) - _size(before)
                leases += _is_lease(committed) - _is_lease(before)
        if known is None:
            size += _group_size(group)
        if not size and not leases:
            return
        charged = owner if known is None else self._owners.get(group, "")
        self._memory.check(charged, size)
        # An offset of another's group holds a lease all the same.
        self._leases.check(charged, leases)
        if known is None and owner:
            self._owners[group] = owner

    def replace(self, group: str, before: Committed | None, after: Committed | None) -> None:
        """Count an offset of a group in the place of another, or of none."""
        owner = self._owners.get(group, "")
        size = _size(after) - _size(before)
        if group not in self._bytes:
            size += _group_size(group)
        self._memory.add(owner, size)
        self._bytes[group] += size
        leases = _is_lease(after) - _is_lease(before)
        if leases:
            self._leases.add(owner, leases)
            self._leased[group] += leases
            if not self._leased[group]:
                del self._leased[group]
        if self._bytes[group] <= _group_size(group):
            self.forget(group)

    def check_staging(
        self,
        owner: str,
        group: str,
        held: Mapping[Partition, Committed] | None,
        offsets: Mapping[Partition, Committed],
    ) -> None:
        """Raise `OffsetsFull` if these do not fit into an open transaction that holds others."""
        size = _group_size(group) if held is None else 0
        leases = 0
        for at, committed in offsets.items():
            before = None if held is None else held.get(at)
            size += _size(committed) - _size(before)
            leases += _is_lease(committed) - _is_lease(before)
        self._memory.check(owner, size)
        self._leases.check(owner, leases)

    def stage(self, owner: str, before: Committed | None, after: Committed | None) -> None:
        """Count an offset of an open transaction in the place of another, or of none."""
        self._memory.add(owner, _size(after) - _size(before))

    def stage_group(self, owner: str, group: str, number: int) -> None:
        """Count one more, or one less, group of an open transaction."""
        self._memory.add(owner, number * _group_size(group))

    def claim(self, group: str, owner: str) -> None:
        """Make `owner` the owner of a new group."""
        if owner and group not in self._owners:
            self._owners[group] = owner

    def forget(self, group: str) -> None:
        """Free everything that a group is charged for."""
        owner = self._owners.pop(group, "")
        self._memory.release(owner, self._bytes.pop(group, 0))
        self._leases.release(owner, self._leased.pop(group, 0))


_NONE: Final[Mapping[int, Committed]] = {}


def _group_size(group: str) -> int:
    return _GROUP_BYTES + len(group)


def _size(committed: Committed | None) -> int:
    return 0 if committed is None else _OFFSET_BYTES + len(committed.metadata)


def _is_lease(committed: Committed | None) -> int:
    return int(committed is not None and committed.metadata.startswith(LEASE))
