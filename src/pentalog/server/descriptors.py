"""File descriptors of connections."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from typing import Final

from pentalog.model.types import FilePiece

_INT: Final = struct.Struct("i")
_NO_BYTES: Final = bytes(_INT.size)


def duplicate(transport: asyncio.Transport) -> socket.socket:
    """Return a socket of its own on the connection of a transport."""
    own = transport.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    copy = socket.socket(own.family, own.type, own.proto, fileno=os.dup(own.fileno()))
    copy.setblocking(False)
    return copy


def unsent_bytes(connection: socket.socket) -> int:
    """Return how much of what was sent the peer's system has not received; 0 if unknown.

    A socket accepts megabytes, and the next ones only when a third of those are gone: judged by
    what it accepts, a peer that reads slowly would look like one that does not read.
    """
    with contextlib.suppress(OSError):
        (size,) = _INT.unpack(fcntl.ioctl(connection, termios.TIOCOUTQ, _NO_BYTES))
        return int(size)
    return 0


def file_too_short(piece: FilePiece) -> OSError:
    # What was promised to the peer cannot be sent any more: the answer would be torn.
    return OSError(0, f"the file is shorter than {piece.position + piece.length} bytes")
