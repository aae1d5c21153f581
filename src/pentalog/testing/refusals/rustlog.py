"""Refusing a RustLog request: an error with a code, in the dialect it came in."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Final

from pentalog.protocols.rustlog import frames
from pentalog.protocols.rustlog.inspection import NAMES

REQUESTS: Final = frozenset(NAMES.values()) - {"Error"}

_CODE_MAX: Final = 0xFFFF
_TEXT: Final = "refused because a test wants it"


def check(error: str | int) -> None:
    if not (str(error).isdecimal() and int(error) <= _CODE_MAX):
        raise ValueError(f"RustLog has no error {error!r}; give a code such as 404, 500 or 503")


def refuse(
    payload: memoryview, error: str | int, session: object, send: Callable[..., None]
) -> bool:
    code = int(error)
    if frames.is_json(payload):
        answer = json.dumps(
            {"type": "Error", "code": code, "message": _TEXT, "details": None}
        ).encode()
    else:
        answer = struct.pack(">BHH", 0xFE, code, len(_TEXT)) + _TEXT.encode()
    send(frames.LENGTH.pack(len(answer)) + answer)
    return True
