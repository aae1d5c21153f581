"""Copies of a data directory that can be started on: taken while a broker writes, and verified.

A backup is a data directory with `pentalog.backup.json` beside the rest: the manifest, which names
every file with its size and SHA-256.  What it holds is the log up to one moment, the cut, taken
right behind a snapshot of the broker's state:

    1. the state, as it is at one moment: SQLite keeps it for us while others write
    2. the cut: how long every segment is now; segments grow behind it only
    3. if a transaction was decided meanwhile, again from 1: its markers could be in some
       partitions' parts and not in others'.  Else the state of 1 is copied
    4. the files, each up to the cut; retention and compaction may take them away under our hands,
       then the partition is looked at again
    5. every checksum of every batch, and the newest segments cut behind their last whole batch

So everything acknowledged before the backup began is in it.  The journal is left out while a broker
runs: the segments hold the same and more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from pentalog.broker.state import FILE_NAME as STATE
from pentalog.cli.output import Refused
from pentalog.cli.private_files import created_private, make_private
from pentalog.cli.progress import Progress
from pentalog.cli.segments import SEGMENT_NAME, walked
from pentalog.log import checkpoints
from pentalog.log.checkpoints import Checkpointed
from pentalog.log.files import RealFiles
from pentalog.log.format import FORMAT, FORMAT_FILE, FORMATS_READ, read_format

MANIFEST: Final = "pentalog.backup.json"
VERSION: Final = 1

_DRAFT: Final = ".partial"
_CHUNK_BYTES: Final = 4 << 20
_TRIES: Final = 50
_CUTS: Final = 500
_DECIDED: Final = (
    "SELECT name, producer_id, epoch, phase, updated_ms FROM transactions"
    " WHERE phase NOT IN ('Empty', 'Ongoing') ORDER BY name"
)
_PARTITION_NAME: Final = re.compile(r".+-\d+")
_BESIDE: Final = (".index", ".timeindex", ".txnindex")
_SWAPPING: Final = ".swap"
_SMALL: Final = (checkpoints.LOG_STARTS, checkpoints.CLEANED_OFFSETS)


class Piece(NamedTuple):
    """One segment as it was at the cut."""

    base: int
    size: int
    inode: int
    changed_ns: int


class Moved(Exception):
    """Retention or compaction exchanged files of a partition while it was copied."""


class Summary(NamedTuple):
    partitions: int
    segments: int
    records: int
    bytes: int
    linked: int
    """Segments that were linked instead of copied."""
    damages: tuple[str, ...]


# Taking one


def take(data: Path, into: Path, *, base: Path | None = None, link: bool = False) -> Summary:
    """Back up `data`; what did not change since the backup `base` is linked to it."""
    _check_source(data)
    known = {} if base is None else _read_manifest(base)["files"]
    with _drafted(into, f"cannot back up {data}") as draft, _stopped(data) as stopped:
        for name in _SMALL:
            if (data / name).exists():
                shutil.copyfile(data / name, draft / name)
        cut = _cut(data, draft)
        copy = _Copy(data, draft, base=base, known=known, link=link)
        total = sum(piece.size for pieces in cut.values() for piece in pieces)
        with Progress("copying", total, in_bytes=True) as progress:
            for name, pieces in cut.items():
                copy.partition(name, pieces, progress)
        if stopped and (data / "journal").exists():
            # After a power cut it may hold what the segments lack.
            copy.file("journal")
        _note_compacted(data, draft)
        return _finish(draft, copy)


def _note_compacted(data: Path, draft: Path) -> None:
    """Offsets may be missing in what was compacted while we copied: the next start must know."""
    path = draft / checkpoints.CLEANED_OFFSETS
    before = checkpoints.read_offsets(RealFiles(), path)
    after = checkpoints.read_offsets(RealFiles(), data / checkpoints.CLEANED_OFFSETS)
    if after.keys() - before.keys():
        unknown = {name: found._replace(offset=0) for name, found in after.items()}
        _write(path, checkpoints.offsets_text(unknown | before))


def _check_source(data: Path) -> None:
    try:
        text = read_format(RealFiles(), data)
    except OSError as error:
        raise Refused(f"cannot read the format of {data}: {error}") from error
    if text not in FORMATS_READ:
        raise Refused(f"{data} is no data directory of format {FORMAT}; name a broker's --data")


@contextmanager
def _drafted(into: Path, failing: str) -> Iterator[Path]:
    """A directory that gets its name when all is in it, and is removed if that fails."""
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise Refused(f"{into} is there already and not empty; name a directory that is new")
    draft = into.with_name(into.name + _DRAFT)
    if draft.exists():
        raise Refused(f"{draft} was left by a run that was killed; remove it and try again")
    try:
        # What the state knows of users is nobody else's business.
        with created_private():
            draft.mkdir(parents=True)
            yield draft
        if into.exists():
            into.rmdir()
        draft.rename(into)
        _sync_directory(into.resolve().parent)
    except (OSError, sqlite3.Error) as error:
        raise Refused(f"{failing}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _stopped(data: Path) -> Iterator[bool]:
    """True if no broker uses the directory; none can start on it then."""
    try:
        lock = RealFiles().lock(data / ".lock")
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        lock.close()


def _cut(data: Path, draft: Path) -> dict[str, list[Piece]]:
    """What there is now, and the state right before, copied to the draft."""
    if not (data / STATE).exists():
        return _all_pieces(data)
    for _ in range(_CUTS):
        with closing(sqlite3.connect(data / STATE, timeout=30, isolation_level=None)) as ours:
            # From here on this connection sees the state of this moment, whatever is written.
            ours.execute("BEGIN")
            before = ours.execute(_DECIDED).fetchall()
            try:
                cut = _all_pieces(data)
            except Moved:
                cut = None
            if cut is not None and _decided(data / STATE) == before:
                with closing(sqlite3.connect(draft / STATE)) as copy:
                    ours.backup(copy)
                    copy.execute("PRAGMA journal_mode = DELETE")
                return cut
        time.sleep(random.uniform(0, 0.02))
    raise Refused(
        f"transactions are decided or segments exchanged in {data} without a pause; try again when "
        "less is going on"
    )


def _decided(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path, timeout=30)) as state:
        return state.execute(_DECIDED).fetchall()


def _all_pieces(data: Path) -> dict[str, list[Piece]]:
    return {
        path.name: _pieces(path)
        for path in sorted(data.iterdir())
        if _PARTITION_NAME.fullmatch(path.name) and path.is_dir()
    }


def _pieces(directory: Path) -> list[Piece]:
    """Raises `Moved` while a compacted segment is put in place."""
    try:
        names = os.listdir(directory)
        if any(name.endswith(_SWAPPING) for name in names):
            raise Moved
        found: list[Piece] = []
        for match in filter(None, map(SEGMENT_NAME.fullmatch, names)):
            stat = (directory / match[0]).stat()
            found.append(Piece(int(match[1]), stat.st_size, stat.st_ino, stat.st_mtime_ns))
    except FileNotFoundError:
        raise Moved from None
    return sorted(found)


class _Copy:
    """What has been copied so far."""

    def __init__(
        self, data: Path, draft: Path, *, base: Path | None, known: Mapping[str, Any], link: bool
    ) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        self.linked = 0
        self._data, self._draft = data, draft
        self._base, self._known, self._link = base, known, link

    def partition(self, name: str, pieces: list[Piece], progress: Progress) -> None:
        for _ in range(_TRIES):
            try:
                self._partition(name, pieces, progress)
                return
            except (FileNotFoundError, Moved):
                shutil.rmtree(self._draft / name, ignore_errors=True)
                for path in [path for path in self.files if path.startswith(f"{name}/")]:
                    del self.files[path]
                if not (self._data / name).exists():
                    return  # its topic was deleted
                time.sleep(0.05)
                try:
                    pieces = _pieces(self._data / name)
                except Moved:
                    continue
        raise Refused(f"the segments of {name} are exchanged without a pause; try again later")

    def _partition(self, name: str, pieces: list[Piece], progress: Progress) -> None:
        (self._draft / name).mkdir()
        for small in ("partition.metadata", checkpoints.NAME_FILE):
            if (self._data / name / small).exists():
                self.file(f"{name}/{small}")
        for path in sorted((self._data / name).glob("*.producers")):
            self.file(f"{name}/{path.name}")
        for piece in pieces:
            active = piece is pieces[-1]
            self._segment(name, piece, active=active)
            progress.advance(piece.size)
            for suffix in _BESIDE:
                beside = f"{name}/{piece.base:020d}{suffix}"
                # The newest segment's indexes grow with it: the next start makes them anew.
                if (self._data / beside).exists() and (not active or suffix == ".txnindex"):
                    self.file(beside)

    def _segment(self, name: str, piece: Piece, *, active: bool) -> None:
        path = f"{name}/{piece.base:020d}.log"
        source = self._data / path
        if source.stat().st_ino != piece.inode:
            raise Moved
        target = self._draft / path
        fields = {"bytes": piece.size, "changed_ns": piece.changed_ns, "inode": piece.inode}
        if not active:
            before = self._known.get(path)
            unchanged = before is not None and all(before.get(key) == fields[key] for key in fields)
            if self._base is not None and unchanged and _linked(self._base / path, target):
                assert before is not None
                self.files[path] = dict(before)
                self.linked += 1
                return
            if self._link and _linked(source, target):
                if target.stat().st_ino != piece.inode:
                    raise Moved
                self.files[path] = fields | {"sha256": _digest(target)}
                self.linked += 1
                return
        self.files[path] = fields | {"sha256": _copied(source, target, piece)}

    def file(self, path: str) -> None:
        target = self._draft / path
        digest = _copied(self._data / path, target, None)
        self.files[path] = {"bytes": target.stat().st_size, "sha256": digest}


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        return False  # on another disk, or one that knows no links
    with contextlib.suppress(OSError):  # the file of another user
        make_private(target)
    return True


def _copied(source: Path, target: Path, piece: Piece | None) -> str:
    """Copy a file, or the part of it below the cut; gives the SHA-256 of what was read."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("xb") as writer:
        if piece is not None and os.fstat(reader.fileno()).st_ino != piece.inode:
            raise Moved
        left = piece.size if piece is not None else 1 << 62
        while left and (data := reader.read(min(left, _CHUNK_BYTES))):
            digest.update(data)
            writer.write(data)
            left -= len(data)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()


