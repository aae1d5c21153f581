"""A pipeline that runs tells its broker how it is, for those who watch from elsewhere.

What it tells is the metadata of an offset in a group beside the pipeline's own: any Kafka cluster
keeps it, the rules for groups say who may write and see it, and it is forgotten as groups are.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from pentalog.clients.kafka import Cluster, GroupOffset, KafkaFailed, commit, committed
from pentalog.clients.kafka.groups import listed
from pentalog.model.types import Partition
from pentalog.tables import status
from pentalog.tables.bronze import where
from pentalog.tables.options import read_options
from pentalog.tables.pipeline import Pipeline

_log = logging.getLogger("pentalog.tables")

SUFFIX: Final = ".status"
"""Behind the name of the pipeline's group."""
INTERVAL_S: Final = 5.0
SILENT_AFTER_S: Final = 6 * INTERVAL_S
_TEXT_BYTES_MAX: Final = 4000
"""Brokers take 4096 of metadata unless they are told otherwise."""
_RUNNING_OR_NOT: Final = ("new", "running", "stopped")
_MARK: Final = "pentalog pipeline "
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SHAPE: Final = {
    "pipeline": str, "state": str, "topics": list, "into": str, "tables": dict, "lag": dict,
    "last_batch": dict, "ledger": list, "dead_letters": int,
}  # fmt: skip


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
            with Cluster(options.servers, options.client) as cluster:
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
    """Every pipeline that has told this cluster of itself, by name."""
    found: list[dict[str, Any]] = []
    for group in listed(cluster):
        if not group.name.endswith(SUFFIX):
            continue
        for one in committed(cluster, group.name, stable=False).values():
            if one.metadata.startswith(_MARK):
                told = _read(one.metadata.removeprefix(_MARK))
                found += [told] if told else []
    return sorted(found, key=lambda one: str(one["pipeline"]))


def _read(text: str) -> dict[str, Any] | None:
    """What was told, if it is of the shape it must have: anybody may have written it."""
    try:
        told = json.loads(text)
        silent_s = time.time() - told["time_ms"] / 1000
        if told["state"] == "running" and silent_s > SILENT_AFTER_S:
            told["state"] = f"silent for {int(silent_s)} s"
        sound = all(isinstance(told[name], kind) for name, kind in _SHAPE.items())
        return told if sound and _NAME.fullmatch(told["pipeline"]) else None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


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
