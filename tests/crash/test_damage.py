"""What lies on the disk is cut short or flipped: nothing wrong is served, little is lost."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.logs import AT, LogBench

from pentalog.log.files import Handle, RealFiles
from pentalog.model.types import Horizon

BATCHES = 120
TORTURE = "PENTALOG_TORTURE" in os.environ
CUTS = 4096 if TORTURE else 512
"""Bytes from the end; the shorter stretch holds a batch and its borders."""
FLIPS = int(os.environ.get("PENTALOG_FLIPS", "1000" if TORTURE else "300"))
SEED = int(os.environ.get("PENTALOG_SEED", "20261115"))


def value(number: int) -> bytes:
    return (b"%05d." % number) * 12


def write(directory: Path, *, clean: bool) -> None:
    """Two to three segments of small batches, three records each."""
    bench = LogBench(directory, flush_interval_ms=100)
    bench.partition(segment_bytes=16 << 10, index_interval_bytes=512)
    for number in range(BATCHES):
        bench.settled(*(value(3 * number + part) for part in range(3)))
    if clean:
        bench.store.close()
    else:
        bench.crash()


@pytest.fixture(scope="module", params=["clean stop", "crash"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("written")
    write(directory, clean=request.param == "clean stop")
    return directory


def copies(written: Path, scratch: Path) -> Iterator[Path]:
    """Fresh copies of a directory, one at a time."""
    while True:
        if scratch.exists():
            shutil.rmtree(scratch)
        shutil.copytree(written, scratch)
        yield scratch


def restore(written: Path, directory: Path) -> None:
    """Make a copy what it was; cheaper than copying anew, since sealed segments do not change."""
    for path in written.rglob("*"):
        copy = directory / path.relative_to(written)
        if path.is_file() and path.name != ".lock" and not _same(path, copy):
            shutil.copy2(path, copy)
    for copy in directory.rglob("*"):
        if copy.is_file() and not (written / copy.relative_to(directory)).exists():
            copy.unlink()


def _same(path: Path, copy: Path) -> bool:
    if not copy.exists():
        return False
    ours, theirs = path.stat(), copy.stat()
    return (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def active_file(directory: Path, suffix: str) -> Path:
    return max((directory / "events-0").glob(f"*{suffix}"))


def check_readable(directory: Path, *, lost_max: int) -> int:
    """Open, read everything, write on; returns how many records were lost."""
    bench = LogBench(directory, flush_interval_ms=100)
    found = bench.values(horizon=Horizon.DURABLE)
    wrong = {offset: got for offset, got in found.items() if got != value(offset)}
    assert not wrong
    lost = 3 * BATCHES - len(found)
    assert lost <= lost_max
    assert bool(lost) <= bool(bench.metrics.damaged_batches), "damage was not reported"
    end = bench.store.get(AT).end_offset
    assert bench.append(b"next").base_offset == end
    assert bench.values(end) == {end: b"next"}
    bench.crash()
    return lost


def test_the_active_segment_cut_at_every_byte(written: Path, tmp_path: Path) -> None:
    size = active_file(written, ".log").stat().st_size
    directory = next(copies(written, tmp_path / "copy"))
    for cut in range(max(0, size - CUTS), size):
        restore(written, directory)
        os.truncate(active_file(directory, ".log"), cut)
        lost = check_readable(directory, lost_max=3 * BATCHES)
        # Only what was cut is missing: one batch of three is about 300 bytes.
        assert lost <= 3 * ((size - cut) // 250 + 1)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_the_indexes_cut_at_every_byte(written: Path, tmp_path: Path, suffix: str) -> None:
    scratch = copies(written, tmp_path / "copy")
    for path in sorted((written / "events-0").glob(f"*{suffix}")):
        for cut in range(path.stat().st_size + 1):
            directory = next(scratch)
            os.truncate(directory / "events-0" / path.name, cut)
            assert check_readable(directory, lost_max=0) == 0
    for path in sorted((written / "events-0").glob(f"*{suffix}")):
        directory = next(scratch)
        (directory / "events-0" / path.name).unlink()
        assert check_readable(directory, lost_max=0) == 0


def test_single_bit_flips_cost_at_most_the_batch_they_hit(written: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    names = sorted(
        path.relative_to(written)
        for path in written.rglob("*")
        if path.is_file() and path.stat().st_size and path.name not in (".lock", "pentalog.format")
    )
    logs = [name for name in names if name.suffix == ".log"]
    sizes = [(written / name).stat().st_size for name in logs]
    costly = 0
    # Without a clean stop a batch with a wrong length may as well be torn, and what lies in it is
    # not looked at: the next batch that an index knows is the next one that is served.
    clean = (written / "pentalog.clean").exists()
    lost_max = 3 if clean else 9
    scratch = copies(written, tmp_path / "copy")
    directory = next(scratch)
    for number in range(FLIPS):
        if number % 50 == 0:
            directory = next(scratch)
        # Most go to the records themselves; the journal is large and mostly empty.
        name = chance.choice(names) if number % 4 == 0 else chance.choices(logs, sizes)[0]
        for part in names:  # cheaper than copying the whole directory
            shutil.copyfile(written / part, directory / part)
        extra = {p.relative_to(directory) for p in directory.rglob("*") if p.is_file()}
        for stray in extra - set(names) - {Path(".lock"), Path("pentalog.format")}:
            (directory / stray).unlink()
        path = directory / name
        bit = chance.randrange(path.stat().st_size * 8)
        data = bytearray(path.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            costly += check_readable(directory, lost_max=lost_max) > 0
        except BaseException:
            print(f"seed {SEED}, flip {number}: bit {bit} of {name}")
            raise
    # After a crash most of what is flipped stands in the journal, too, and is put back.
    assert costly > FLIPS // (2 if clean else 10), "hardly any flip hit a record"


class CountingFiles(RealFiles):
    def __init__(self) -> None:
        self.reads = 0

    def read(self, file: Handle, size: int, position: int) -> bytes:
        self.reads += 1
        return super().read(file, size, position)


def test_reading_past_many_damaged_batches_takes_linear_work(tmp_path: Path) -> None:
    """Every other batch is damaged, among them those that the index points at."""

    def reads(count: int) -> int:
        directory = tmp_path / str(count)
        bench = LogBench(directory)
        bench.partition()
        for number in range(count):
            bench.append(b"%6d" % number * 10)
        path = bench.partition().active.path(".log")
        bench.store.close()
        data = bytearray(path.read_bytes())
        size = len(data) // count
        for number in range(0, count, 2):
            data[number * size + 70] ^= 0xFF
        path.write_bytes(data)
        files = CountingFiles()
        again = LogBench(directory, files=files)
        assert list(again.values()) == list(range(1, count, 2))
        return files.reads

    assert reads(800) < 3 * reads(400)
