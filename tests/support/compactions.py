"""Short ways to fill a compacted topic, compact it and look at what is left."""

from __future__ import annotations

import os
from typing import Any

from tests.support.logs import AT, LogBench

from pentalog.log.compaction import Compaction, plan
from pentalog.log.partition import PartitionLog
from pentalog.model.types import Partition

COMPACTED: dict[str, Any] = {
    "cleanup_compact": True,
    "cleanup_delete": False,
    "segment_bytes": 2048,
    "cleanable_dirty_ratio_min": 0.0,
}


def compact(bench: LogBench, at: Partition = AT, **options: Any) -> bool:
    """One compaction of whatever can be compacted; False if there is nothing."""
    bench.store.get(at).sync_all()  # only what is on the disk is compacted
    found = plan(bench.store.get(at), bench.store.cleaned_offsets.get(at), bench.runtime.now_ms())
    if found is None:
        return False
    over: list[bool] = []
    Compaction(bench.store, bench.runtime, found, lambda: over.append(True), **options).start()
    bench.runtime.step()
    assert over == [True]
    return True


def newest(bench: LogBench, at: Partition = AT) -> dict[bytes, bytes | None]:
    """What a consumer that reads everything ends up with."""
    state: dict[bytes, bytes | None] = {}
    for _, record in bench.read(bench.store.get(at).start_offset, at=at):
        assert record.key is not None
        state[record.key] = record.value
    return state


def keys_read(bench: LogBench) -> list[bytes | None]:
    return [record.key for _, record in bench.read(bench.store.get(AT).start_offset)]


def leftovers(partition: PartitionLog) -> list[str]:
    names = os.listdir(partition.directory)
    return [name for name in names if name.endswith((".cleaned", ".swap", ".tmp"))]


def fill(bench: LogBench, history: list[tuple[bytes, bytes | None]], **options: Any) -> None:
    for key, value in history:
        bench.append(value, keys=[key], **options)
    bench.store.get(options.get("at", AT)).sync_all()


def numbered(count: int, keys: int, *, start: int = 0) -> list[tuple[bytes, bytes | None]]:
    return [
        (b"key-%d" % (number % keys), b"value-%d" % number * 5)
        for number in range(start, start + count)
    ]
