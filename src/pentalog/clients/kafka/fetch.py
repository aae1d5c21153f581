"""Record batches of one partition as a feed of pieces, the next one asked for ahead.

Fetch is written and read by hand (version 11): batches stay where they were received.
"""

from __future__ import annotations

import struct
import time
from typing import Final, NamedTuple

from pentalog.clients.kafka.cluster import EARLIEST, LATEST, Cluster
from pentalog.clients.kafka.connection import Connection
from pentalog.clients.kafka.errors import KafkaFailed, Refused, Unreachable
from pentalog.kernels import batch_header, fit_batches, locate_offset
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.pieces import Gone, Piece, aborted_in
from pentalog.model.types import Offset, Partition

PIECE_BYTES: Final = 4 << 20

_FETCH: Final = 1
_WAIT_MS: Final = 500
_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0
_OFFSET_MAX: Final = 1 << 62
_COMMITTED: Final = 1
_REQUEST_HEAD: Final = struct.Struct(">iiiibii")
_REQUEST_PARTITION: Final = struct.Struct(">iiqqi")
_ANSWER_HEAD: Final = struct.Struct(">iihi")
_PARTITION: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")


class Fetched(NamedTuple):
    """One partition of an answer to Fetch."""

    code: ErrorCode
    stable: Offset
    start: Offset
    aborted: list[tuple[int, Offset]]
    data: memoryview


def request_body(at: Partition, offset: Offset, bytes_max: int, wait_ms: int) -> bytes:
    name = at.topic.encode()
    return b"".join(
        (
            _REQUEST_HEAD.pack(-1, wait_ms, 1, bytes_max, _COMMITTED, 0, -1),
            _I32.pack(1),
            _I16.pack(len(name)),
            name,
            _I32.pack(1),
            _REQUEST_PARTITION.pack(at.index, -1, offset, -1, bytes_max),
            _I32.pack(0),
            _I16.pack(0),
        )
    )


def read_answer(data: memoryview) -> Fetched:
    """The only partition in it."""
    try:
        _, _, code, _ = _ANSWER_HEAD.unpack_from(data, 0)
        position = _ANSWER_HEAD.size
        if code:
            return Fetched(ErrorCode(code), -1, -1, [], data[:0])
        (topics,) = _I32.unpack_from(data, position)
        (size,) = _I16.unpack_from(data, position + 4)
        position += 6 + size
        (partitions,) = _I32.unpack_from(data, position)
        if (topics, partitions) != (1, 1):
            raise KafkaFailed(f"one partition was asked for, {topics} x {partitions} came back")
        _, code, _, stable, start = _PARTITION.unpack_from(data, position + 4)
        position += 4 + _PARTITION.size
        (count,) = _I32.unpack_from(data, position)
        position += 4
        end = position + max(count, 0) * _ABORTED.size
        aborted = [(one, first) for one, first in _ABORTED.iter_unpack(data[position:end])]
        (size,) = _I32.unpack_from(data, end + 4)
        position = end + 8
        records = data[position : position + max(size, 0)]
    except struct.error as error:
        raise KafkaFailed("the answer to Fetch ends too early: not a Kafka broker?") from error
    return Fetched(ErrorCode(code), stable, start, aborted, records)


class FetchFeed:
    """Implements `Feed` on a connection of its own."""

    def __init__(
        self,
        cluster: Cluster,
        at: Partition,
        offset: Offset,
        limit: Offset,
        *,
        bytes_max: int = PIECE_BYTES,
    ) -> None:
        """`limit` must not lie behind the stable end."""
        self._cluster = cluster
        self._at = at
        self._cursor = offset
        self._limit = limit
        self._bytes_max = bytes_max
        self._connection: Connection | None = None
        self._asked: int | None = None
        self._spare: bytearray | None = None
        self._lent: bytearray | None = None
        self.read_bytes = 0

    def close(self) -> None:
        self._asked = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read(self) -> Piece | None:
        deadline = time.monotonic() + self._cluster.options.timeout_ms / 1000
        pause = _PAUSE_FIRST_S
        while self._cursor < self._limit:
            try:
                fetched = self._fetch()
                if fetched.code:
                    self._refused(fetched)
                piece = self._piece(fetched)
                if piece is not None:
                    return piece
                why: KafkaFailed = KafkaFailed(
                    f"{self._at} has no records at offset {self._cursor}, though it was said to"
                    f" reach {self._limit}; was it deleted and made anew?"
                )
            except (Unreachable, Refused) as error:
                if isinstance(error, Refused) and not error.retriable:
                    raise
                why = error
                self.close()
                self._cluster.forget()
            if time.monotonic() + pause > deadline:
                raise why
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)
        self.close()
        return None

    def _fetch(self) -> Fetched:
        if self._connection is None:
            self._connection = self._cluster.connect(self._at)
            self._asked = None
        if self._asked is None:
            self._ask()
        asked, self._asked = self._asked, None
        assert asked is not None
        data = self._connection.receive(asked, self._spare)
        self._spare, self._lent = self._lent, data.obj  # type: ignore[assignment]
        self.read_bytes += len(data)
        return read_answer(data)

    def _ask(self) -> None:
        assert self._connection is not None
        body = request_body(self._at, self._cursor, self._bytes_max, _WAIT_MS)
        self._asked = self._connection.send_raw(_FETCH, body)

    def _piece(self, fetched: Fetched) -> Piece | None:
        data = fetched.data
        end, next_offset = fit_batches(data, 0, len(data), len(data), self._limit)
        if max(next_offset, self._cursor) < self._limit:
            at, size, _, behind = locate_offset(data, end, len(data), self._cursor)
            if at == end and behind >= self._limit and at + size <= len(data):
                # Across the limit, or behind a gap that compaction left up to it.
                end, next_offset = at + size, behind
        if not end:
            self._grow(data)
            return None
        self._cursor = max(self._cursor, next_offset)
        if self._cursor < self._limit:
            self._ask()  # the broker works while we decode
        whole = data[:end]
        return Piece(whole, next_offset, aborted_in(whole, fetched.aborted))

    def _grow(self, data: memoryview) -> None:
        """A broker may cut the first batch if it is larger than what was asked for."""
        if len(data) >= 61:
            size = batch_header(data, 0).size
            if self._bytes_max < size <= _OFFSET_MAX:
                self._bytes_max = size

    def _refused(self, fetched: Fetched) -> None:
        if fetched.code is not ErrorCode.offset_out_of_range:
            raise Refused(f"reading {self._at}", fetched.code)
        self._asked = None
        start = self._cluster.offsets({self._at: EARLIEST})[self._at]
        end = self._cluster.offsets({self._at: LATEST})[self._at]
        first = self._cursor
        behind = start if first < start else self._limit
        self._cursor = min(behind, self._limit)
        raise Gone(first, self._cursor, f"{self._at} holds {start}..{end} at present")
