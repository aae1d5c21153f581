"""A pipeline that runs tells its broker how it is, for those who watch from elsewhere.

What it tells is the metadata of an offset in a group beside the pipeline's own: any Kafka cluster
keeps it, the rules for groups say who may write and see it, and it is forgotten as groups are.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from pentalog.clients.kafka import Cluster, GroupOffset, KafkaFailed, commit, committed
from pentalog.clients.kafka.groups import listed
from pentalog.model.types import Partition
from pentalog.tables import announcement, status
from pentalog.tables.bronze import where
from pentalog.tables.options import read_options
from pentalog.tables.pipeline import Pipeline

_log = logging.getLogger("pentalog.tables")

SUFFIX: Final = ".status"
"""Behind the name of the pipeline's group."""
INTERVAL_S: Final = 5.0
SILENT_AFTER_S: Final = 6 * INTERVAL_S
_PATIENCE_MS_MAX: Final = 3_000
"""With a broker that is not there: nobody shall wait for this."""
_TEXT_BYTES_MAX: Final = 4000
"""Brokers take 4096 of metadata unless they are told otherwise."""
_RUNNING_OR_NOT: Final = ("new", "running", "stopped")
_MARK: Final = "pentalog pipeline "
_GROUPS_MAX: Final = 200
"""Groups that are asked for what a pipeline tells: each takes a request."""


class Announcer:
    """Tells of pipelines every few seconds, on a thread of its own; never fails them."""

    def __init__(self, pipelines: Sequence[Pipeline]) -> None:
        self._pipelines = [one for one in pipelines if one.servers]
        self._ended = threading.Event()
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="pentalog-announcer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        for pipeline in self._pipelines:
            self._tell(pipeline, ended=True)

    def _run(self) -> None:
        while not self._ended.is_set():
            for pipeline in self._pipelines:
                self._tell(pipeline, ended=False)
            self._ended.wait(INTERVAL_S)

    def _tell(self, pipeline: Pipeline, *, ended: bool) -> None:
        try:
            found = status.describe_whole(pipeline)
            if found["state"] in _RUNNING_OR_NOT:
                # What lies beside the tables says so after the first batch only.
                found["state"] = "stopped" if ended else "running"
            options = read_options(where(pipeline))
            patience_ms = min(options.client.timeout_ms, _PATIENCE_MS_MAX)
            client = replace(options.client, timeout_ms=patience_ms)
            with Cluster(options.servers, client) as cluster:
                announce(cluster, pipeline, found)
        except (KafkaFailed, *status.TROUBLES) as trouble:
            if not self._complained:
                self._complained = True
                _log.info("the console is not told of pipeline %s: %s", pipeline.name, trouble)


def announce(cluster: Cluster, pipeline: Pipeline, found: dict[str, Any]) -> None:
    """Tell this of a pipeline, as far as there is room."""
    topics = cluster.topics(pipeline.topics) if pipeline.topics else cluster.topics()
    if not topics:
        return
    at = Partition(topics[0].name, min(topics[0].partitions))
    covered = found["tables"]["bronze"]["covered"]
    end = covered.get(f"{at.topic}/{at.index}", (0, 0))[1]
    text = _MARK + _fitting({**found, "time_ms": time.time_ns() // 1_000_000})
    commit(cluster, pipeline.group + SUFFIX, {at: GroupOffset(end, text)})


def announced(cluster: Cluster) -> list[dict[str, Any]]:
    """Every pipeline that has told this cluster of itself, by name.

    `told_in` is the group that holds what it tells: several may use the same name.
    """
    groups = sorted(one.name for one in listed(cluster) if one.name.endswith(SUFFIX))
    found: list[dict[str, Any]] = []
    for group in groups[:_GROUPS_MAX]:
        told = [
            one
            for offset in committed(cluster, group, stable=False).values()
            if offset.metadata.startswith(_MARK)
            and (one := announcement.read(offset.metadata.removeprefix(_MARK))) is not None
        ]
        if told:
            found.append({**max(told, key=lambda one: float(one["time_ms"])), "told_in": group})
    for one in found:
        silent_s = time.time() - one["time_ms"] / 1000
        if one["state"] == "running" and silent_s > SILENT_AFTER_S:
            one["state"] = f"silent for {int(silent_s)} s"
    return sorted(found, key=lambda one: str(one["pipeline"]))


def _fitting(found: dict[str, Any]) -> str:
    """As JSON; what is least missed is left out where it would be too long."""
    found = {**found, "ledger": list(found["ledger"])}
    while len(text := json.dumps(found, separators=(",", ":"))) > _TEXT_BYTES_MAX:
        if found["ledger"]:
            found["ledger"].pop()
        elif any(table["covered"] for table in found["tables"].values()):
            found["tables"] = {
                layer: {**table, "covered": {}} for layer, table in found["tables"].items()
            }
            found["lag"] = {name: one for name, one in found["lag"].items() if name != "by"}
            found["group"] = {}
        elif len(found["topics"]) > 1:
            found["topics"] = [f"{len(found['topics'])} topics"]
        else:
            break  # the broker says whether it takes that
    return text
