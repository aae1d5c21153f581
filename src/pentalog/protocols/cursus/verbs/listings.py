"""Answers whose length depends on how much there is."""

from __future__ import annotations

from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.errors import Refused, quoted
from pentalog.protocols.cursus.frames import REPLY_BYTES_MAX


def reply_listing(call: Call, text: str) -> None:
    """Answer with a list, unless it is longer than clients read."""
    if len(text) > REPLY_BYTES_MAX:
        reason = quoted("the list is longer than one frame can be; name what you look for")
        raise Refused(f"message_too_large size={len(text)} max={REPLY_BYTES_MAX} reason={reason}")
    call.reply(text)
