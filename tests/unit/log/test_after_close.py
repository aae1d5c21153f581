"""A log that is closed takes nothing: its directory may belong to another broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.logs import AT, LogBench

from pentalog.model.errors import BrokerError


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1_000])
@pytest.mark.parametrize("clean", [True, False])
def test_a_late_append_is_refused_and_writes_nothing(
    tmp_path: Path, segment_bytes: int, clean: bool
) -> None:
    bench = LogBench(tmp_path)
    bench.partition(segment_bytes=segment_bytes)
    bench.settled(bytes(900))
    if clean:
        bench.store.close()
    else:
        bench.store.abandon()
    before = contents(tmp_path)
    with pytest.raises(BrokerError):
        bench.append(bytes(900))
    assert contents(tmp_path) == before
    again = LogBench(tmp_path)
    assert list(again.values(at=AT)) == [0]
    again.store.close()
