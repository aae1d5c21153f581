"""The directories of partitions in a data directory: which there are, and whose they are."""

from __future__ import annotations

import base64
import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

from pentalog.log import checkpoints
from pentalog.log.checkpoints import spell
from pentalog.log.files import Files
from pentalog.log.segment import segment_path
from pentalog.model.internal import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from pentalog.model.types import Partition

log = logging.getLogger("pentalog.log")

_PARTITION_NAME: Final = re.compile(r"(.+)-(\d+)")
_KAFKA_INTERNAL: Final = frozenset(
    {"__cluster_metadata", "__consumer_offsets", "__transaction_state", "__share_group_state"}
)
_TOPIC_ID: Final = "partition.metadata"
DOOMED: Final = ".doomed"
"""How the names of directories end that are only still to be removed."""


class StoreError(Exception):
    """The data directory cannot be used; the text says why and what to do."""


class Directories:
    def __init__(self, files: Files, directory: Path, names: checkpoints.Names) -> None:
        self.files = files
        self.directory = directory
        self.left_alone: set[str] = set()
        """Topics of which an Apache Kafka's directories lie here; they are not ours to touch."""
        self._names = names

    def found(self) -> Iterator[tuple[Partition, str]]:
        """Partitions and the names of their directories; what was deleted goes now."""
        for name in self.files.list(self.directory):
            if name.endswith(DOOMED):
                self.files.remove_directory(self.directory / name)
                continue
            match = _PARTITION_NAME.fullmatch(name)
            if match is None or self._is_bare(self.directory / name):
                continue
            topic = self._names.read(match[1], int(match[2]))
            if topic is None:
                self._check_nameless(match[1], name)
                continue
            if topic in _KAFKA_INTERNAL and not self._is_ours(topic, name):
                log.warning("leaving %s alone: Kafka's own bookkeeping is not taken over", name)
                self.left_alone.add(topic)
                continue
            at = Partition(topic, int(match[2]))
            if spell(at) == name:
                yield at, name

    def _is_bare(self, directory: Path) -> bool:
        """Was this directory just being made when the broker ended?  Then it is as good as none.

        So is a file that somebody has put there.
        """
        try:
            files = self.files.list(directory)
        except NotADirectoryError:
            return True
        return _TOPIC_ID not in files and not any(file.endswith(".log") for file in files)

    def _check_nameless(self, spelled: str, name: str) -> None:
        """A directory whose name was not written yet is as good as none: it is made again."""
        directory = self.directory / name
        if checkpoints.needs_name_file(spelled) and any(
            file.endswith(".log") for file in self.files.list(directory)
        ):
            raise StoreError(
                f"{directory / checkpoints.NAME_FILE} is missing or damaged: it must hold the name "
                f"of the topic whose records lie there; bring it back, or move {name} away"
            )

    def _is_ours(self, topic: str, name: str) -> bool:
        return topic == OFFSETS_TOPIC and (self.topic_id(self.directory / name) == OFFSETS_TOPIC_ID)

    def topic_id(self, directory: Path) -> UUID:
        """As it is written there; nought if it is not."""
        text = checkpoints.read_text(self.files, directory / _TOPIC_ID)
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "topic_id":
                try:
                    return UUID(bytes=base64.urlsafe_b64decode(value.strip() + "=="))
                except ValueError:
                    break
        return UUID(int=0)

    def write_topic_id(self, directory: Path, topic_id: UUID) -> None:
        spelled = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
        file = self.files.open(directory / _TOPIC_ID, create=True)
        try:
            self.files.write(file, f"version: 0\ntopic_id: {spelled}\n".encode(), 0)
        finally:
            file.close()

    def unmake(self, directory: Path) -> None:
        """What is left would be taken for a topic, or for a Kafka's, at the next start."""
        for path in (directory / _TOPIC_ID, segment_path(directory, 0, ".log")):
            with contextlib.suppress(OSError):
                self.files.remove(path)
        # May fail where no more files can be opened; a bare directory is as good as none.
        with contextlib.suppress(OSError):
            self.files.remove_directory(directory)
