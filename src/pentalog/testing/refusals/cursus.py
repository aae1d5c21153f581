"""Refusing a Cursus command: a line with the error, or what a batch is answered instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pentalog.protocols.cursus import frames, records
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.errors import Refused
from pentalog.protocols.cursus.messages import parse
from pentalog.protocols.cursus.session import CursusSession
from pentalog.protocols.cursus.verbs import VERBS

REQUESTS: Final = frozenset({*VERBS, "batch"})


def check(error: str | int) -> None:
    if not isinstance(error, str) or not error or "\n" in error:
        raise ValueError(
            f"Cursus has no error {error!r}; give a line such as NOT_LEADER or topic_not_found"
        )


def refuse(
    payload: memoryview, error: str | int, session: CursusSession, send: Callable[..., None]
) -> bool:
    if frames.is_batch(payload):
        send(frames.framed(records.refusal(frames.read_batch(payload), str(error))))
    else:
        Call(session, parse(frames.text_of(payload))).refuse(Refused(str(error)))
    return True
