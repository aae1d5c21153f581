"""One port for several protocols, told apart by the first bytes of each connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pentalog.session import Context, Endpoint, Replies, Session

_LENGTH_BYTES: Final = 4
_HEAD_BYTES: Final = _LENGTH_BYTES + 1


def share(host: Endpoint, guests: Sequence[Endpoint]) -> Endpoint:
    """The host's endpoint, on which guests are served too if they recognise what comes in."""

    def open_shared(context: Context, replies: Replies) -> Session:
        return SharedSession(context, replies, host, guests)

    return replace(host, open=open_shared)


class SharedSession:
    """Waits for the first bytes, then is what they ask for."""

    def __init__(
        self, context: Context, replies: Replies, host: Endpoint, guests: Sequence[Endpoint]
    ) -> None:
        self._context = context
        self._replies = replies
        self._host = host
        self._guests = guests
        self._chosen: Session | None = None

    def receive(self, data: memoryview) -> int:
        chosen = self._chosen
        if chosen is None:
            endpoint = self._choose(bytes(data[:_HEAD_BYTES]))
            if endpoint is None:
                return 0
            known = self._context.known
            known.door, known.inspector = endpoint.door or endpoint.name, endpoint.inspector
            known.closes_idle = endpoint.closes_idle
            chosen = self._chosen = endpoint.open(self._context, self._replies)
        return chosen.receive(data)

    @property
    def wanted(self) -> int:
        return 0 if self._chosen is None else self._chosen.wanted

    def close(self) -> None:
        if self._chosen is not None:
            self._chosen.close()

    def _choose(self, head: bytes) -> Endpoint | None:
        """None while it cannot be said."""
        if len(head) < _LENGTH_BYTES:
            return None
        size = int.from_bytes(head[:_LENGTH_BYTES], "big")
        if not 0 < size <= self._context.config.frame_bytes_max:
            # No byte of such a frame may ever come.
            return self._host
        if len(head) < _HEAD_BYTES:
            return None
        for guest in self._guests:
            if guest.recognises is not None and guest.recognises(head):
                return guest
        return self._host
