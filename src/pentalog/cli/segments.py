"""Segment files read offline, batch by batch, damage included; nothing is written."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from pentalog import kernels
from pentalog.cli.output import Refused
from pentalog.kernels import BatchHeader
from pentalog.log.files import mapped
from pentalog.log.inspection import OFFSET_MAX, Damage, inspect

_HEADER_BYTES: Final = 61
SEGMENT_NAME: Final = re.compile(r"(\d{20})\.log")


class Walked(NamedTuple):
    """What one segment file holds."""

    data: mmap.mmap | bytes
    base_offset: int
    batches: int
    records: int
    next_offset: int
    end: int
    """Position behind the last sound batch; what follows was not wholly written, or is damaged."""
    damages: tuple[Damage, ...]

    @property
    def tail_bytes(self) -> int:
        return len(self.data) - self.end


@contextmanager
def walked(path: Path, *, limit: int | None = None) -> Iterator[Walked]:
    """Every checksum verified; `limit`: only this many bytes, of a file that is written to."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size if limit is None else min(limit, path.stat().st_size)
            if not size:
                yield _walk(path, b"")
                return
            with mapped(file.fileno(), size, path) as data:
                yield _walk(path, data)
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error


def _walk(path: Path, data: mmap.mmap | bytes) -> Walked:
    named = SEGMENT_NAME.fullmatch(path.name)
    if named is not None:
        base = int(named[1])
    else:
        base = kernels.batch_header(data, 0).base_offset if len(data) >= _HEADER_BYTES else 0
    view = memoryview(data)
    try:
        found = inspect(
            view,
            file_position=0,
            segment_base=base,
            next_offset=base,
            offset_max=OFFSET_MAX,
            gaps=True,
        )
    finally:
        view.release()
    batches = sum(scan.batches for scan in found.scans)
    walked = Walked(data, base, batches, 0, found.next_offset, found.end, tuple(found.damages))
    return walked._replace(records=sum(header.records for _, header in headers(walked)))


def headers(walked: Walked) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every sound batch."""
    position = 0
    for stop, resume in [(one.start, one.end) for one in walked.damages] + [(walked.end, 0)]:
        while position < stop:
            header = kernels.batch_header(walked.data, position)
            yield position, header
            position += header.size
        position = resume


def segment_files(path: Path) -> list[Path]:
    """The segments under a file, a partition's directory or a data directory, in order."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise Refused(f"{path} does not exist; name a segment, a partition's or a data directory")
    found = [one for one in path.glob("*.log") if SEGMENT_NAME.fullmatch(one.name)]
    found += [one for one in path.glob("*/*.log") if SEGMENT_NAME.fullmatch(one.name)]
    if not found:
        raise Refused(f"{path} holds no segments; name a partition's or a data directory")
    return sorted(found)
