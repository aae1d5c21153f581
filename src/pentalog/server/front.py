"""What a broker and a gateway show to whoever started them, once their listeners are open."""

from __future__ import annotations

from collections.abc import Mapping

from pentalog.server.listener import Listeners
from pentalog.session import Address


class Front:
    _listeners: Listeners | None = None

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Where each listener is, by its name."""
        return {} if self._listeners is None else self._listeners.addresses

    @property
    def console_key(self) -> str:
        """Lets the console see at the http listener what it shows to those who may."""
        return "" if self._listeners is None else self._listeners.observation.console_key

    def show_console(self, url: str | None) -> None:
        """Where browsers that come to the http listener are sent; None: nowhere."""
        if self._listeners is not None:
            self._listeners.observation.console_url = url
