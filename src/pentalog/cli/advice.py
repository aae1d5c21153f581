"""The next step after what a door refused, or when nobody is behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pentalog.cli.output import Misused, Refused
from pentalog.clients.patience import CircuitOpen

_STEPS: Final = {
    "rule": "; `pentalog acl add` makes such a rule",
    "error 13": ": it is not allowed; let somebody who may allow it (`pentalog acl add`)",
    "invalid API key": "; give one that is known with --key, `pentalog user key` makes one",
    "authentication_required": "; there one must log in, which `bench` does not: measure a broker "
    "without rules, or let everybody in (`pentalog acl add --principal User:*`)",
}
"""By what a door's refusal says."""


def advised(refusal: str) -> str:
    """A door's words, and what to do about them."""
    for words, step in _STEPS.items():
        if words in refusal:
            return refusal + step
    return refusal


@contextmanager
def speaking_to(server: str, lost: type[Exception], refused: type[Exception]) -> Iterator[None]:
    """Inside, what a door's client raises becomes one line."""
    try:
        yield
    except (lost, CircuitOpen) as error:
        raise Refused(
            f"cannot reach {server}: {error}; start a broker with `pentalog start` or name "
            "another one with --server HOST:PORT"
        ) from error
    except refused as error:
        raise Refused(advised(f"{server} refused: {error}")) from error
    except ValueError as error:
        raise Misused(f"--server {server!r}: {error}") from error
