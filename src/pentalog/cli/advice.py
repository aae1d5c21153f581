"""The next step after a refusal that does not name one itself."""

from __future__ import annotations

from typing import Final

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
