"""Who did what, and who was not let: one line each, to the logger `pentalog.audit`.

A line says `key=value`; where the log is written as JSON, the same keys are fields of their own.
What is refused again and again is counted instead (`repetitions.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from pentalog.broker.repetitions import Repetitions
from pentalog.broker.security import Access, Kind, Operation, Verdict
from pentalog.runtime import Runtime

_log: Final = logging.getLogger("pentalog.audit")
_CHARACTERS_MAX: Final = 400
"""Of one value: names come from strangers."""
_REFUSED: Final = "refused"


class LogAudit:
    """`security.Audit` as lines of a log."""

    def __init__(self, runtime: Runtime) -> None:
        self._refusals = Repetitions(runtime, _write)

    def denied(
        self, access: Access, operation: Operation, kind: Kind, name: str, verdict: Verdict
    ) -> None:
        said = _shown(
            access,
            event="denied",
            action=operation.value,
            what=f"{kind.value} {name}",
            rule=verdict.reason,
        )
        self._refusals.say(said)

    def acted(self, access: Access, action: str, what: str, outcome: str) -> None:
        said = _shown(access, event="administration", action=action, what=what, outcome=outcome)
        if outcome.startswith(_REFUSED):
            self._refusals.say(said)
        else:
            _write(said)

    def logged_in(self, access: Access, mechanism: str) -> None:
        _write(_shown(access, event="login", action=mechanism))

    def turned_away(self, access: Access, mechanism: str, name: str, reason: str) -> None:
        said = _shown(access, event="login refused", action=mechanism, what=name, rule=reason)
        self._refusals.say(said)

    def close(self) -> None:
        self._refusals.close()


def _shown(access: Access, **fields: str) -> dict[str, str]:
    said = {"who": str(access.who), "host": access.host, "listener": access.listener, **fields}
    return {name: value[:_CHARACTERS_MAX] for name, value in said.items()}


def _write(shown: Mapping[str, str]) -> None:
    text = " ".join(f"{name}={_quoted(value)}" for name, value in shown.items())
    _log.info("%s", text, extra=dict(shown))


def _quoted(text: str) -> str:
    """A value on one line, whatever somebody made it of."""
    if text and text.isascii() and text.isprintable() and not set(text) & set(' "=\\'):
        return text
    return '"' + text.encode("unicode_escape").decode().replace('"', '\\"') + '"'
