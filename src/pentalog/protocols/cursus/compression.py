"""Compressed frames: recognised by their first bytes, opened under a hard limit.

Nothing on the wire says that a frame is compressed.  `register` adds an algorithm: how its frames
begin, and how they are opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from pentalog.model import compression
from pentalog.model.errors import BatchCorrupt, RecordTooLarge

OPENED_BYTES_MAX: Final = 64 << 20
"""What a frame may hold once opened."""
NEAR_BYTES_MAX: Final = 64 << 10
"""Frames that hold no more than this are opened in the turn they arrive, larger ones aside."""
RATIO_MAX: Final = 1_000
"""How many times its own size a frame may hold, beyond `_FREE_BYTES`; gzip reaches 1,032."""
MAGIC: Final = b"\xba\x7c"

_FREE_BYTES: Final = 1 << 20
_SNAPPY_LITERAL_EXTRA: Final = 60
"""From this tag value on, the length of a literal takes bytes of its own."""


class Opener(Protocol):
    def __call__(self, data: memoryview, *, bytes_max: int) -> bytes:
        """What `data` holds; raises `BatchCorrupt`, or `RecordTooLarge` beyond `bytes_max`."""


class Algorithm(NamedTuple):
    name: str
    recognises: Callable[[memoryview], bool]
    open: Opener


class Registry:
    """The algorithms one door knows, in the order they are tried."""

    def __init__(self) -> None:
        self._algorithms: dict[str, Algorithm] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._algorithms)

    def register(self, algorithm: Algorithm) -> None:
        """Add one, or put it in the place of the one of its name."""
        self._algorithms[algorithm.name] = algorithm

    def recognise(self, data: memoryview) -> Algorithm | None:
        for algorithm in self._algorithms.values():
            if algorithm.recognises(data):
                return algorithm
        return None


def starts_with(*magics: bytes) -> Callable[[memoryview], bool]:
    """Recognises frames by their first bytes."""

    def recognises(data: memoryview) -> bool:
        return any(bytes(data[: len(magic)]) == magic for magic in magics)

    return recognises


def holds_raw_snappy(data: memoryview) -> bool:
    """A raw snappy block of a batch: a length, then a literal that begins with the magic."""
    position = shift = size = 0
    while True:
        if position >= len(data) or shift > 28:
            return False
        byte = data[position]
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if not size or position >= len(data):
        return False
    tag = data[position]
    if tag & 3:
        return False
    position += 1 + max(0, (tag >> 2) - _SNAPPY_LITERAL_EXTRA + 1)
    return bytes(data[position : position + 2]) == MAGIC


def _opener(codec: int) -> Opener:
    def opened(data: memoryview, *, bytes_max: int) -> bytes:
        return compression.decompress(codec, data, bytes_max=bytes_max)

    return opened


def opened_bytes_max(size: int) -> int:
    """Return how much a compressed frame of this size may hold."""
    return min(OPENED_BYTES_MAX, max(_FREE_BYTES, RATIO_MAX * size))


def open_frame(algorithm: Algorithm, data: memoryview, *, bytes_max: int) -> bytes:
    """Return what a compressed frame holds; raises `BatchCorrupt` or `RecordTooLarge`."""
    opened = algorithm.open(data, bytes_max=bytes_max)
    if len(opened) > bytes_max:
        raise RecordTooLarge(f"a frame holds {len(opened)} bytes; {bytes_max} are accepted")
    if not opened:
        raise BatchCorrupt(f"the {algorithm.name} frame holds nothing")
    return opened


REGISTRY: Final = Registry()
for _algorithm in (
    Algorithm("gzip", starts_with(b"\x1f\x8b"), _opener(compression.GZIP)),
    Algorithm("lz4", starts_with(b"\x04\x22\x4d\x18"), _opener(compression.LZ4)),
    Algorithm("zstd", starts_with(b"\x28\xb5\x2f\xfd"), _opener(compression.ZSTD)),
    Algorithm("snappy-xerial", starts_with(b"\x82SNAPPY\x00"), _opener(compression.SNAPPY)),
    Algorithm("snappy", holds_raw_snappy, _opener(compression.SNAPPY)),
):
    REGISTRY.register(_algorithm)
