"""Slices opened for protocols that look inside batches."""

from __future__ import annotations

import pytest

from pentalog.broker.opening import open_slice
from pentalog.kernels import stamp
from pentalog.model import batch
from pentalog.model.errors import BrokerError
from pentalog.model.types import Aborted, FilePiece, Marks, Record, Slice

MARKS = Marks(0, 100, 100, 100)


def stored(offset: int, *values: bytes, codec: int = 0, producer_id: int = -1) -> bytearray:
    built = batch.build(
        [Record(value) for value in values],
        timestamp_ms=1,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        transactional=producer_id >= 0,
    )
    stamp(built, 0, len(built), offset, 0)
    return built


def marker(offset: int, producer_id: int, *, commit: bool) -> bytearray:
    built = batch.build_marker(
        commit=commit, producer_id=producer_id, producer_epoch=0, timestamp_ms=1
    )
    stamp(built, 0, len(built), offset, 0)
    return built


def slice_of(*batches: bytearray, next_offset: int, aborted: tuple[Aborted, ...] = ()) -> Slice:
    data = b"".join(batches)
    return Slice((memoryview(data),), len(data), MARKS, next_offset, aborted)


def no_file(_piece: FilePiece) -> bytes:
    raise AssertionError("no file was given")


def values_of(data: bytes | bytearray | memoryview) -> list[tuple[int, bytes | None]]:
    found, position = [], 0
    while position < len(data):
        header = batch.batch_header(data, position)
        assert not header.attributes & batch.CODEC_MASK
        records = batch.records_of(data, position, bytes_max=1 << 20)
        found += [(offset, record.value) for offset, record in records]
        position += header.size
    return found


def test_plain_batches_come_as_they_lie() -> None:
    plain = stored(5, b"a", b"b") + stored(7, b"c")
    opened = open_slice(slice_of(plain, next_offset=8), bytes_max=10, read_piece=no_file)
    assert bytes(opened.batches) == bytes(plain)
    assert opened.next_offset == 8


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_come_open(codec: int) -> None:
    found = slice_of(stored(5, b"a" * 99, b"b", codec=codec), stored(7, b"c"), next_offset=8)
    opened = open_slice(found, bytes_max=1 << 20, read_piece=no_file)
    assert values_of(opened.batches) == [(5, b"a" * 99), (6, b"b"), (7, b"c")]
    assert opened.next_offset == 8


def test_what_opens_larger_than_asked_ends_the_slice() -> None:
    large = b"a" * 5000
    found = slice_of(stored(5, large, codec=1), stored(6, large, codec=1), next_offset=7)
    opened = open_slice(found, bytes_max=6000, read_piece=no_file)
    assert values_of(opened.batches) == [(5, large)]
    assert opened.next_offset == 6


def test_aborted_and_control_batches_stay_hidden() -> None:
    found = slice_of(
        stored(0, b"seen", producer_id=1),
        stored(1, b"aborted", producer_id=2),
        marker(2, 2, commit=False),
        stored(3, b"again", producer_id=2),
        marker(4, 2, commit=True),
        marker(5, 1, commit=True),
        next_offset=6,
        aborted=(Aborted(2, 1),),
    )
    opened = open_slice(found, bytes_max=1 << 20, read_piece=no_file)
    assert values_of(opened.batches) == [(0, b"seen"), (3, b"again")]
    assert opened.next_offset == 6


def test_a_slice_of_hidden_batches_moves_on_with_nothing() -> None:
    opened = open_slice(
        slice_of(marker(4, 2, commit=True), next_offset=5), bytes_max=9, read_piece=no_file
    )
    assert bytes(opened.batches) == b""
    assert opened.next_offset == 5


def test_a_batch_that_cannot_be_opened_is_refused_when_it_is_the_first() -> None:
    broken = stored(6, b"b" * 500, codec=1)
    broken[batch.HEADER_BYTES + 12 : batch.HEADER_BYTES + 20] = bytes(8)
    found = slice_of(stored(5, b"a"), broken, next_offset=7)
    opened = open_slice(found, bytes_max=1 << 20, read_piece=no_file)
    assert values_of(opened.batches) == [(5, b"a")]
    assert opened.next_offset == 6
    with pytest.raises(BrokerError):
        open_slice(slice_of(broken, next_offset=7), bytes_max=1 << 20, read_piece=no_file)
