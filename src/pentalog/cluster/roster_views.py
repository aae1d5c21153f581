"""Who is in a group, at whichever gateway or beside them: as the group's coordinator says it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from pentalog.broker.port import Fence
from pentalog.broker.sourcing import MemberShare, RosterView
from pentalog.cluster.coordination import GROUP, Coordination
from pentalog.cluster.refusals import check
from pentalog.cluster.steps import Steps
from pentalog.cluster.topics import ClusterTopics
from pentalog.model.errors import TopicNotFound
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.types import Partition
from pentalog.runtime import Runtime

_DESCRIBE: Final = 69
_FRESH_MS: Final = 1_000
_KEPT_MAX: Final = 10_000


class RosterViews:
    def __init__(self, topics: ClusterTopics, coordination: Coordination, runtime: Runtime) -> None:
        self._topics = topics
        self._coordination = coordination
        self._runtime = runtime
        self._described: dict[str, tuple[float, dict[str, RosterView]]] = {}

    def of(self, group: str) -> dict[str, RosterView]:
        described = self._described.get(group)
        if described is None or described[0] < self._runtime.monotonic():
            return {}
        return described[1]

    def describe(self, group: str, seen_ms: Callable[[str, str], int | None]) -> Steps[None]:
        self._described.pop(group, None)
        found = yield from self._ask(group)
        if found is None:
            return
        now_ms = self._runtime.now_ms()
        views: dict[str, RosterView] = {}
        for topic in {name for member in found.members for name in member.subscribed_topic_names}:
            shares = [
                MemberShare(member.member_id, seen_ms(topic, member.member_id) or now_ms, share)
                for member in sorted(found.members, key=lambda one: str(one.member_id))
                for share in [_share_of(member, topic)]
                if topic in member.subscribed_topic_names
            ]
            try:
                partitions = self._topics.get(topic).partitions
            except TopicNotFound:
                continue
            views[topic] = RosterView(group, topic, found.group_epoch, partitions, shares, now_ms)
        if len(self._described) >= _KEPT_MAX:
            self._described.clear()
        self._described[group] = (self._runtime.monotonic() + _FRESH_MS / 1000, views)

    def fence(self, group: str, at: Collection[Partition]) -> Steps[Fence]:
        """A member that may commit these, who reads one of them if possible."""
        found = yield from self._ask(group)
        fence = Fence()
        for member in () if found is None else found.members:
            fence = Fence(member.member_id, member.member_epoch)
            if any(where.index in _share_of(member, where.topic) for where in at):
                break
        return fence

    def _ask(self, group: str) -> Steps[Any]:
        """The group as its coordinator describes it; None if it plans no such group."""
        fields = {"group_ids": (group,), "include_authorized_operations": False}

        def code(answer: Any) -> ErrorCode:
            found: ErrorCode = answer.groups[0].error_code
            return found

        answer = yield from self._coordination.ask(GROUP, group, _DESCRIBE, fields, code)
        (found,) = answer.groups
        if found.error_code is ErrorCode.group_id_not_found:
            return None
        check(f"asking for the members of group {group!r}", found.error_code)
        return found


def _share_of(member: Any, topic: str) -> tuple[int, ...]:
    return tuple(
        sorted(
            index
            for part in member.assignment.topic_partitions
            if part.topic_name == topic
            for index in part.partitions
        )
    )
