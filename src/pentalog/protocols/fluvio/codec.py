"""Fluvio's primitive encodings: a reader that trusts nothing, a writer for answers.

| Type | Encoding |
|---|---|
| numbers | big-endian, fixed width |
| string | u16 length, UTF-8; read as i16, nothing if not positive |
| bytes | u32 length and the bytes |
| vec | u32 count and the elements; read as i32, nothing if not positive |
| option | a byte 0 or 1, then the value if 1 |
| map | u16 count, then keys and values in the order of the keys |
| duration | u64 seconds and u32 nanoseconds |
| enum | u8 tag and the fields of the variant |
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from pentalog.kernels import Buffer

T = TypeVar("T")

TEXT_BYTES_MAX: Final = 32_767
_SHARED_BYTES_MIN: Final = 4_096
ELEMENTS_MAX: Final = 1_000
"""Elements of all lists and maps of one request: each takes a few microseconds to read."""
_I16: Final = struct.Struct(">h")
_U16: Final = struct.Struct(">H")
_I32: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")
_U64: Final = struct.Struct(">Q")


class Undecodable(Exception):
    """A request that cannot be read; there is no answer to it but hanging up."""


class Reader:
    """Takes values off a request, in order; every one is checked against what is there."""

    __slots__ = ("at", "data", "elements_left", "end", "version")

    def __init__(
        self,
        data: memoryview,
        start: int,
        end: int,
        version: int,
        elements_max: int = ELEMENTS_MAX,
    ) -> None:
        self.data = data
        self.at = start
        self.end = end
        self.version = version
        self.elements_left = elements_max

    @property
    def left(self) -> int:
        return self.end - self.at

    def skip(self, size: int) -> int:
        """Step over `size` bytes; returns where they start."""
        at = self.at
        if not 0 <= size <= self.end - at:
            raise Undecodable(f"{size} bytes wanted at byte {at}, {self.end - at} are there")
        self.at = at + size
        return at

    def _number(self, form: struct.Struct) -> int:
        return int(form.unpack_from(self.data, self.skip(form.size))[0])

    def u8(self) -> int:
        return int(self.data[self.skip(1)])

    def i16(self) -> int:
        return self._number(_I16)

    def u16(self) -> int:
        return self._number(_U16)

    def i32(self) -> int:
        return self._number(_I32)

    def u32(self) -> int:
        return self._number(_U32)

    def i64(self) -> int:
        return self._number(_I64)

    def u64(self) -> int:
        return self._number(_U64)

    def boolean(self) -> bool:
        tag = self.u8()
        if tag > 1:
            raise Undecodable(f"{tag} at byte {self.at - 1}; a truth value is 0 or 1")
        return tag == 1

    def text(self) -> str:
        size = max(0, self.i16())
        start = self.skip(size)
        try:
            return str(self.data[start : start + size], "utf-8")
        except UnicodeDecodeError as flaw:
            raise Undecodable(f"the text at byte {start} is not UTF-8") from flaw

    def bytes_(self) -> bytes:
        size = max(0, self.i32())
        start = self.skip(size)
        return bytes(self.data[start : start + size])

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise Undecodable(f"the number that ends at byte {self.at} is too long")
        return (value >> 1) ^ -(value & 1)

    def varbytes(self) -> bytes:
        size = self.varint()
        start = self.skip(size)
        return bytes(self.data[start : start + size])

    def many(self, read: Callable[[], T]) -> list[T]:
        count = self.counted(max(0, self.i32()))
        if count > self.left:
            raise Undecodable(f"{count} elements in {self.left} bytes")
        return [read() for _ in range(count)]

    def counted(self, count: int) -> int:
        """Charge elements to the request before they are read."""
        self.elements_left -= count
        if self.elements_left < 0:
            raise Undecodable(
                f"{count} elements in a list; accepted are {ELEMENTS_MAX} in all lists of one "
                "request: send several"
            )
        return count

    def option(self, read: Callable[[], T]) -> T | None:
        return read() if self.boolean() else None

    def texts(self) -> dict[str, str]:
        """A map of texts."""
        return {self.text(): self.text() for _ in range(self.counted(self.u16()))}

    def duration_ms(self) -> int:
        seconds, nanoseconds = self.u64(), self.u32()
        if nanoseconds >= 10**9:
            raise Undecodable(f"{nanoseconds} nanoseconds; accepted are those of one second")
        return seconds * 1000 + nanoseconds // 1_000_000

    def finish(self) -> None:
        """Nothing may be left over."""
        if self.left:
            raise Undecodable(f"{self.left} bytes behind the end of the request")


def is_told(text: str) -> bool:
    """Does a text arrive as it is?"""
    return 0 < len(text) <= TEXT_BYTES_MAX and len(text.encode()) <= TEXT_BYTES_MAX


class Writer:
    """Builds one answer at one version."""

    __slots__ = ("_before", "out", "version")

    def __init__(self, version: int) -> None:
        self.out = bytearray()
        self.version = version
        self._before: list[bytes | bytearray] = []
        """Pieces that come before `out`."""

    @property
    def pieces(self) -> list[bytes | bytearray]:
        """Everything written: large values as they are, not copies of them."""
        return [*self._before, self.out]

    @property
    def size(self) -> int:
        return len(self.out) + sum(map(len, self._before))

    def shared(self, data: bytes) -> Writer:
        """Bytes that are not copied if they are many: only for answers sent as `pieces`."""
        return self.u32(len(data)).attach(data)

    def attach(self, data: bytes) -> Writer:
        """The same without their length."""
        if len(data) < _SHARED_BYTES_MIN:
            return self.raw(data)
        self._before += (self.out, data)
        self.out = bytearray()
        return self

    def raw(self, data: Buffer) -> Writer:
        self.out += data
        return self

    def u8(self, number: int) -> Writer:
        self.out.append(number)
        return self

    def boolean(self, truth: bool) -> Writer:
        self.out.append(truth)
        return self

    def i16(self, number: int) -> Writer:
        self.out += _I16.pack(number)
        return self

    def u16(self, number: int) -> Writer:
        self.out += _U16.pack(number)
        return self

    def i32(self, number: int) -> Writer:
        self.out += _I32.pack(number)
        return self

    def u32(self, number: int) -> Writer:
        self.out += _U32.pack(number)
        return self

    def i64(self, number: int) -> Writer:
        self.out += _I64.pack(number)
        return self

    def u64(self, number: int) -> Writer:
        self.out += _U64.pack(number)
        return self

    def text(self, text: str) -> Writer:
        # A reader takes the length for a signed one, so longer texts would be nothing to it.
        data = text.encode("utf-8", "replace")[:TEXT_BYTES_MAX]
        self.out += _U16.pack(len(data))
        self.out += data
        return self

    def bytes_(self, data: Buffer) -> Writer:
        self.out += _U32.pack(len(data))
        self.out += data
        return self

    def option_text(self, text: str | None) -> Writer:
        if text is None:
            return self.u8(0)
        return self.u8(1).text(text)

    def many(self, values: Iterable[T], write: Callable[[T], object]) -> Writer:
        place = len(self.out)
        self.out += b"\0\0\0\0"
        count = 0
        for value in values:
            write(value)
            count += 1
        _U32.pack_into(self.out, place, count)
        return self

    def texts(self, values: Mapping[str, str]) -> Writer:
        """A map of texts."""
        self.u16(len(values))
        for name in sorted(values):
            self.text(name).text(values[name])
        return self

    def varint(self, number: int) -> Writer:
        rest = ((number << 1) ^ (number >> 63)) & ((1 << 64) - 1)
        while rest > 0x7F:
            self.out.append(rest & 0x7F | 0x80)
            rest >>= 7
        self.out.append(rest)
        return self
