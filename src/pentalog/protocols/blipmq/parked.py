"""Frames of one BlipMQ connection that wait, in order, before others are served."""

from __future__ import annotations

from collections.abc import Mapping

from pentalog.broker.deliveries import Search, Subscription
from pentalog.broker.port import Waiting
from pentalog.model.types import Offset, Partition
from pentalog.protocols.blipmq.frames import FrameType
from pentalog.session import Place


class Parked:
    """Polls that wait for records to become durable or to come from a slow disk, or
    acknowledgements that came behind such polls."""

    __slots__ = ("answers", "kind", "place", "rest", "search", "subscription", "targets", "waiting")

    def __init__(
        self, place: Place, subscription: Subscription, kind: FrameType, correlations: bytes
    ) -> None:
        self.place = place
        self.subscription = subscription
        self.kind = kind
        self.rest = correlations
        self.answers: list[bytes] = []
        self.search: Search | None = None
        """How far the search for something to deliver has come."""
        self.targets: Mapping[Partition, Offset] | None = None
        """Ends of partitions that polls wait for, once nothing else was found."""
        self.waiting: Waiting | None = None
