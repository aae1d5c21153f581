"""Refusing a BlipMQ frame: a NACK with a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pentalog.protocols.blipmq import frames
from pentalog.protocols.blipmq.frames import ID_BYTES, FrameType

REQUESTS: Final = frozenset(kind.name for kind in FrameType)

_CODE_MAX: Final = 0xFFFF


def check(error: str | int) -> None:
    if not (str(error).isdecimal() and int(error) <= _CODE_MAX):
        raise ValueError(f"BlipMQ has no error {error!r}; give a code such as 401, 404 or 500")


def refuse(
    payload: memoryview, error: str | int, session: object, send: Callable[..., None]
) -> bool:
    correlation = bytes(payload[1 : 1 + ID_BYTES])
    send(frames.nacks(correlation, int(error), "refused because a test wants it"))
    return True
