"""A power cut takes what was not synced: the journal gives acknowledged records back."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.support.logs import AT, LogBench

from pentalog import kernels
from pentalog.log.files import Handle, RealFiles
from pentalog.log.journal import Entry, Journal
from pentalog.log.replay import Replayed, replay
from pentalog.model import batch
from pentalog.model.types import Ack, Horizon, Partition, Record

PLACES = [Partition("events", index) for index in range(4)]


def fill(
    directory: Path,
    *,
    rounds: int,
    journal_bytes: int = 256 << 10,
    segment_bytes: int = 32 << 10,
    chance: random.Random | None = None,
) -> dict[Partition, list[bytes]]:
    """Acknowledged writes through the journal, then a power cut: unsynced bytes are gone."""
    bench = LogBench(directory, journal_bytes=journal_bytes)
    written: dict[Partition, list[bytes]] = {at: [] for at in PLACES}
    for at in PLACES:
        bench.partition(at, segment_bytes=segment_bytes)
    for number in range(rounds):
        if chance is not None and number == rounds // 2:
            bench.runtime.held_lanes.add("sync")  # the files' own syncs are late
        for at in PLACES:
            value = b"%d-%d;" % (at.index, number) * (1 + number % 40)
            later = bench.log.settle(bench.append(value, at=at), Ack.DURABLE)
            bench.runtime.step()
            if not later.ready:
                continue  # the journal is full, and the files are late: not acknowledged
            assert later.value.base_offset == len(written[at])
            written[at].append(value)
    assert bench.metrics.journal_bytes > 0
    cut_power(bench, chance)
    return written


def cut_power(bench: LogBench, chance: random.Random | None = None) -> None:
    """Unsynced bytes are gone, or as the kernel pleased: with `chance`, any part of them."""
    synced = {p.at: p.synced for p in bench.store.all()}
    directories = {p.at: p.directory for p in bench.store.all()}
    bench.crash()
    for at, point in synced.items():
        for path in sorted(directories[at].glob("*.log")):
            base = int(path.stem)
            keep = point.position if base == point.base else 0
            if base < point.base or (chance is not None and chance.random() < 0.3):
                continue
            if chance is not None:
                os.truncate(path, chance.randint(keep, path.stat().st_size))
            elif base == point.base:
                os.truncate(path, keep)
            else:
                path.unlink()
        for path in directories[at].glob("*.index"):
            path.unlink()


@pytest.fixture(autouse=True)
def _journal_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pentalog.log.flusher._JOURNAL_PAYS_AFTER", 1)


def check(directory: Path, written: dict[Partition, list[bytes]]) -> None:
    bench = LogBench(directory)
    for at, values in written.items():
        found = bench.values(at=at, horizon=Horizon.DURABLE)
        assert [found.get(offset) for offset in range(len(values))] == values
        assert bench.append(b"next", at=at).base_offset >= len(values)
    bench.crash()


@pytest.mark.parametrize("rounds", [3, 40, 400, 1500])
def test_a_power_cut_loses_nothing_acknowledged(tmp_path: Path, rounds: int) -> None:
    written = fill(tmp_path, rounds=rounds)
    check(tmp_path, written)


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_that_kept_later_segments(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    written = fill(tmp_path, rounds=300 + 40 * seed, segment_bytes=12 << 10, chance=chance)
    check(tmp_path, written)


def test_a_second_cut_before_anything_new_is_written(tmp_path: Path) -> None:
    written = fill(tmp_path, rounds=100)
    bench = LogBench(tmp_path)
    cut_power(bench)
    check(tmp_path, written)


def test_flipped_journal_bits_never_make_wrong_records(tmp_path: Path) -> None:
    written = fill(tmp_path / "written", rounds=60)
    chance = random.Random(7)
    journal = tmp_path / "written" / "journal"
    size = journal.stat().st_size
    for number in range(60):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "written", copy)
        with (copy / "journal").open("r+b") as file:
            at = chance.randrange(64 << 10 if number % 2 else size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))
        bench = LogBench(copy)
        for place, values in written.items():
            found = bench.values(at=place)
            for offset, value in found.items():
                assert value == values[offset]
        bench.crash()
        shutil.rmtree(copy)


def test_a_torn_last_chunk_is_ignored(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", RealFiles(), 64 << 10)
    journal.start(journal.create())
    entries = [Entry(PLACE_ID, 0, number, 0, 0, bytes([number]) * 100) for number in range(10)]
    for entry in entries:
        chunk = journal.place([entry])
        assert chunk is not None
        RealFiles().write(journal.file, chunk.data, chunk.position)
    for cut in range(1, 200, 9):
        torn = tmp_path / "torn"
        shutil.copyfile(tmp_path / "journal", torn)
        assert chunk is not None
        with torn.open("r+b") as file:
            file.seek(chunk.position + len(chunk.data) - cut)
            file.write(b"\xff" * cut)
        found = Journal(torn, RealFiles(), 64 << 10).recover()
        padding = len(chunk.data) - 80 - 100
        assert found == entries[: 9 if cut > padding else 10]


def test_a_journal_cut_at_every_byte_gives_whole_entries_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", RealFiles(), 64 << 10)
    journal.start(journal.create())
    entries = [
        Entry(PLACE_ID, 0, number, 0, 0, bytes([number]) * (37 * number % 500))
        for number in range(30)
    ]
    ends: list[int] = []
    for entry in entries:
        chunk = journal.place([entry])
        assert chunk is not None
        RealFiles().write(journal.file, chunk.data, chunk.position)
        ends.append(chunk.position + 80 + len(entry.payload))
    whole = (tmp_path / "journal").read_bytes()
    cut = tmp_path / "cut"
    for size in range(ends[-1] - 4096, ends[-1] + 1):
        cut.write_bytes(whole[:size])
        found = Journal(cut, RealFiles(), 64 << 10).recover()
        assert found == entries[: sum(end <= size for end in ends)]


def test_space_is_reused_only_when_given_up(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", RealFiles(), 64 << 10)
    journal.start(journal.create())
    payload = b"x" * 5000
    sequences = []
    while (chunk := journal.place([Entry(PLACE_ID, 0, len(sequences), 0, 0, payload)])) is not None:
        RealFiles().write(journal.file, chunk.data, chunk.position)
        sequences.append(chunk.sequence_last)
    assert len(sequences) >= 10
    data, position = journal.header_after(sequences[4])
    RealFiles().write(journal.file, data, position)
    journal.release(sequences[4])
    chunk = journal.place([Entry(PLACE_ID, 0, 99, 0, 0, payload)])
    assert chunk is not None
    RealFiles().write(journal.file, chunk.data, chunk.position)
    found = Journal(tmp_path / "journal", RealFiles(), 64 << 10).recover()
    assert [entry.base_offset for entry in found] == [*range(5, len(sequences)), 99]


def test_entries_are_found_wherever_a_piece_that_is_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    journal = Journal(tmp_path / "journal", RealFiles(), 512 << 10)
    journal.start(journal.create())
    entries: list[Entry] = []
    for number in range(200):
        size = chance.choice((0, 1, 63, 64, 65, 1000, 1024, 1025, 9000))
        payload = chance.choice((b"x", b"PLJE", b"PLJE" + bytes(60))) * size
        entries.append(Entry(PLACE_ID, 0, number, 0, 0, payload[:size]))
        chunk = journal.place(entries[-1:])
        assert chunk is not None
        RealFiles().write(journal.file, chunk.data, chunk.position)
        if number % 9 == 0:
            entries.pop()
            RealFiles().write(journal.file, b"\xff" * 4, chunk.position + 16)
    for piece_bytes in (64, 128, 1000, 1024, 4096, 1 << 20):
        monkeypatch.setattr("pentalog.log.journal._PIECE_BYTES", piece_bytes)
        assert Journal(tmp_path / "journal", RealFiles(), 512 << 10).recover() == entries


def test_a_clean_stop_keeps_the_journal_and_voids_its_entries(tmp_path: Path) -> None:
    bench = LogBench(tmp_path)
    bench.partition()
    for number in range(5):
        bench.settled(b"%d" % number)
    bench.store.close()
    bench = LogBench(tmp_path)
    assert bench.store.journal.ready, "it would have to be written ahead again"
    bench.settled(b"5")
    assert bench.metrics.journal_bytes > 0
    bench.crash()
    journal = Journal(tmp_path / "journal", RealFiles(), 256 << 10)
    assert [entry.base_offset for entry in journal.recover()] == [5]


def test_entries_are_replayed_only_where_they_were_written(tmp_path: Path) -> None:
    """Two directories name the same topic id: one has the metadata file of the other."""
    bench = LogBench(tmp_path)
    first, second = Partition("a", 0), Partition("b", 0)
    for at in (first, second):
        bench.partition(at)
    for number in range(20):
        for at in (first, second):
            bench.settled(b"%s-%d;" % (at.topic.encode(), number) * 9, at=at)
    bench.runtime.advance(6_000)  # the recovery points say whose directories these are
    cut_power(bench)
    shutil.copy(tmp_path / "b-0" / "partition.metadata", tmp_path / "a-0" / "partition.metadata")
    again = LogBench(tmp_path)
    found = again.values(at=second)
    assert found == {number: b"b-%d;" % number * 9 for number in range(20)}
    assert not any((value or b"").startswith(b"b-") for value in again.values(at=first).values())


@pytest.mark.parametrize("others", ["points", "starts", "marks"])
@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_damaged_metadata_file_costs_nothing(
    tmp_path: Path, content: bytes | None, others: str
) -> None:
    bench = LogBench(tmp_path)
    at = PLACES[0]
    partition = bench.partition(at)
    for number in range(20):
        bench.settled(b"%d;" % number * 9, at=at)
    partition.trim(5)
    bench.store.write_starts()
    bench.runtime.advance(6_000)
    cut_power(bench)
    metadata = partition.directory / "partition.metadata"
    healthy = metadata.read_bytes()
    metadata.unlink()
    if content is not None:
        metadata.write_bytes(content)
    if others != "points":
        (tmp_path / "recovery-point-offset-checkpoint").unlink()
    if others == "marks":
        (tmp_path / "log-start-offset-checkpoint").unlink()
    again = LogBench(tmp_path)
    assert again.store.get(at).start_offset == 5
    assert again.values(5, at=at) == {number: b"%d;" % number * 9 for number in range(5, 20)}
    assert metadata.read_bytes() == healthy


@pytest.mark.parametrize("bit", [0, 77, 175])
def test_a_flipped_bit_in_a_topic_id_costs_nothing(tmp_path: Path, bit: int) -> None:
    bench = LogBench(tmp_path)
    partition = bench.partition()
    for number in range(20):
        bench.settled(b"%d" % number)
    bench.runtime.advance(6_000)  # the recovery points name the id as well
    cut_power(bench)
    metadata = partition.directory / "partition.metadata"
    healthy = metadata.read_bytes()
    data = bytearray(healthy)
    data[data.index(b"topic_id: ") + 10 + bit // 8] ^= 1 << bit % 8
    metadata.write_bytes(data)
    again = LogBench(tmp_path)
    assert again.store.get(bench.partition().at).topic_id == partition.topic_id
    assert again.values() == {number: b"%d" % number for number in range(20)}
    assert metadata.read_bytes() == healthy


def outcome(steps: Generator[None, None, Replayed]) -> Replayed:
    """What a generator returns at its end."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            replayed: Replayed = stop.value
            return replayed


