"""The port's `Signpost`: what clients must hear to go to the cluster, asked of any node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final
from uuid import UUID

from pentalog.broker.signpost import Said
from pentalog.cluster.fleet import Fleet
from pentalog.cluster.steps import Steps, begin
from pentalog.model.later import Later

_METADATA: Final = 3
_FIND_COORDINATOR: Final = 10
_API_VERSIONS: Final = 18


class ClusterSignpost:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def versions(self) -> Later[Mapping[int, tuple[int, int]]]:
        return begin(self._versions())

    def metadata(
        self, topics: Sequence[tuple[str | None, UUID | None]] | None, *, create: bool
    ) -> Later[Said]:
        asked = (
            None
            if topics is None
            else [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
        )
        return begin(
            self._ask(
                _METADATA,
                {
                    "topics": asked,
                    "allow_auto_topic_creation": create,
                    "include_cluster_authorized_operations": False,
                    "include_topic_authorized_operations": False,
                },
            )
        )

    def coordinator(self, kind: int, name: str) -> Later[Said]:
        return begin(self._ask(_FIND_COORDINATOR, {"key": name, "key_type": kind}))

    def _versions(self) -> Steps[Mapping[int, tuple[int, int]]]:
        said = yield from self._ask(_API_VERSIONS, {})
        return {
            each["api_key"]: (each["min_version"], each["max_version"]) for each in said["api_keys"]
        }

    def _ask(self, key: int, wanted: Mapping[str, Any]) -> Steps[Said]:
        def once() -> Steps[Any]:
            return (yield self._fleet.ask_any(key, wanted))

        answer = yield from self._fleet.persist(once)
        said: Said = _plain(answer)
        return said


def _plain(value: Any) -> Any:
    """The same without the types of the schema it was read by."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value
