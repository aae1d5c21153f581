"""The framing: a length of 4 bytes, big-endian, then a batch, an envelope or a line of text.

    batch     ba 7c ...
    envelope  u16 length and a topic that says nothing, then text
    text      anything else

A frame may also be any of these compressed.  Replies are framed in the same way; an empty frame
from the broker keeps a stream alive.
"""

from __future__ import annotations

import struct
from typing import Final

from pentalog.kernels import CursusFrame, read_cursus
from pentalog.kernels.cursus_facts import CURSUS_PARTITION, CURSUS_TOPIC
from pentalog.protocols.cursus.compression import MAGIC, Registry
from pentalog.protocols.cursus.errors import Refused

FRAME_BYTES_MAX: Final = 64 << 20
"""Accepted."""
STRANGER_BYTES_MAX: Final = FRAME_BYTES_MAX // 100
"""Accepted before a login, where one is demanded: a command may carry its login and a message."""
REPLY_BYTES_MAX: Final = 16 << 20
"""Sent; some clients read no more."""
HEAD_BYTES: Final = 4
KEEP_ALIVE: Final = bytes(HEAD_BYTES)

_LENGTH: Final = struct.Struct(">I")
_BLANKS: Final = b"\0 \t\r\n"
_BLANKS_MAX: Final = 64 << 10
"""Of a command, at each end: to pass over many takes long."""


def framed(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


def length_at(data: memoryview, position: int) -> int:
    length: int = _LENGTH.unpack_from(data, position)[0]
    return length


def is_batch(data: memoryview) -> bool:
    return bytes(data[:2]) == MAGIC


def read_batch(data: memoryview) -> CursusFrame | None:
    """Walk a frame that begins like a batch; None if it is compressed and only looks like one."""
    read = read_cursus(data, 0, len(data))
    # A raw snappy block of 15930 bytes begins with the two bytes of the magic.
    return None if read.flaw in (CURSUS_TOPIC, CURSUS_PARTITION) else read


def check_opened(plain: bytes, registry: Registry) -> None:
    """Refuse what a compressed frame held if that is compressed again."""
    view = memoryview(plain)
    if not is_batch(view) and registry.recognise(view) is not None:
        raise Refused('decode_failed reason="compressed more than once; once is accepted"')


def text_of(data: memoryview) -> memoryview:
    """The text of a command, out of its envelope if it is in one, without blanks around it."""
    if data[0] == 0:
        if len(data) < 2:
            raise Refused('decode_failed reason="data too short"')
        start = 2 + data[1]
        if start > len(data):
            raise Refused('decode_failed reason="invalid topic length"')
        data = data[start:]
    if data and data[0] not in _BLANKS and data[-1] not in _BLANKS:
        return data
    return strip_blanks(data, _BLANKS)


def strip_blanks(data: memoryview, blanks: bytes) -> memoryview:
    """Return what is left without the blanks around it; refuses what has too many of them."""
    head = bytes(data[:_BLANKS_MAX])
    start = len(head) - len(head.lstrip(blanks))
    tail = bytes(data[start:][-_BLANKS_MAX:])
    end = len(data) - (len(tail) - len(tail.rstrip(blanks)))
    if start == _BLANKS_MAX < len(data) or len(data) - end == _BLANKS_MAX < len(data) - start:
        raise Refused(
            f'malformed_input reason="{_BLANKS_MAX} blanks in a row at an end; send fewer"'
        )
    return data[start:end]