def _finish(draft: Path, copy: _Copy) -> Summary:
    """Verify the copies, cut what was half written, and write the manifest."""
    partitions: dict[str, dict[str, int]] = {}
    damages: list[str] = []
    segments = records = 0
    logs = sorted(path for path in copy.files if path.endswith(".log"))
    last_of = {path.partition("/")[0]: path for path in logs}
    total = sum(copy.files[path]["bytes"] for path in logs)
    with Progress("verifying", total, in_bytes=True) as progress:
        for path in logs:
            name = path.partition("/")[0]
            with walked(draft / path) as found:
                damages += [f"{path} bytes {one.start}..{one.end}" for one in found.damages]
                tail, end, next_offset = found.tail_bytes, found.end, found.next_offset
                records += found.records
            if tail and path == last_of[name]:
                os.truncate(draft / path, end)
                copy.files[path] |= {"bytes": end, "sha256": _digest(draft / path)}
            elif tail:
                damages.append(f"{path} bytes {end}..{end + tail}")
            segments += 1
            partitions[name] = {"end_offset": next_offset}
            progress.advance(end + tail)
    _write(draft / FORMAT_FILE, f"{FORMAT}\n")
    if "journal" not in copy.files:
        # Where there is one, the files are not known to be whole before it has been replayed.
        _write(draft / checkpoints.RECOVERY_POINTS, checkpoints.offsets_text(_ends(partitions)))
    for name in (STATE, FORMAT_FILE, checkpoints.RECOVERY_POINTS, *_SMALL):
        if (draft / name).exists():
            size = (draft / name).stat().st_size
            copy.files[name] = {"bytes": size, "sha256": _digest(draft / name)}
    manifest = {
        "version": VERSION,
        "created_ms": int(time.time() * 1000),
        "partitions": partitions,
        "damages": damages,
        "files": dict(sorted(copy.files.items())),
    }
    _write(draft / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    size = sum(one["bytes"] for one in copy.files.values())
    for directory in (draft, *(draft / name for name in partitions)):
        _sync_directory(directory)
    verify(draft, batches=False)
    return Summary(len(partitions), segments, records, size, copy.linked, tuple(damages))


def _ends(partitions: Mapping[str, Mapping[str, int]]) -> dict[str, Checkpointed]:
    return {name: Checkpointed(fields["end_offset"], None) for name, fields in partitions.items()}


# Checking one, and going back to it


def verify(backup: Path, *, batches: bool = True) -> Summary:
    """Raise `Refused` unless every file is there with the bytes the manifest says."""
    manifest = _read_manifest(backup)
    files: Mapping[str, Mapping[str, Any]] = manifest["files"]
    segments = records = 0
    damages: list[str] = []
    total = sum(one["bytes"] for one in files.values())
    with Progress("checking", total, in_bytes=True) as progress:
        for name, fields in files.items():
            path = backup / name
            if ".." in Path(name).parts or Path(name).is_absolute():
                raise Refused(f"{backup / MANIFEST} names {name!r}, which is no file of a backup")
            if not path.is_file():
                raise Refused(f"{path} is missing; this backup cannot be used")
            if path.stat().st_size != fields["bytes"] or _digest(path) != fields["sha256"]:
                raise Refused(f"{path} is not what was backed up; this backup cannot be used")
            if name.endswith(".log"):
                segments += 1
                if batches:
                    with walked(path) as found:
                        records += found.records
                        damages += [f"{name} bytes {one.start}..{one.end}" for one in found.damages]
            progress.advance(fields["bytes"])
    return Summary(len(manifest["partitions"]), segments, records, total, 0, tuple(damages))


def restore(backup: Path, data: Path) -> Summary:
    """Make `data` what was backed up; it must not hold anything."""
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise Refused(f"{data} is not empty; restore into a directory that is new")
    verify(backup)
    manifest = _read_manifest(backup)
    total = sum(one["bytes"] for one in manifest["files"].values())
    with _drafted(data, f"cannot restore into {data}") as draft:
        with Progress("restoring", total, in_bytes=True) as progress:
            for name, fields in manifest["files"].items():
                (draft / name).parent.mkdir(exist_ok=True)
                _copied(backup / name, draft / name, None)
                progress.advance(fields["bytes"])
        shutil.copyfile(backup / MANIFEST, draft / MANIFEST)
        summary = verify(draft)
        (draft / MANIFEST).unlink()
        for directory in (draft, *(path for path in draft.iterdir() if path.is_dir())):
            _sync_directory(directory)
    return summary


def _read_manifest(backup: Path) -> dict[str, Any]:
    path = backup / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{backup} is no backup: cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise Refused(f"{path} is damaged: {error}; this backup cannot be used") from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise Refused(f"{path} is not of version {VERSION}; use the pentalog that wrote it")
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    RealFiles().sync_directory(path)
