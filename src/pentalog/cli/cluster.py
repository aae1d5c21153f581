"""A cluster for commands that ask several things of it; what goes wrong is one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pentalog.cli.client import Connection, explained, parse_server
from pentalog.cli.login import client_options
from pentalog.cli.output import Refused
from pentalog.clients.kafka.cluster import Cluster
from pentalog.clients.kafka.errors import KafkaFailed

_TIMEOUT_MS: Final = 30_000


@contextmanager
def reached(server: str, *, timeout_ms: int = _TIMEOUT_MS) -> Iterator[Cluster]:
    """Refused at once if nobody answers there: a cluster would be asked until the timeout."""
    Connection(*parse_server(server), timeout_ms=timeout_ms).close()
    options = client_options(timeout_ms, "pentalog-cli")
    try:
        with Cluster(server, options) as cluster:
            yield cluster
    except KafkaFailed as error:
        raise Refused(explained(error)) from error
