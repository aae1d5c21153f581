"""Which node coordinates a group or a transactional id, and requests to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pentalog.cluster.fleet import ASKING, Fleet
from pentalog.cluster.link import Link
from pentalog.cluster.refusals import Trouble, check
from pentalog.cluster.steps import Steps
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later

GROUP: Final = 0
TRANSACTION: Final = 1

_FIND_COORDINATOR: Final = 10
_REMEMBERED_MAX: Final = 10_000
_KINDS: Final = {GROUP: "group", TRANSACTION: "transactional id"}
_MOVED: Final = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)


class Coordination:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._nodes: dict[tuple[int, str], int] = {}

    def ask(
        self,
        kind: int,
        name: str,
        key: int,
        fields: Mapping[str, Any],
        code: Callable[[Any], ErrorCode],
    ) -> Steps[Any]:
        """Ask once; `code` finds in an answer what tells that another node is to be asked."""
        link = yield from self._find(kind, name)
        return (yield from self._await(kind, name, link.ask(key, fields), code))

    def exchange(
        self,
        kind: int,
        name: str,
        key: int,
        version: int,
        body: Sequence[bytes],
        code: Callable[[memoryview], ErrorCode],
    ) -> Steps[memoryview]:
        """The same with a request written by hand."""
        link = yield from self._find(kind, name)
        answer: memoryview = yield from self._await(
            kind, name, link.exchange(key, version, body), code
        )
        return answer

    def _await(
        self, kind: int, name: str, asked: Later[Any], code: Callable[[Any], ErrorCode]
    ) -> Steps[Any]:
        try:
            answer = yield asked
        except Trouble:
            self._nodes.pop((kind, name), None)
            raise
        if code(answer) in _MOVED:
            self._nodes.pop((kind, name), None)
            check(f"asking the coordinator of {_KINDS[kind]} {name!r}", code(answer))
        return answer

    def _find(self, kind: int, name: str) -> Steps[Link]:
        node = self._nodes.get((kind, name))
        link = None if node is None else self._fleet.node(node, ASKING)
        if link is None:
            doing = f"finding the coordinator of {_KINDS[kind]} {name!r}"
            answer = yield self._fleet.ask_any(_FIND_COORDINATOR, {"key": name, "key_type": kind})
            check(doing, answer.error_code, getattr(answer, "error_message", None))
            link = self._fleet.required(self._fleet.node(answer.node_id, ASKING), doing)
            if len(self._nodes) >= _REMEMBERED_MAX:
                self._nodes.clear()
            self._nodes[kind, name] = answer.node_id
        return link
