"""Records that imitate the broker's own files, and journals with wrong contents.

No content of a record may be taken for an entry of the journal or for a batch of the log, and
whatever a journal holds, the broker starts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from uuid import UUID

import pytest
from tests.simulation.disk import PAGE, Disk
from tests.support.contents import batch_at, nested
from tests.support.disks import DATA, DiskBench, check_lives, cut_power, everything, find_inode
from tests.support.logs import AT, LogBench

from pentalog import kernels
from pentalog.log.journal import Entry
from pentalog.model.types import Partition

VICTIM = Partition("victim", 0)
LOG = "events-0/00000000000000000000.log"


@pytest.fixture(autouse=True)
def _journal_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pentalog.log.flusher._JOURNAL_PAYS_AFTER", 1)


def fill(bench: DiskBench, count: int = 5, at: Partition = AT) -> dict[int, bytes]:
    """Acknowledged records; all but the first are in the journal."""
    bench.partition(at)
    return {
        bench.settled(value, at=at).base_offset: value
        for value in (b"%d of %s" % (number, at.topic.encode()) for number in range(count))
    }


# Entries in records


def entry_v1(
    payload: bytes,
    *,
    topic: str = AT.topic,
    partition: int = 0,
    epoch: int = 1,
    sequence: int = 1,
    base_offset: int = 0,
) -> bytes:
    """An entry of a journal of version 1; its checksum has no secret."""
    topic_id = LogBench.topic_id(topic).bytes
    fields = (epoch, sequence, topic_id, partition, len(payload), base_offset, 0)
    body = struct.pack("<QQ16siIqq", *fields) + payload
    return b"PLJE" + struct.pack("<I", kernels.crc32c(body)) + body


def at_every_alignment(entry: bytes) -> bytes:
    """64 copies, one of which begins at a multiple of 64 wherever the record is written."""
    return (entry + bytes(1 - len(entry) % 2)) * 64


FORGED = {
    "less than a batch": (VICTIM, b"x" * 55),
    "half a batch": (VICTIM, batch_at(5, b"half")[:-3]),
    "records of another topic": (VICTIM, batch_at(5, b"forged")),
}


@pytest.mark.parametrize("forgery", FORGED)
@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_record_cannot_pass_for_a_journal_entry(forgery: str, ending: str) -> None:
    bench = DiskBench()
    expected = {at: fill(bench, 5, at) for at in (AT, VICTIM)}
    target, payload = FORGED[forgery]
    for epoch in range(1, 6):
        entry = entry_v1(payload, topic=target.topic, epoch=epoch, sequence=1000, base_offset=5)
        value = at_every_alignment(entry)
        expected[AT][bench.settled(value).base_offset] = value
    # What the first of two lives had in the journal lies there still in the second.
    bench = bench.restart(ending).restart(ending)
    check_lives(bench, expected, (ending, "stop", "kill", "cut"))


def test_a_record_that_holds_the_token_is_synced_without_the_journal() -> None:
    bench = DiskBench()
    expected = {at: fill(bench, 5, at) for at in (AT, VICTIM)}
    forged = Entry(LogBench.topic_id("victim"), 0, 5, 0, 0, batch_at(5, b"forged"))
    chunk = bench.store.journal.place([forged])  # not written: only its bytes are wanted
    assert chunk is not None
    before = bench.metrics.journal_bytes
    value = at_every_alignment(bytes(chunk.data))
    expected[AT][bench.settled(value).base_offset] = value
    assert bench.metrics.journal_bytes == before
    expected[AT][bench.settled(b"the next one").base_offset] = b"the next one"
    assert bench.metrics.journal_bytes > before
    bench = bench.restart("cut")
    assert bench.metrics.journal_entries_rejected == 0
    check_lives(bench, expected)


def test_entries_of_an_earlier_life_do_not_count() -> None:
    bench = DiskBench()
    expected = {at: fill(bench, 5, at) for at in (AT, VICTIM)}
    forged = Entry(LogBench.topic_id("victim"), 0, 5, 0, 0, batch_at(5, b"forged"))
    chunk = bench.store.journal.place([forged])
    assert chunk is not None
    bench = bench.restart("stop")
    value = at_every_alignment(bytes(chunk.data))
    expected[AT][bench.settled(value).base_offset] = value
    assert bench.metrics.journal_bytes > len(value), "it is not in the journal"
    check_lives(bench, expected, ("cut", "kill", "stop"))


# Wrong entries


def entry_with(payload: bytes, **fields: int) -> Callable[[int], Entry]:
    """Make an entry for the end of the log, at a position, with some fields changed."""

    def make(position: int) -> Entry:
        entry = Entry(LogBench.topic_id("events"), 0, 5, 0, position, payload)
        return entry._replace(**fields)

    return make


WRONG = {
    "garbage": entry_with(b"these are no batches " * 10),
    "zeros": entry_with(bytes(200)),
    "nothing": entry_with(b""),
    "half a batch": entry_with(batch_at(5, b"torn")[:-1]),
    "a batch and a half": entry_with(batch_at(5, b"whole") + batch_at(6, b"torn")[:40]),
    "a wrong checksum": entry_with(batch_at(5, b"value")[:-1] + b"\1"),
    "another offset than it says": entry_with(batch_at(6, b"value")),
    "offsets that go back": entry_with(batch_at(5, b"value") + batch_at(5, b"value")),
    "an offset before its segment": entry_with(batch_at(5, b"value"), segment_base=6),
    "a negative segment": entry_with(batch_at(5, b"value"), segment_base=-1),
    "a negative position": entry_with(batch_at(5, b"value"), position=(1 << 64) - 70),
    "a position beyond all segments": entry_with(batch_at(5, b"value"), position=1 << 40),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("ending", ["kill", "cut"])
def test_an_entry_that_cannot_be_applied_is_set_aside(wrong: str, ending: str) -> None:
    bench = DiskBench()
    expected = {at: fill(bench, 5, at) for at in (AT, VICTIM)}
    entry = WRONG[wrong](bench.store.get(AT).active.size)
    journal = bench.store.journal
    chunk = journal.place([entry])
    assert chunk is not None
    bench.files.write_synced(journal.file, chunk.data, chunk.position)
    bench = bench.restart(ending)
    assert bench.metrics.journal_entries_rejected == 1
    assert bytes(find_inode(bench.disk, "journal.rejected").cache) == entry.payload
    bench = bench.restart("kill")
    assert bench.metrics.journal_entries_rejected == 0, "reported once"
    check_lives(bench, expected)


def test_entries_of_partitions_that_do_not_exist_are_left_out() -> None:
    bench = DiskBench()
    expected = {AT: fill(bench)}
    journal = bench.store.journal
    whole = Entry(LogBench.topic_id("events"), 0, 5, 0, 0, batch_at(5, b"value"))
    chunk = journal.place([whole._replace(partition=-5), whole._replace(topic_id=UUID(int=3))])
    assert chunk is not None
    bench.files.write_synced(journal.file, chunk.data, chunk.position)
    bench = bench.restart("cut")
    assert bench.metrics.journal_entries_rejected == 0
    check_lives(bench, expected)


# A journal of version 1


def put_journal_v1(disk: Disk, entries: list[bytes], *, first_at: int, size: int) -> None:
    """Write the file as a crash of an older version leaves it: one header slot, then entries."""
    data = bytearray(size)
    body = struct.pack("<IIQQQQ", 1, 0, 7, 1, 1, first_at)
    data[4096 : 4096 + 48] = b"PLJH" + struct.pack("<I", kernels.crc32c(body)) + body
    position = first_at
    for entry in entries:
        if position + len(entry) > size:
            position = 8192
        data[position : position + len(entry)] = entry
        position += (len(entry) + 63) // 64 * 64
    files = DiskBench(disk, open_now=False).files
    for name, content in (("journal", bytes(data)), ("pentalog.format", b"1\n")):
        file = files.open(DATA / name, create=True)
        files.truncate(file, 0)
        files.write(file, content, 0)
        files.sync(file)


@pytest.mark.parametrize("first_at", [8192, 240 << 10], ids=["in order", "wrapped"])
def test_a_journal_of_version_1_is_read(first_at: int) -> None:
    bench = DiskBench()
    expected = {at: fill(bench, 5, at) for at in (AT, VICTIM)}
    bench = bench.restart("stop").restart("kill")
    bench.crash()
    entries: list[bytes] = []
    for offset in range(5, 15):
        for topic, sequence in (("events", 2 * offset - 9), ("victim", 2 * offset - 8)):
            value = b"only in the journal %d" % offset
            # Each holds an entry that must not be searched for.
            value += at_every_alignment(
                entry_v1(batch_at(15, b"forged"), sequence=21, base_offset=15)
            )
            expected[Partition(topic, 0)][offset] = value
            payload = batch_at(offset, value)
            entries.append(entry_v1(payload, topic=topic, sequence=sequence, base_offset=offset))
    put_journal_v1(bench.disk, entries, first_at=first_at, size=256 << 10)
    bench = bench.again()
    assert bench.metrics.journal_entries_rejected == 0
    check_lives(bench, expected)


# Batches in values


def tear_short(disk: Disk, start: int) -> None:
    find_inode(disk, LOG).truncate(start + 2 * PAGE)


def tear_tail(disk: Disk, start: int) -> None:
    inode = find_inode(disk, LOG)
    inode.write(bytes(PAGE // 2), len(inode.cache) - PAGE // 2)


def tear_head(disk: Disk, start: int) -> None:
    find_inode(disk, LOG).write(bytes(PAGE), start)


@pytest.mark.parametrize("tear", [tear_short, tear_tail, tear_head])
@pytest.mark.parametrize("flush_interval_ms", [100, 0])
def test_a_torn_batch_gives_no_phantoms(
    tear: Callable[[Disk, int], None], flush_interval_ms: int
) -> None:
    bench = DiskBench(flush_interval_ms=flush_interval_ms)
    expected = {AT: fill(bench)}
    bench.store.get(AT).sync_all()
    start = bench.store.get(AT).active.size
    bench.append(nested(5))
    bench.crash()
    tear(bench.disk, start)
    cut_power(bench.disk, kept=everything)
    bench = bench.again()
    assert bench.store.get(AT).end_offset == 5
    check_lives(bench, expected, ("kill", "stop", "kill"))


DAMAGED = {"offset": 3, "length": 10, "magic": 16, "checksum": 17, "records": 70}
"""Fields of a batch, and where one of their bytes is."""


@pytest.mark.parametrize("field", DAMAGED)
@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_damaged_batch_gives_no_phantoms(field: str, ending: str) -> None:
    bench = DiskBench()
    expected = {AT: fill(bench)}
    start = bench.store.get(AT).active.size
    bench.settled(nested(5))
    expected[AT].update(
        {bench.settled(value).base_offset: value for value in (b"six", b"seven", b"eight")}
    )
    if ending == "stop":
        bench.stop()
    else:
        bench.crash()
        bench.files.remove(bench.directory / "journal")  # it would repair the damage
    inode = find_inode(bench.disk, LOG)
    inode.cache[start + DAMAGED[field]] ^= 1
    inode.durable = bytearray(inode.cache)
    bench = bench.again()
    found = bench.durable(AT)
    if ending == "stop":
        assert found == expected[AT]
    else:
        # A batch with a wrong length may be torn, and nothing is known of what follows it.
        assert found.items() <= expected[AT].items()
        assert len(found) >= 5
    check_lives(bench, {AT: found})
