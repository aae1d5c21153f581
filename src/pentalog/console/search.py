"""A search over a whole topic, from its first record to its last, on a thread of its own.

It reads segment files directly where a directory is visible, else through the Kafka door.  There
is no limit to what it finds: when as many hits are kept as memory should hold it rests, and goes
on when told to, from where it was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pentalog.console.query import Query
from pentalog.console.records import Row, columns_in, rows_at
from pentalog.model.pieces import Gone, Piece, opened
from pentalog.model.types import Offset, Partition
from pentalog.tables.origins import Origin

HITS_MAX: Final = 10_000
"""Hits kept at a time."""
HIT_BYTES_MAX: Final = 2_000
"""What is kept of a hit's key, value or header; opening it reads it whole."""
HEADERS_MAX: Final = 20
HITS_BYTES_MAX: Final = 32 << 20
"""Bytes of the hits kept at a time."""
_ROW_BYTES: Final = 400
"""What a hit takes besides its contents, about."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is."""

    state: str
    """`running`, `resting` until `go_on`, `done`, `cancelled` or `failed`."""
    scanned: int
    """Offsets looked at."""
    total: int
    found: int
    """Hits since the beginning, those no longer kept included."""
    bytes_scanned: int
    seconds: float
    lost: int = 0
    """Offsets that were gone before they could be read."""
    why: str = ""

    @property
    def share(self) -> float:
        return 1.0 if self.state == "done" or not self.total else self.scanned / self.total

    @property
    def over(self) -> bool:
        return self.state in ("done", "cancelled", "failed")


class Search:
    """Runs from `start` until it is over; what it holds may be looked at from another thread."""

    def __init__(
        self,
        origin: Origin,
        partitions: Sequence[Partition],
        query: Query,
        *,
        hits_max: int = HITS_MAX,
    ) -> None:
        """The origin is closed at the end."""
        self._origin = origin
        self._partitions = list(partitions)
        self._query = query
        self._hits_max = hits_max
        self._may_run = threading.Event()
        self._may_run.set()
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name="pentalog-search", daemon=True)
        self._began = self._ended = self._rests_since = 0.0
        self._state = "running"
        self._why = ""
        self._scanned = self._total = self._found = self._bytes = self._lost = 0
        self._kept_bytes = 0
        self.hits: list[Row] = []
        """Those found since the beginning or the last rest, in the order of the log."""

    def start(self) -> Search:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def cancel(self) -> None:
        self._cancelled = True
        self._may_run.set()

    def go_on(self) -> None:
        """Let go of the hits that are kept, and look for more."""
        if self._state == "resting":
            self.hits = []
            self._kept_bytes = 0
            self._state = "running"
            self._began += time.monotonic() - self._rests_since
            self._rests_since = 0.0
            self._may_run.set()

    def wait(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    @property
    def progress(self) -> Progress:
        until = self._ended or self._rests_since or time.monotonic()
        return Progress(
            self._state,
            self._scanned,
            self._total,
            self._found,
            self._bytes,
            until - self._began if self._began else 0.0,
            self._lost,
            self._why,
        )

    def _run(self) -> None:
        state = "done"
        try:
            self._search()
            if self._cancelled:
                state = "cancelled"
        except Exception as error:  # whatever it is, the page says so
            self._why = str(error) or type(error).__name__
            state = "failed"
        finally:
            self._origin.close()
            self._ended = time.monotonic()
            self._state = state

    def _search(self) -> None:
        starts = self._origin.starts(self._partitions)
        ends = self._origin.ends(self._partitions)
        if self._query.since_ms is not None:
            asked = dict.fromkeys(self._partitions, self._query.since_ms)
            found = self._origin.at_time(asked)
            starts = {at: max(starts[at], found[at]) for at in self._partitions}
        self._total = sum(max(0, ends[at] - starts[at]) for at in self._partitions)
        for at in self._partitions:
            self._search_partition(at, starts[at], ends[at])

    def _search_partition(self, at: Partition, low: Offset, high: Offset) -> None:
        feed = self._origin.feed(at, low, high)
        scanned_before = self._scanned
        try:
            while not self._cancelled:
                try:
                    piece = feed.read()
                except Gone as gone:
                    self._lost += gone.behind - gone.first
                    continue
                if piece is None:
                    break
                self._look_at(at, piece, low, high)
                self._bytes += len(piece.data)
                self._scanned = scanned_before + min(piece.next_offset, high) - low
        finally:
            feed.close()
        if not self._cancelled:
            self._scanned = scanned_before + max(0, high - low)

    def _look_at(self, at: Partition, piece: Piece, low: Offset, high: Offset) -> None:
        data = bytes(opened(piece.data))
        if not self._query.may_match(data):
            return
        for columns in columns_in(data, piece.aborted, low, high):
            for row in rows_at(at, columns, self._query.rows(columns)):
                self._keep(row)
                if self._cancelled:
                    return

    def _keep(self, row: Row) -> None:
        if len(self.hits) >= self._hits_max or self._kept_bytes >= HITS_BYTES_MAX:
            self._may_run.clear()
            self._rests_since = time.monotonic()
            self._state = "resting"
            # Told to go on or cancelled between the two lines: both set the event afterwards.
            if not self._cancelled:
                self._may_run.wait()
            if self._cancelled:
                return
        kept = _cut(row)
        self.hits.append(kept)
        self._kept_bytes += _size(kept)
        self._found += 1


def _cut(row: Row) -> Row:
    headers = tuple((name[:200], _short(value)) for name, value in row.headers[:HEADERS_MAX])
    return row._replace(key=_short(row.key), value=_short(row.value), headers=headers)


def _size(row: Row) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in row.headers)
    return _ROW_BYTES + len(row.key or b"") + len(row.value or b"") + headers


def _short(data: bytes | None) -> bytes | None:
    return data if data is None else data[:HIT_BYTES_MAX]
