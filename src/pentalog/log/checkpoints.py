"""Small text files of a data directory: offsets by partition, and what a clean stop leaves.

Offset checkpoints are Kafka's own: a version line (0), a count line, then one line
`topic partition offset` each; topic names are spelled as in directory names.
"""

from __future__ import annotations

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


def spell_topic(topic: str) -> str:
    """A topic's name as it may stand in a file name: `/`, `%`, spaces and control are quoted."""
    return quote(topic, safe="._-")


def read_topic(spelled: str) -> str:
    return unquote(spelled, errors="strict")


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
    files: Files, path: Path, damaged: Callable[[Path], None] = lambda _: None
) -> dict[Partition, int]:
    """Nothing of a damaged checkpoint, which is told: it only costs time."""
    offsets: dict[Partition, int] = {}
    lines = read_text(files, path).splitlines()
    if not lines:
        return offsets
    for line in lines[2:]:
        words = line.split()
        if len(words) == 3 and words[1].isdecimal() and words[2].isdecimal():
            offsets[Partition(read_topic(words[0]), int(words[1]))] = int(words[2])
    if lines[0].strip() != "0" or [str(len(offsets))] != lines[1:2]:
        damaged(path)
        return {}
    return offsets


def offsets_text(offsets: Mapping[Partition, int]) -> str:
    lines = [f"{spell_topic(at.topic)} {at.index} {offset}\n" for at, offset in offsets.items()]
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
