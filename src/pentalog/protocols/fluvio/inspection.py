"""Reads the frames of a connection, to either port, for somebody who watches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pentalog.observation import Told
from pentalog.protocols.fluvio import frames
from pentalog.protocols.fluvio.codec import Reader, Undecodable
from pentalog.protocols.fluvio.session import API_VERSIONS, Api

_ASKED_MAX: Final = 10_000
_PRODUCE: Final = "Produce"
_NAMED_FIRST: Final = frozenset({"StreamFetch", "Delete"})
"""Their bodies begin with a topic's name."""


class FluvioInspector:
    """Knows what was asked, so that answers and streams have names too."""

    def __init__(self, apis: Mapping[int, Api]) -> None:
        self._apis = apis
        self._asked: dict[int, tuple[str, int]] = {}

    def request(self, head: memoryview, size: int) -> Told:
        try:
            found, reader = frames.read_head(head, 0, len(head))
        except Undecodable:
            return Told("unreadable")
        api = self._apis.get(found.key)
        name = api.name if api is not None else f"request {found.key}"
        if found.key == API_VERSIONS:
            name = "ApiVersions"
        if len(self._asked) >= _ASKED_MAX:
            # A stream's answers keep coming, so nothing is ever done with; begin anew.
            self._asked.clear()
        self._asked[found.correlation_id] = (name, found.version)
        return Told(
            name, found.correlation_id, found.version, _topic(name, reader), found.client_id
        )

    def reply(self, head: memoryview, size: int) -> Told:
        if len(head) < 4:
            return Told("unreadable")
        correlation_id = int.from_bytes(head[:4], "big", signed=True)
        name, version = self._asked.get(correlation_id, ("unknown", None))
        return Told(name, correlation_id, version)


def _topic(name: str, reader: Reader) -> str | None:
    try:
        if name == _PRODUCE:
            reader.option(reader.text)
            reader.skip(6)
            return reader.text() if reader.i32() > 0 else None
        return reader.text() if name in _NAMED_FIRST else None
    except Undecodable:
        return None
