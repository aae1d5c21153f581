"""The directories of partitions in a data directory: which there are, and whose they are."""

from __future__ import annotations

import base64
import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final
from uuid import UUID

from pentalog.kernels import crc32c
from pentalog.log import checkpoints
from pentalog.log.checkpoints import spell
from pentalog.log.files import Files, Handle
from pentalog.log.segment import segment_path
from pentalog.model.ids import spell_id
from pentalog.model.internal import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from pentalog.model.types import Partition

log = logging.getLogger("pentalog.log")

_PARTITION_NAME: Final = re.compile(r"(.+)-(\d+)")
_KAFKA_INTERNAL: Final = frozenset(
    {"__cluster_metadata", "__consumer_offsets", "__transaction_state", "__share_group_state"}
)
TOPIC_ID_FILE: Final = "partition.metadata"
LOCK_FILE: Final = ".lock"
DOOMED: Final = ".doomed"
"""How the names of directories end that are only still to be removed."""
STRAY: Final = ".stray"
"""How the names of directories end whose topic is not known any more; they are left alone."""


class StoreError(Exception):
    """The data directory cannot be used; the text says why and what to do."""


class Locked(StoreError): ...


def lock_directory(files: Files, directory: Path) -> Handle:
    """Make the directory if there is none, and take its lock; raises `StoreError`.

    The permissions of other users are removed; earlier versions left them to the umask.
    """
    marker = directory / LOCK_FILE
    try:
        if not files.exists(directory):
            files.make_directory(directory)
            files.sync_directory(directory.parent)
        lock = files.lock(marker)
    except BlockingIOError as error:
        raise Locked(
            f"{directory} is in use by another broker; stop it or choose another --data"
        ) from error
    except OSError as error:
        raise StoreError(
            f"cannot use {directory} as data directory: {error.filename}: {error.strerror}; "
            f"choose another --data"
        ) from error
    changed, refused = files.restrict(directory, marker)
    if refused:
        log.warning(
            "other users keep their permissions for %d files in %s, which belong to another "
            "user; restrict them with chmod -R go= %s",
            refused,
            directory,
            directory,
        )
    elif changed:
        log.info("removed other users' permissions from %d files in %s", changed, directory)
    return lock


def read_topic_id(files: Files, directory: Path) -> UUID:
    """As it is written there; nought if it is not."""
    text = checkpoints.read_text(files, directory / TOPIC_ID_FILE)
    words = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    spelled = words.get("topic_id", "").strip()
    # Kafka writes no checksum, and neither did directories of format 1.
    if words.get("crc32c", _checksum(spelled)) != _checksum(spelled):
        return UUID(int=0)
    try:
        return UUID(bytes=base64.urlsafe_b64decode(spelled + "=="))
    except ValueError:
        return UUID(int=0)


class Directories:
    def __init__(self, files: Files, directory: Path, names: checkpoints.Names) -> None:
        self.files = files
        self.directory = directory
        self.left_alone: set[str] = set()
        """Topics of which an Apache Kafka's directories lie here; they are not ours to touch."""
        self.named: Mapping[str, UUID] = {}
        """The ids of topics, by directory name, as other files than their own name them."""
        self._names = names

    def found(self) -> Iterator[tuple[Partition, str]]:
        """Partitions and the names of their directories; what was deleted goes now."""
        for name in self.files.list(self.directory):
            if name.endswith(DOOMED):
                try:
                    self.remove(self.directory / name)
                except OSError as error:
                    log.warning("cannot remove %s of a deleted topic: %s", name, error)
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
        return TOPIC_ID_FILE not in files and not any(file.endswith(".log") for file in files)

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
        found = self.topic_id(self.directory / name)
        known = found if found.int else self.named.get(name)
        return topic == OFFSETS_TOPIC and known == OFFSETS_TOPIC_ID

    def topic_id(self, directory: Path) -> UUID:
        return read_topic_id(self.files, directory)

    def write_topic_id(self, directory: Path, topic_id: UUID) -> None:
        spelled = spell_id(topic_id)
        file = self.files.open(directory / TOPIC_ID_FILE, create=True)
        try:
            text = f"version: 0\ntopic_id: {spelled}\ncrc32c: {_checksum(spelled)}\n".encode()
            self.files.write(file, text, 0)
            self.files.truncate(file, len(text))
        finally:
            file.close()

    def make_way(self, directory: Path, topic_id: UUID) -> None:
        """Move a directory away that is in the place of one to be made for a topic.

        It is what a topic deleted earlier has left where the disk resisted; none of its records
        may turn up in the new topic.
        """
        if not self.files.exists(directory) or self._is_bare(directory):
            return
        found = self.topic_id(directory)
        if found != topic_id:
            self.move_away(directory, found, DOOMED)

    def move_away(self, directory: Path, topic_id: UUID, ending: str) -> Path:
        """Take a directory of a topic out of the log; gives its new place."""
        name = f"{topic_id.hex}-{directory.name.rpartition('-')[2]}"
        names = (f"{name}{f'.{number}' if number else ''}{ending}" for number in count())
        places = (self.directory / name for name in names)
        place = next(place for place in places if not self.files.exists(place))
        self.files.rename(directory, place)
        return place

    def remove(self, directory: Path) -> None:
        """Remove a directory that was moved away; slow, for a thread; raises OSError.

        A power cut must not bring its old name back, with only a part of what was in it.
        """
        self.files.sync_directory(self.directory)
        self.files.remove_directory(directory)

    def unmake(self, directory: Path) -> None:
        """What is left would be taken for a topic, or for a Kafka's, at the next start."""
        for path in (directory / TOPIC_ID_FILE, segment_path(directory, 0, ".log")):
            with contextlib.suppress(OSError):
                self.files.remove(path)
        # May fail where no more files can be opened; a bare directory is as good as none.
        with contextlib.suppress(OSError):
            self.files.remove_directory(directory)


def owners_of(
    found: Sequence[tuple[Partition, str]],
    ids: Mapping[str, UUID],
    points: Mapping[str, checkpoints.Checkpointed],
) -> dict[tuple[UUID, int], str]:
    """Map each partition of a topic id to the directory that the journal's entries belong to.

    A directory that was copied, or that has the metadata file of another one, names the same
    partition.  Entries replayed there would overwrite its records and be missing in the other.
    """
    owners: dict[tuple[UUID, int], str] = {}
    for at, name in found:
        topic_id = ids[name]
        checkpointed = points.get(name)
        known = checkpointed is not None and checkpointed.topic_id == topic_id
        if known or (topic_id, at.index) not in owners:
            owners[topic_id, at.index] = name
    return owners


def _checksum(topic_id: str) -> str:
    return str(crc32c(topic_id.encode()))
