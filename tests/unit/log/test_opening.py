"""What opening a log costs, told by the bytes it reads, not by a clock."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from tests.support.logs import AT, LogBench

from pentalog.log.directories import StoreError
from pentalog.log.files import Handle, RealFiles


class CountingFiles(RealFiles):
    def __init__(self) -> None:
        self.read_bytes = 0
        self.mapped_bytes = 0

    def read(self, file: Handle, size: int, position: int) -> bytes:
        data = super().read(file, size, position)
        if file.path.suffix == ".log":
            self.read_bytes += len(data)
        return data

    def map(self, file: Handle, position: int = 0) -> mmap.mmap | bytes:
        if file.path.suffix == ".log":
            self.mapped_bytes += self.size(file)
        return super().map(file, position)


def fill(directory: Path) -> LogBench:
    bench = LogBench(directory)
    bench.partition(segment_bytes=1 << 20)
    for _ in range(200):
        bench.append(b"x" * 50_000)
    return bench


def test_a_clean_stop_is_opened_without_reading_the_log(tmp_path: Path) -> None:
    bench = fill(tmp_path)
    bench.store.close()
    files = CountingFiles()
    again = LogBench(tmp_path, files=files)
    assert again.store.get(AT).end_offset == 200
    assert len(again.store.get(AT).segments) > 8
    assert files.read_bytes < 1000
    assert files.mapped_bytes == 0


def test_after_a_crash_only_what_was_not_known_clean_is_read(tmp_path: Path) -> None:
    bench = fill(tmp_path)
    bench.runtime.advance(20_000)  # everything is synced, and the checkpoint says so
    for _ in range(5):
        bench.append(b"y" * 50_000)
    segments = len(bench.store.get(AT).segments)
    bench.crash()
    files = CountingFiles()
    again = LogBench(tmp_path, files=files)
    assert again.store.get(AT).end_offset == 205
    assert len(again.store.get(AT).segments) == segments > 8
    assert files.mapped_bytes <= 5 << 20


def test_a_copied_directory_with_preallocated_indexes_opens(tmp_path: Path) -> None:
    bench = fill(tmp_path)
    bench.crash()
    for path in (tmp_path / "events-0").glob("*index"):
        with path.open("r+b") as file:
            file.truncate(10 << 20)  # as a running Kafka has them: zeros behind the entries
    (tmp_path / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    assert list(LogBench(tmp_path).values()) == list(range(200))


def test_a_damaged_checkpoint_is_counted_and_costs_nothing(tmp_path: Path) -> None:
    fill(tmp_path).crash()
    for text in ("0\n2\nevents 0 100\n", "7\n", "0\n"):
        (tmp_path / "recovery-point-offset-checkpoint").write_text(text)
        bench = LogBench(tmp_path)
        assert bench.metrics.damaged_checkpoints == 1
        assert list(bench.values()) == list(range(200))
        bench.crash()


def test_starts_survive_their_damaged_checkpoint(tmp_path: Path) -> None:
    bench = fill(tmp_path)
    bench.runtime.advance(1_000)
    bench.partition().trim(57)
    bench.store.write_starts()
    bench.runtime.advance(6_000)  # readers of the files are told
    bench.crash()
    path = tmp_path / "log-start-offset-checkpoint"
    healthy = path.read_text()
    for text in (healthy.replace("57", "5"), healthy[:-3], healthy + "x"):
        path.write_text(text)
        again = LogBench(tmp_path)
        assert again.metrics.damaged_checkpoints == 1
        assert next(iter(again.values(57))) == again.store.get(AT).start_offset == 57
        again.crash()


def test_a_file_larger_than_any_of_ours_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path).crash()
    monkeypatch.setattr("pentalog.log.checkpoints._TEXT_BYTES_MAX", 4096)
    for name in ("recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"):
        with (tmp_path / name).open("a+b") as file:
            file.truncate(64 << 20)
    files = CountingReads()
    assert list(LogBench(tmp_path, files=files).values()) == list(range(200))
    assert files.largest_bytes <= 1 << 20


class CountingReads(RealFiles):
    largest_bytes = 0

    def read(self, file: Handle, size: int, position: int) -> bytes:
        self.largest_bytes = max(self.largest_bytes, size)
        return super().read(file, size, position)


@pytest.mark.parametrize("name", ["pentalog.format", "recovery-point-offset-checkpoint"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    LogBench(tmp_path).crash()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(OSError, match=name):
        LogBench(tmp_path)


def test_a_format_that_is_no_number_is_refused_in_one_line(tmp_path: Path) -> None:
    LogBench(tmp_path).crash()
    (tmp_path / "pentalog.format").write_bytes(b"\x00\n\x1b" * 500)
    with pytest.raises(StoreError, match=r"pentalog\.format says format") as refused:
        LogBench(tmp_path)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300 + len(str(tmp_path))


def test_an_index_with_more_entries_than_batches_is_not_read(tmp_path: Path) -> None:
    bench = fill(tmp_path)
    path = bench.partition().active.path(".index")
    expected = bench.values()
    bench.crash()
    with path.open("r+b") as index:
        index.truncate(64 << 20)
    files = IndexBytes()
    assert LogBench(tmp_path, files=files).values() == expected
    assert files.read_bytes < 1 << 20


class IndexBytes(RealFiles):
    def __init__(self) -> None:
        self.read_bytes = 0

    def read(self, file: Handle, size: int, position: int) -> bytes:
        data = super().read(file, size, position)
        if file.path.suffix == ".index":
            self.read_bytes += len(data)
        return data
