"""The users, rules and quotas that the gateways of a cluster share, whether any runs or not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pentalog.cli import moved_state
from pentalog.cli.client import explained
from pentalog.cli.directory import Directory
from pentalog.cli.move import target_options
from pentalog.cli.output import Refused
from pentalog.clients.kafka import Cluster, KafkaFailed


@contextmanager
def of_gateways(engine: str) -> Iterator[Directory]:
    """A directory with what they have; what is changed in it they hear of at the end."""
    servers, options = target_options(engine)
    try:
        with (
            Cluster(servers, options) as cluster,
            tempfile.TemporaryDirectory(prefix="pentalog-") as work,
            moved_state.of_cluster(cluster) as before,
        ):
            data = Path(work)
            with Directory(data):
                pass  # so that there are tables
            moved_state.to_directory(before, data)
            with Directory(data) as directory:
                yield directory
            with moved_state.of_directory(data) as after:
                moved_state.change_cluster(cluster, before, after)
    except KafkaFailed as error:
        raise Refused(explained(error)) from error
