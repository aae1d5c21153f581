"""Small text files of a data directory: names, offsets by partition, what a clean stop leaves.

A topic's name is spelled as one file name, whatever it is: its bytes quoted as in web addresses,
or, where that would be too long or nothing at all, by its digest.  Then the directory of each of
its partitions has a file `name` that holds the name itself.

Offset checkpoints are Kafka's own: a version line (0), a count line, then one line
`topic partition offset` each; topic names are spelled as in directory names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

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
        return files.read(file, files.size(file), 0).decode("utf-8", "replace")
    finally:
        file.close()


def read_offsets(
    files: Files,
    path: Path,
    damaged: Callable[[Path], None] = lambda _: None,
    names: Names | None = None,
) -> dict[Partition, int]:
    """As `read_spelled`, by partition; what is spelled there and has no name is left out."""
    names = Names(files, path.parent) if names is None else names
    offsets: dict[Partition, int] = {}
    for spelled, offset in read_spelled(files, path, damaged).items():
        topic, _, index = spelled.rpartition("-")
        name = names.read(topic, int(index))
        if name is not None:
            offsets[Partition(name, int(index))] = offset
    return offsets


def read_spelled(
    files: Files, path: Path, damaged: Callable[[Path], None] = lambda _: None
) -> dict[str, int]:
    """By directory name.  Nothing of a damaged checkpoint, which is told: it only costs time."""
    offsets: dict[str, int] = {}
    lines = read_text(files, path).splitlines()
    if not lines:
        return offsets
    for line in lines[2:]:
        words = line.split()
        if len(words) == 3 and words[1].isdecimal() and words[2].isdecimal():
            offsets[f"{words[0]}-{words[1]}"] = int(words[2])
    if lines[0].strip() != "0" or [str(len(offsets))] != lines[1:2]:
        damaged(path)
        return {}
    return offsets


def offsets_text(offsets: Mapping[Partition, int]) -> str:
    return spelled_text({spell(at): offset for at, offset in offsets.items()})


def spelled_text(offsets: Mapping[str, int]) -> str:
    """The text of a checkpoint, of offsets by directory name."""
    lines = [f"{' '.join(name.rsplit('-', 1))} {offset}\n" for name, offset in offsets.items()]
    return f"0\n{len(lines)}\n{''.join(lines)}"


def read_clean_stop(files: Files, path: Path) -> dict[str, CleanStop]:
    """By directory name; nothing unless the last stop was clean."""
    try:
        found = json.loads(read_text(files, path) or "{}")
        return {
            name: CleanStop(*map(int, numbers))
            for name, numbers in found.get("partitions", {}).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def clean_stop_text(stops: Mapping[str, CleanStop]) -> str:
    return json.dumps({"version": 1, "partitions": stops}, indent=0) + "\n"
