"""What all BlipMQ connections of one broker share: their count."""

from __future__ import annotations

from itertools import count
from typing import Final
from weakref import WeakKeyDictionary

from pentalog.broker.port import Broker


class Door:
    def __init__(self) -> None:
        self.numbers: Final = count()
        """Connections in the order they came; each keeps to the partition of its number."""


_DOORS: Final[WeakKeyDictionary[Broker, Door]] = WeakKeyDictionary()


def door_of(broker: Broker) -> Door:
    """The one door of a broker, made when its first connection opens."""
    door = _DOORS.get(broker)
    if door is None:
        door = _DOORS[broker] = Door()
    return door
