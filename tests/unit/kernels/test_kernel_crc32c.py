"""The checksum against its published examples and against a bit-by-bit one."""

from __future__ import annotations

import mmap
import random
from types import SimpleNamespace

import pytest

from pentalog import kernels


def bit_by_bit(data: bytes, value: int = 0) -> int:
    crc = ~value & 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return ~crc & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, appendix B.4, and the usual check value
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_published_examples(twin: SimpleNamespace, data: bytes, crc: int) -> None:
    assert twin.crc32c(data) == crc


SIZES = [*range(20), 255, 256, 767, 768, 769, 1000, 12_287, 12_288, 12_289, 13_100]


@pytest.mark.parametrize("size", SIZES)
def test_every_way_through_the_loops(twin: SimpleNamespace, size: int) -> None:
    data = random.Random(size).randbytes(size + 3)
    for start in (0, 1, 3):
        part = memoryview(data)[start:]
        assert twin.crc32c(part) == bit_by_bit(part)
        assert twin.crc32c(part, 0x12345678) == bit_by_bit(part, 0x12345678)


def test_sums_go_on_from_one_another(twin: SimpleNamespace) -> None:
    data = random.Random(0).randbytes(3 << 20)
    assert twin.crc32c(data[777:], twin.crc32c(data[:777])) == twin.crc32c(data)


def test_every_kind_of_buffer(twin: SimpleNamespace) -> None:
    with mmap.mmap(-1, 9) as mapped:
        mapped[:] = b"123456789"
        for data in (bytearray(mapped), memoryview(bytes(mapped)), mapped):
            assert twin.crc32c(data) == 0xE3069283


@pytest.mark.skipif(kernels.KERNELS["crc32c"] == "pure", reason="not compiled here")
@pytest.mark.parametrize("size", SIZES)
def test_a_processor_without_the_instruction(size: int) -> None:
    from pentalog.kernels.compiled.crc32c import crc32c_portable

    data = random.Random(size).randbytes(size)
    assert crc32c_portable(data, 7) == bit_by_bit(data, 7)
