"""Numbers as records have them: one to ten bytes of seven bits, the sign in the lowest."""

from __future__ import annotations

from typing import Final

from pentalog.kernels.facts import Malformed

_U64: Final = (1 << 64) - 1
_I64_MIN: Final = -(1 << 63)
_BITS_MAX: Final = 63
_I32_BYTES_MAX: Final = 5
_I32_MIN: Final = -(1 << 31)
_I32_MAX: Final = (1 << 31) - 1


def i64(number: int) -> int:
    """What is left of a number in 64 bits."""
    return ((number - _I64_MIN) & _U64) + _I64_MIN


def read_varint(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """(number, position behind it)."""
    number = shift = 0
    while True:
        if position >= end or shift > _BITS_MAX:
            raise Malformed(f"the records of the batch are malformed at byte {position}")
        byte = view[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    number &= _U64
    return (number >> 1) ^ -(number & 1), position


def put_varint(out: bytearray, number: int) -> None:
    number = ((number << 1) ^ (number >> 63)) & _U64
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def varint_bytes(number: int) -> int:
    """How many bytes it takes."""
    return max(1, -(-((number << 1 ^ number >> 63) & _U64).bit_length() // 7))


def read_i32(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """(number of 32 bits, position behind it), refused as Kafka's readers do beyond five bytes."""
    number, behind = read_varint(view, position, end)
    if behind - position > _I32_BYTES_MAX or not _I32_MIN <= number <= _I32_MAX:
        raise Malformed(f"the records of the batch are malformed at byte {position}")
    return number, behind
