"""Who did what, and who was not let: one line each, to the logger `pentalog.audit`.

A line says `key=value`; where the log is written as JSON, the same keys are fields of their own.
"""

from __future__ import annotations

import logging
from typing import Final

from pentalog.broker.security import Access, Kind, Operation, Verdict

_log: Final = logging.getLogger("pentalog.audit")
_CHARACTERS_MAX: Final = 400
"""Of one value: names come from strangers."""


class LogAudit:
    """`security.Audit` as lines of a log."""

    def denied(
        self, access: Access, operation: Operation, kind: Kind, name: str, verdict: Verdict
    ) -> None:
        self._write(
            access,
            event="denied",
            action=operation.value,
            what=f"{kind.value} {name}",
            rule=verdict.reason,
        )

    def acted(self, access: Access, action: str, what: str, outcome: str) -> None:
        self._write(access, event="administration", action=action, what=what, outcome=outcome)

    def logged_in(self, access: Access, mechanism: str) -> None:
        self._write(access, event="login", action=mechanism)

    def turned_away(self, access: Access, mechanism: str, name: str, reason: str) -> None:
        self._write(access, event="login refused", action=mechanism, what=name, rule=reason)

    def _write(self, access: Access, **fields: str) -> None:
        said = {
            "who": str(access.who),
            "host": access.host,
            "listener": access.listener,
            **fields,
        }
        shown = {name: value[:_CHARACTERS_MAX] for name, value in said.items()}
        text = " ".join(f"{name}={_quoted(value)}" for name, value in shown.items())
        _log.info("%s", text, extra=shown)


def _quoted(text: str) -> str:
    """A value on one line, whatever somebody made it of."""
    if text and text.isascii() and text.isprintable() and not set(text) & set(' "=\\'):
        return text
    return '"' + text.encode("unicode_escape").decode().replace('"', '\\"') + '"'
