"""The consumer group that shows a pipeline's progress to every tool that shows groups."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pentalog.clients.kafka import Cluster, GroupOffset, KafkaFailed, commit, committed
from pentalog.model.types import Partition
from pentalog.tables.bronze import leased, where
from pentalog.tables.options import read_options
from pentalog.tables.pipeline import Pipeline
from pentalog.tables.sinks import Range

_log = logging.getLogger("pentalog.tables")


def show(pipeline: Pipeline, ranges: Mapping[Partition, Range]) -> None:
    """Tell where the tables end; a broker that cannot be told now is told next time.

    The tables are the truth, this is a sign, so it never fails a batch.
    """
    from pentalog.tables.stream import lease_text

    if not pipeline.servers:
        return
    metadata = lease_text(read_options(leased(pipeline)))
    offsets = {at: GroupOffset(one.end, metadata) for at, one in ranges.items()}
    try:
        with _connected(pipeline) as cluster:
            commit(cluster, pipeline.group, offsets)
    except KafkaFailed as error:
        _log.warning("group %s is not up to date: %s", pipeline.group, error)


def shown(pipeline: Pipeline) -> dict[Partition, int]:
    """What the group says."""
    with _connected(pipeline) as cluster:
        found = committed(cluster, pipeline.group)
    return {at: one.offset for at, one in found.items()}


def _connected(pipeline: Pipeline) -> Cluster:
    options = read_options(where(pipeline))
    return Cluster(options.servers, options.client)
