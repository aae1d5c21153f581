"""What was fetched lately and not read to its end: nodes give whole batches, readers want less."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.cluster.bounds import Bounds
from pentalog.model.types import Offset, Partition, Slice
from pentalog.runtime import Runtime

FRESH_MS: Final = 1_000
"""Records that a cluster has deleted are given for so long."""

_BYTES_MAX: Final = 64 << 20
_PARTITIONS_MAX: Final = 1_000
_SHARE_MIN: Final = 8
"""A rest that is less than this part of what is asked for is not worth an answer of its own."""


class _Kept(NamedTuple):
    found: Slice
    data: memoryview
    until_s: float


class Recent:
    """The last slice of each partition; only of what is stable, which does not change any more."""

    def __init__(self, bounds: Bounds, runtime: Runtime) -> None:
        self._bounds = bounds
        self._runtime = runtime
        self._kept: OrderedDict[Partition, _Kept] = OrderedDict()
        self._bytes = 0

    def keep(self, at: Partition, found: Slice) -> None:
        self.drop(at)
        if not found.size_bytes:
            return
        (data,) = found.pieces
        assert isinstance(data, memoryview), "what comes from a cluster lies in memory"
        until_s = self._runtime.monotonic() + FRESH_MS / 1000
        self._kept[at] = _Kept(found, data, until_s)
        self._bytes += found.size_bytes
        while self._bytes > _BYTES_MAX or len(self._kept) > _PARTITIONS_MAX:
            self.drop(next(iter(self._kept)))

    def find(self, at: Partition, offset: Offset, bytes_max: int) -> Slice | None:
        """What is left from an offset on, as if it had been fetched."""
        kept = self._kept.get(at)
        if kept is None:
            return None
        if self._runtime.monotonic() > kept.until_s:
            self.drop(at)
            return None
        marks = self._bounds.marks(at)
        if not marks.start <= offset < kept.found.next_offset:
            return None
        data = kept.data
        start, size, base_offset, _ = kernels.locate_offset(data, 0, len(data), offset)
        if start < 0 or (start == 0 and offset < base_offset):
            return None  # what lies before it was not asked for then
        if (len(data) - start) * _SHARE_MIN < bytes_max:
            return None
        limit = kept.found.next_offset
        end, next_offset = kernels.fit_batches(data, start, len(data), bytes_max, limit)
        if end == start:
            end, next_offset = kernels.fit_batches(data, start, start + size, size, limit)
        return Slice((data[start:end],), end - start, marks, next_offset, kept.found.aborted)

    def drop(self, at: Partition) -> None:
        kept = self._kept.pop(at, None)
        if kept is not None:
            self._bytes -= kept.found.size_bytes

    def clear(self) -> None:
        """Topics have changed: the same name may be another one."""
        self._kept.clear()
        self._bytes = 0
