"""What all BlipMQ connections of one broker share: their count, and who cannot be reached."""

from __future__ import annotations

from itertools import count
from typing import Final

from pentalog.broker.port import Broker

_QUIET_S: Final = 0.5


class Door:
    def __init__(self) -> None:
        self.numbers: Final = count()
        """Connections in the order they came; each keeps to the partition of its number."""
        self.unreached: Final = Unreached()


class Unreached:
    """The gateway that could not be called: one connection looks after it, for all that wait."""

    def __init__(self) -> None:
        self._gateway_id = ""
        self._quiet_until_s = 0.0

    def may_call(self, gateway_id: str, now_s: float) -> bool:
        """Whoever is told yes, of one that was not reached, is the only one for a while."""
        if gateway_id != self._gateway_id:
            return True
        if now_s < self._quiet_until_s:
            return False
        self._quiet_until_s = now_s + _QUIET_S
        return True

    def note(self, gateway_id: str, now_s: float) -> None:
        self._gateway_id, self._quiet_until_s = gateway_id, now_s + _QUIET_S

    def reached(self, gateway_id: str) -> None:
        if gateway_id == self._gateway_id:
            self._gateway_id = ""


def door_of(broker: Broker) -> Door:
    """The one door of a broker, made when its first connection opens."""
    return broker.share("blipmq", lambda: Door())
