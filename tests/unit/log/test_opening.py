"""What opening a log costs, told by the bytes it reads, not by a clock."""

from __future__ import annotations

import mmap
import os
import re
import shutil
from pathlib import Path
from uuid import UUID

import pytest
from tests.support.logs import AT, LogBench

from pentalog.log.directories import StoreError
from pentalog.log.files import Handle, RealFiles
from pentalog.model.settings import LogSettings


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
    for text in (healthy.replace("57", "5"), healthy[:-3], healthy + "x", "", None):
        path.unlink()
        if text is not None:
            path.write_text(text)
        again = LogBench(tmp_path)
        assert again.metrics.damaged_checkpoints == bool(text)
        assert next(iter(again.values(57))) == again.store.get(AT).start_offset == 57
        again.crash()
        path.touch()


def test_a_start_taken_from_the_marks_is_written_when_it_is_asked_for_again(tmp_path: Path) -> None:
    bench = fill(tmp_path)
    bench.runtime.advance(1_000)
    bench.partition().trim(57)
    bench.store.write_starts()
    bench.store.close()
    path = tmp_path / "log-start-offset-checkpoint"
    healthy = path.read_text()
    path.unlink()
    again = LogBench(tmp_path)
    again.partition().trim(57)
    again.store.write_starts()
    assert path.read_text() == healthy


@pytest.mark.parametrize("damage", [(r"200,", "199,"), (r"200,", "2e999,"), (r"\d,", "[" * 9999)])
def test_a_damaged_clean_marker_is_not_believed(tmp_path: Path, damage: tuple[str, str]) -> None:
    bench = fill(tmp_path)
    bench.settled(b"last of its segment")
    bench.store.close()
    path = tmp_path / "pentalog.clean"
    path.write_text(re.sub(damage[0].replace("200", "201"), damage[1], path.read_text(), count=1))
    again = LogBench(tmp_path)
    assert not again.store.stopped_cleanly
    assert again.append(b"next").base_offset == 201
    assert list(again.values()) == list(range(202))


def test_a_partition_whose_directory_is_lost_gives_no_offset_again(tmp_path: Path) -> None:
    for trimmed in (0, 57):
        directory = tmp_path / str(trimmed)
        bench = fill(directory)
        bench.runtime.advance(1_000)
        bench.partition().trim(trimmed)
        bench.store.write_starts()
        bench.store.close()
        shutil.rmtree(directory / "events-0")
        again = LogBench(directory)
        again.partition()
        assert again.settled(b"next").base_offset == 200
        again.store.close()
        assert LogBench(directory).values(200) == {200: b"next"}


def test_a_new_topic_inherits_nothing_from_checkpoints_without_ids(tmp_path: Path) -> None:
    """Format 1 wrote none: a checkpoint names a topic, and that may be another one by now."""
    fill(tmp_path).store.close()
    for name in ("recovery-point", "log-start", "cleaner"):
        (tmp_path / f"{name}-offset-checkpoint").write_text("0\n1\nevents 0 150\n")
    again = LogBench(tmp_path)
    assert again.store.get(AT).start_offset == again.store.cleaned_offsets[AT] == 150
    again.store.delete(AT)
    again.store.create(AT, UUID(int=77), LogSettings())
    assert again.settled(b"first").base_offset == 0
    again.crash()
    once_more = LogBench(tmp_path)
    assert once_more.store.cleaned_offsets == {}
    assert once_more.values() == {0: b"first"}
    assert once_more.append(b"second").base_offset == 1


@pytest.mark.parametrize("name", ["pentalog.format", "journal", "events-0/partition.metadata"])
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    bench.crash()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match=f"not a regular file.*{name}"):
        LogBench(tmp_path)


def test_a_write_that_fails_names_its_file(tmp_path: Path) -> None:
    files = RealFiles()
    file = files.open(tmp_path / "some", create=True)
    readable = Handle(os.open(tmp_path / "some", os.O_RDONLY), file.path)
    for write in (
        lambda: files.write(readable, b"x", 0),
        lambda: files.write_synced(readable, b"x", 0),
        lambda: files.truncate(readable, 0),
    ):
        with pytest.raises(OSError, match="some"):
            write()


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


def test_what_is_cut_off_is_not_written_again_before(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    bench.settled(b"kept")
    bench.crash()
    with (tmp_path / "events-0" / "00000000000000000000.log").open("r+b") as file:
        file.truncate(64 << 20)
    files = CountingWrites()
    assert LogBench(tmp_path, files=files).values() == {0: b"kept"}
    assert 0 < files.written_bytes < 1 << 10


class CountingWrites(RealFiles):
    written_bytes = 0

    def write(self, file: Handle, data: bytes | bytearray | memoryview, position: int) -> None:
        if file.path.suffix == ".log":
            self.written_bytes += len(data)
        super().write(file, data, position)


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