class CountingFiles(RealFiles):
    def __init__(self) -> None:
        self.read_bytes = 0

    def read(self, file: Handle, size: int, position: int) -> bytes:
        data = super().read(file, size, position)
        self.read_bytes += len(data)
        return data


@pytest.mark.parametrize("piece_bytes", [100, 5_000, 1 << 20])
def test_entries_without_a_position_are_put_where_the_batches_before_them_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """As a journal of version 1 has them; some batches were synced without an entry."""
    monkeypatch.setattr("pentalog.log.replay._PIECE_BYTES", piece_bytes)
    chance = random.Random(piece_bytes)
    whole, durable = bytearray(), 0
    entries: list[Entry] = []
    for number in range(400):
        data = batch.build([Record(b"v" * chance.choice((1, 100, 2_000)))], timestamp_ms=1)
        kernels.stamp(data, 0, len(data), number, 0)
        whole += data
        if number < 200 or chance.random() < 0.2:
            durable = len(whole)
        else:
            entries.append(Entry(PLACE_ID, 0, number, 0, -1, bytes(data)))
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(whole[:durable])
    files = CountingFiles()
    steps = replay(files, tmp_path, entries, [0], synced_offset=0)
    replayed = outcome(steps)
    assert path.read_bytes() == whole
    assert (replayed.end_offset, replayed.rejected) == (entries[-1].base_offset + 1, [])
    assert files.read_bytes < 4 * len(whole) + len(entries) * piece_bytes


