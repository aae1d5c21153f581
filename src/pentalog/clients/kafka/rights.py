"""What a cluster lets this client do, found out without doing anything."""

from __future__ import annotations

from typing import Final

from pentalog.clients.kafka.cluster import LATEST, Cluster
from pentalog.clients.kafka.errors import Refused
from pentalog.clients.kafka.fetch import read_answer, request_body
from pentalog.model.types import Partition

_FETCH: Final = 1


def check_readable(cluster: Cluster, topic: str) -> None:
    """Raise what the broker refuses to this user: reads nothing, at the end of one partition."""
    at = Partition(topic, min(cluster.topic(topic).partitions))

    def once() -> None:
        end = cluster.offsets({at: LATEST})[at]
        connection = cluster.leader(at)
        asked = connection.send_raw(_FETCH, request_body(at, end, 1, 0))
        code = read_answer(connection.receive(asked)).code
        if code:
            raise Refused(f"reading {topic!r}", code)

    cluster.retried(f"reading {topic!r}", once)
