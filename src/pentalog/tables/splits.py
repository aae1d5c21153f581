"""Ranges of offsets that tasks read, and the reading of one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql.datasource import InputPartition

from pentalog.kernels import Buffer, Columns, batch_header, decode_columns
from pentalog.log.inspection import is_sound
from pentalog.model.pieces import Gone, Piece, opened
from pentalog.model.types import Offset, Partition
from pentalog.tables.options import SourceOptions
from pentalog.tables.origins import Origin, open_origin
from pentalog.tables.positions import LostRecords

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pentalog.tables")

_OFFSET_MAX: Final = 1 << 62
_HEADER_BYTES: Final = 61


class Maker(Protocol):
    """What to ask of the kernel, and what Spark gets of it."""

    columns: int
    picks: tuple[bytes, ...]
    doors: tuple[bytes, ...]

    def batches(self, columns: Columns, topic: str, partition: int) -> Iterator[pa.RecordBatch]: ...
    def missing(self, at: Partition, low: Offset, high: Offset) -> Iterator[pa.RecordBatch]:
        """What offsets at the end of a range give that no batch holds any more."""


class Split(InputPartition):
    """Offsets `low..high` of one partition."""

    def __init__(self, at: Partition, low: Offset, high: Offset) -> None:
        super().__init__(f"{at.topic}/{at.index}:{low}-{high}")
        self.at = at
        self.low = low
        self.high = high


def make_splits(
    origin: Origin, ranges: Mapping[Partition, tuple[Offset, Offset]], options: SourceOptions
) -> list[Split]:
    """One per range; large ones are cut by size, and all of them until there are enough."""
    splits: list[Split] = []
    for at, (low, high) in sorted(ranges.items()):
        if low >= high:
            continue
        cuts = [cut for cut in origin.cuts(at, low, high, options.split_bytes) if low < cut < high]
        edges = [low, *cuts, high]
        splits += [Split(at, one, other) for one, other in pairwise(edges)]
    while 0 < len(splits) < options.partitions_min:
        widest = max(splits, key=lambda split: split.high - split.low)
        if widest.high - widest.low < 2:
            break
        middle = (widest.low + widest.high) // 2
        place = splits.index(widest)
        splits[place : place + 1] = [
            Split(widest.at, widest.low, middle),
            Split(widest.at, middle, widest.high),
        ]
    return splits


def read_split(split: Split, maker: Maker, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """All rows of a split; runs in a task."""
    origin = open_origin(options)
    try:
        yield from SplitReader(split, maker, options).read(origin)
    finally:
        origin.close()


class SplitReader:
    def __init__(self, split: Split, maker: Maker, options: SourceOptions) -> None:
        self._split = split
        self._maker = maker
        self._fail = options.fail_on_data_loss
        self._cursor = split.low

    def read(self, origin: Origin) -> Iterator[pa.RecordBatch]:
        split = self._split
        feed = origin.feed(split.at, split.low, split.high)
        try:
            while True:
                try:
                    piece = feed.read()
                except Gone as gone:
                    self._lost(gone)
                    continue
                if piece is None:
                    break
                yield from self._decode(piece)
            if self._cursor < split.high:
                yield from self._maker.missing(split.at, self._cursor, split.high)
        finally:
            feed.close()

    def _decode(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        at, high, maker = self._split.at, self._split.high, self._maker
        data = opened(piece.data)
        position = 0
        while True:
            columns = decode_columns(
                data,
                position,
                len(data),
                low=self._cursor,
                high=high,
                columns=maker.columns,
                aborted=piece.aborted,
                picks=maker.picks,
                doors=maker.doors,
            )
            self._cursor = max(self._cursor, columns.next_offset)
            yield from maker.batches(columns, at.topic, at.index)
            if not columns.flaw:
                break
            sound = _batch_behind(data, columns.position, self._cursor)
            behind = batch_header(data, sound).base_offset if sound >= 0 else piece.next_offset
            if behind > self._cursor:
                self._lost(Gone(self._cursor, min(behind, high), "a batch is damaged"))
            if sound < 0:
                break
            position = sound

    def _lost(self, gone: Gone) -> None:
        if self._fail:
            raise LostRecords(self._split.at, gone.first, gone.behind, gone.why) from gone
        log.warning("%s: going on without what is lost: %s", self._split.at, gone)


def _batch_behind(data: Buffer, position: int, offset: Offset) -> int:
    """Where the next sound batch from an offset on begins behind a damaged one; -1: nowhere.

    Each damaged batch is left by its own length.  The next one is not searched for, because a
    value may hold whole batches.
    """
    while len(data) - position >= _HEADER_BYTES:
        size = batch_header(data, position).size
        if size < _HEADER_BYTES:
            return -1
        position += size
        if is_sound(data, position, offset, _OFFSET_MAX):
            return position
    return -1
