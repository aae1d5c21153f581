"""Why a table did not take what it was given."""

from __future__ import annotations


class SinkRefused(Exception):
    """The table cannot be written so; the text names what was expected and the next step."""


class Busy(Exception):
    """Another commit came first: look at the table again, then perhaps try once more."""


class Unreachable(SinkRefused):
    """It cannot be written and read now; it may be a matter of time."""


class Missing(SinkRefused):
    """There is no such table yet."""


class CatalogFailed(OSError):
    """A catalog, or the store behind it, failed; the text holds nothing that is secret."""