PLACE_ID = LogBench.topic_id("events")


def test_offsets_that_only_the_journal_knew_stay_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the segment nor the journal's first entry of it is left, only later entries are."""
    monkeypatch.setattr("pentalog.log.flusher._JOURNAL_PAYS_AFTER", 1)
    data = tmp_path / "data"
    bench = LogBench(data)
    bench.partition(segment_bytes=2_000)
    bench.settled(b"a" * 900)
    bench.settled(b"a" * 900)
    bench.runtime.advance(11_000)
    bench.runtime.held_lanes.add("sync")
    for number in range(20):
        bench.settled(b"%d" % number)
    base = bench.store.get(AT).segments[1].base_offset
    end = bench.store.get(AT).end_offset
    bench.crash()
    (data / "events-0" / f"{base:020d}.log").unlink()
    journal = bytearray((data / "journal").read_bytes())
    heads = (
        (journal[at + 16 : at + 24][::-1], bytes(journal[at + 24 : at + 40])) for at in (0, 4096)
    )
    token = max(heads)[1]
    damaged = 0
    at = journal.find(token, 8192)
    while at >= 0:
        if struct.unpack_from("<qq", journal, at + 56) == (base, base):
            journal[at + 100] ^= 1
            damaged += 1
        at = journal.find(token, at + 1)
    assert damaged
    (data / "journal").write_bytes(journal)
    for _ in range(3):
        bench = LogBench(data)
        assert bench.store.get(AT).end_offset == end
        bench.crash()
