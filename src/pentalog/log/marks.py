"""Where other processes may read each partition: published beside the log, a few times a second.

File `pentalog.marks`, text, replaced whole: a line `1 COUNT CHECKSUM` (CRC-32C of what follows, in
decimal), then one line per partition

    topic partition topic-id start stable durable

with the topic spelled as in directory names and its id in hexadecimal.  A line is true for good:
marks only move forward, so a file that is behind shows less, never what could still be undone.  It
is not synced: one that a crash left empty or cut has a wrong checksum and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from pentalog.kernels import crc32c
from pentalog.log.checkpoints import Names, read_text, spell_topic
from pentalog.log.files import Files
from pentalog.log.partition import PartitionLog
from pentalog.model.types import Offset, Partition

FILE_NAME: Final = "pentalog.marks"


class PublishedMarks(NamedTuple):
    topic_id: UUID
    start: Offset
    stable: Offset
    durable: Offset


class MarksFile:
    def __init__(self, directory: Path, files: Files) -> None:
        self._path = directory / FILE_NAME
        self._files = files
        self._lines: dict[Partition, tuple[PublishedMarks, str]] = {}
        self._written: str | None = None

    def publish(self, partitions: Iterable[PartitionLog]) -> None:
        """Bring the file up to date; raises OSError."""
        text = "".join([self._line(partition) for partition in partitions])
        if text == self._written:
            return
        body = text.encode()
        count = text.count("\n")
        draft = self._path.with_name(FILE_NAME + ".tmp")
        file = self._files.open(draft, create=True)
        try:
            self._files.truncate(file, 0)
            self._files.write(file, f"1 {count} {crc32c(body)}\n".encode() + body, 0)
        finally:
            file.close()
        self._files.rename(draft, self._path)
        self._written = text

    def forget(self, at: Partition) -> None:
        self._lines.pop(at, None)

    def _line(self, partition: PartitionLog) -> str:
        kept = self._lines.get(partition.at)
        marks = PublishedMarks(
            partition.topic_id,
            partition.start_offset,
            partition.stable_offset,
            partition.durable.offset,
        )
        if kept is not None and kept[0] == marks:
            return kept[1]
        if partition.aborts_unwritten:
            # Whoever reads the files could not tell yet what was aborted.
            return kept[1] if kept is not None else ""
        at = partition.at
        line = (
            f"{spell_topic(at.topic)} {at.index} {marks.topic_id.hex}"
            f" {marks.start} {marks.stable} {marks.durable}\n"
        )
        self._lines[at] = (marks, line)
        return line


def read_marks(
    files: Files, directory: Path, names: Names | None = None
) -> dict[Partition, PublishedMarks] | None:
    """None if there is no file, or none that can be believed."""
    names = Names(files, directory) if names is None else names
    first, _, body = read_text(files, directory / FILE_NAME).partition("\n")
    words = first.split()
    if len(words) != 3 or words[0] != "1" or words[2] != str(crc32c(body.encode())):
        return None
    found: dict[Partition, PublishedMarks] = {}
    for line in body.splitlines():
        spelled, index, topic_id, start, stable, durable = line.split(" ")
        topic = names.read(spelled, int(index))
        if topic is None:
            continue  # deleted since the file was written
        found[Partition(topic, int(index))] = PublishedMarks(
            UUID(hex=topic_id), int(start), int(stable), int(durable)
        )
    return found
