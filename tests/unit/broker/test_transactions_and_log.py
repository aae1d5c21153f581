"""Markers of transactions are the broker's own: no topic setting refuses them."""

from __future__ import annotations

from pathlib import Path

from tests.support.transactions import T0, TransactionBench

from pentalog.model.settings import LogSettings


def test_a_marker_is_written_whatever_size_the_topic_accepts(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path)
    who = bench.identify("x")
    bench.write(who, T0, 0, b"a")
    bench.store.configure(T0, LogSettings(message_bytes_max=0))
    bench.end("x", who, commit=True)
    assert bench.committed(T0) == [b"a"]
    bench.stop()
