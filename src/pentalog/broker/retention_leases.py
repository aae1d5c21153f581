"""Leases on records not read yet: retention keeps them, within bounds, for groups that ask.

A group asks by the metadata of the offsets it commits, so that every client can:

    pentalog.lease=MILLISECONDS;bytes=BYTES

Records from the committed offset on are then kept for so long after the commit, and no more than so
many bytes of a partition beyond what its topic keeps anyway.  Committing again renews the lease.
"""

from __future__ import annotations

import re
from typing import Final

from pentalog.broker.offsets import LocalOffsets
from pentalog.broker.port import Committed
from pentalog.log.retention import Lease
from pentalog.model.types import Partition

_LEASE: Final = re.compile(r"pentalog\.lease=(\d{1,15})(?:;bytes=(\d{1,18}))?")
_BYTES_MAX: Final = 10 << 30
"""What a lease holds that does not say."""


def find_leases(offsets: LocalOffsets, now_ms: int) -> dict[Partition, Lease]:
    """The lease that reaches back furthest, of each partition that has one."""
    found: dict[Partition, Lease] = {}
    for group in list(offsets.leaseholders):
        committed = offsets.committed(group)
        leases = {at: lease for at, one in committed.items() if (lease := _lease(one, now_ms))}
        for at, lease in leases.items():
            other = found.get(at)
            found[at] = lease if other is None else _both(lease, other)
    return found


def _lease(committed: Committed, now_ms: int) -> Lease | None:
    # librdkafka sends the end of its string as well.
    match = _LEASE.fullmatch(committed.metadata.rstrip("\0"))
    if match is None or committed.timestamp_ms + int(match[1]) < now_ms:
        return None
    return Lease(committed.offset, int(match[2]) if match[2] else _BYTES_MAX)


def _both(one: Lease, other: Lease) -> Lease:
    return Lease(min(one.offset, other.offset), max(one.bytes_max, other.bytes_max))
