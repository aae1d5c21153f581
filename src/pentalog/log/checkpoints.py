"""Small text files of a data directory: names, offsets by partition, what a clean stop leaves.

A topic's name is spelled as one file name, whatever it is: its bytes quoted as in web addresses,
or, where that would be too long or nothing at all, by its digest.  Then the directory of each of
its partitions has a file `name` that holds the name itself.

Offset checkpoints: a version line (1), a line with the count and the CRC-32C (decimal) of what
follows, then one line `topic partition offset topic-id` each; topic names are spelled as in
directory names, ids are hexadecimal.  An offset belongs to the topic with that id: a topic made
later under the same name does not inherit it.  Version 0 is Kafka's own, without checksum and ids;
it is read, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from pentalog.kernels import crc32c
from pentalog.log.files import Files
from pentalog.log.recovery import CleanStop
from pentalog.model.types import Partition

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED_OFFSETS: Final = "cleaner-offset-checkpoint"
CLEAN_STOP: Final = "pentalog.clean"


NAME_FILE: Final = "name"
_SPELLED_BYTES_MAX: Final = 249
"""With a dash and five digits it still fits a file name of 255 bytes."""
_DIGEST: Final = "%sha256-"
"""No quoted name begins so: behind its `%` are two hexadecimal digits."""
_NAMES_MAX: Final = 1_000
_TEXT_BYTES_MAX: Final = 256 << 20
"""What a larger file holds is not read: its checksum will not be right."""


def spell_topic(topic: str) -> str:
    """A topic's name as it may stand in a file name: `/`, `%`, spaces and control are quoted."""
    if len(topic) <= _SPELLED_BYTES_MAX:
        quoted = quote(topic, safe="._-")
        if 0 < len(quoted) <= _SPELLED_BYTES_MAX:
            return quoted
    return _DIGEST + hashlib.sha256(topic.encode()).hexdigest()


def needs_name_file(spelled: str) -> bool:
    """Can the name not be read from its spelling?"""
    return spelled.startswith(_DIGEST)


class Names:
    """Reads what topics are called from how they are spelled in one data directory."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._known: dict[str, str] = {}

    def read(self, spelled: str, index: int) -> str | None:
        """The topic of a directory `SPELLED-INDEX`; None if that is no name's spelling.

        A digest vouches for the file it is read from, so it need not be read again.
        """
        if not needs_name_file(spelled):
            try:
                topic = unquote(spelled, errors="strict")
            except UnicodeDecodeError:
                return None
            return topic if spell_topic(topic) == spelled else None
        known = self._known.get(spelled)
        if known is None:
            path = self._directory / f"{spelled}-{index}" / NAME_FILE
            try:
                known = read_text(self._files, path)
            except OSError:
                return None
            if spell_topic(known) != spelled:
                return None
            if len(self._known) >= _NAMES_MAX:
                self._known.clear()
            self._known[spelled] = known
        return known


def spell(at: Partition) -> str:
    """The name of a partition's directory."""
    return f"{spell_topic(at.topic)}-{at.index}"


def read_text(files: Files, path: Path) -> str:
    if not files.exists(path):
        return ""
    file = files.open(path, writable=False)
    try:
        size = min(files.size(file), _TEXT_BYTES_MAX)
        return files.read(file, size, 0).decode("utf-8", "replace")
    finally:
        file.close()


class Checkpointed(NamedTuple):
    """An offset of a checkpoint."""

    offset: int
    topic_id: UUID | None
    """Of the topic it belongs to; None if the checkpoint does not say."""

    def of(self, topic_id: UUID) -> bool:
        """Does it belong to this topic?"""
        return self.topic_id is None or self.topic_id == topic_id


def read_offsets(
    files: Files, path: Path, damaged: Callable[[Path], None] = lambda _: None
) -> dict[str, Checkpointed]:
    """By directory name; nothing of a damaged checkpoint, which is reported."""
    text = read_text(files, path)
    if not text:
        return {}
    version, _, rest = text.partition("\n")
    second, _, body = rest.partition("\n")
    head = second.split()
    offsets = {
        f"{words[0]}-{words[1]}": found
        for line in body.splitlines()
        if (words := line.split()) and (found := _checkpointed(words)) is not None
    }
    expected = {"0": [str(len(offsets))], "1": [str(len(offsets)), str(crc32c(body.encode()))]}
    if head != expected.get(version.strip()):
        damaged(path)
        return {}
    return offsets


def _checkpointed(words: Sequence[str]) -> Checkpointed | None:
    if not 3 <= len(words) <= 4 or not (words[1].isdecimal() and words[2].isdecimal()):
        return None
    try:
        return Checkpointed(int(words[2]), UUID(hex=words[3]) if len(words) == 4 else None)
    except ValueError:
        return None


def offset_of(offsets: Mapping[str, Checkpointed], name: str, topic_id: UUID) -> int | None:
    """What a checkpoint says of a partition, unless it is of another topic of that name."""
    found = offsets.get(name)
    return found.offset if found is not None and found.of(topic_id) else None


def offsets_text(offsets: Mapping[str, Checkpointed]) -> str:
    """The text of a checkpoint, of offsets by directory name."""
    body = "".join(
        f"{' '.join(name.rsplit('-', 1))} {offset}{f' {topic_id.hex}' if topic_id else ''}\n"
        for name, (offset, topic_id) in offsets.items()
    )
    return f"1\n{len(offsets)} {crc32c(body.encode())}\n{body}"


def read_clean_stop(files: Files, path: Path) -> dict[str, CleanStop]:
    """By directory name; nothing unless the last stop was clean."""
    try:
        found = json.loads(read_text(files, path) or "{}")
        partitions = found.get("partitions", {})
        # Directories of format 1 have no checksum.
        if found.get("crc32c", _checksum(partitions)) != _checksum(partitions):
            return {}
        return {name: CleanStop(*map(int, numbers)) for name, numbers in partitions.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def clean_stop_text(stops: Mapping[str, CleanStop]) -> str:
    found = {"version": 1, "crc32c": _checksum(stops), "partitions": stops}
    return json.dumps(found, indent=0) + "\n"


def _checksum(partitions: object) -> int:
    """Of the numbers of a clean stop, whatever the spaces between them."""
    return crc32c(json.dumps(partitions).encode())
