"""Committed offsets: kept by the cluster's group coordinators, remembered here once asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NoReturn, Protocol

from pentalog.broker.port import Committed, Fence
from pentalog.cluster.council import GROUP as COUNCIL
from pentalog.cluster.fleet import ASKING, Fleet, by_topic
from pentalog.cluster.link import Link
from pentalog.cluster.refusals import Lost, Refused, Trouble, check
from pentalog.cluster.steps import Steps, all_of, begin
from pentalog.cluster.topics import ClusterTopics
from pentalog.model.errors import StaleGeneration, UnsupportedVersion
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.types import Partition

_OFFSET_COMMIT: Final = 8
_OFFSET_FETCH: Final = 9
_FIND_COORDINATOR: Final = 10
_LIST_GROUPS: Final = 16
_OFFSET_DELETE: Final = 47
_GROUP: Final = 0
_INDEX_MAX: Final = (1 << 31) - 1
_NAME_BYTES_MAX: Final = (1 << 15) - 1
_REMEMBERED_MAX: Final = 10_000
_NOT_OFFERED: Final = "transactions of a cluster do not pass through its gateways: ask the cluster"


class Members(Protocol):
    """Who is in groups at this gateway."""

    def fence(self, group: str, at: Collection[Partition]) -> Fence: ...
    def fence_elsewhere(self, group: str, at: Collection[Partition]) -> Steps[Fence]: ...
    def owns(self, group: str, member_id: str, at: Collection[Partition]) -> bool: ...
    def refresh(self, group: str) -> Steps[None]: ...


class Nobody:
    """Implements `Members` where no group has any."""

    def fence(self, group: str, at: Collection[Partition]) -> Fence:
        return Fence()

    def fence_elsewhere(self, group: str, at: Collection[Partition]) -> Steps[Fence]:
        yield from ()
        return Fence()

    def owns(self, group: str, member_id: str, at: Collection[Partition]) -> bool:
        return False

    def refresh(self, group: str) -> Steps[None]:
        yield from ()


def move_on(
    members: Members, group: str, fence: Fence, at: Collection[Partition]
) -> Steps[NoReturn]:
    """The group has moved on: let the members hear of it, and try again if that is still right."""
    owned = members.owns(group, fence.member_id, at)
    yield from members.refresh(group)
    if owned and not members.owns(group, fence.member_id, at):
        raise StaleGeneration(f"member {fence.member_id!r} of group {group!r} has another share")
    raise Lost(f"offsets of group {group!r}: its members change")


class ClusterOffsets:
    """Implements the port's `Offsets` for groups without members."""

    def __init__(self, fleet: Fleet, topics: ClusterTopics) -> None:
        self._fleet = fleet
        self._topics = topics
        self._coordinators: dict[str, int] = {}
        self._remembered: OrderedDict[tuple[str, Partition], Committed] = OrderedDict()
        self._groups: frozenset[str] = frozenset()
        self.members: Members = Nobody()
        """In whose name offsets of groups with members are committed."""

    def commit(
        self, group: str, offsets: Mapping[Partition, Committed], *, owner: str = ""
    ) -> Later[None]:
        if not offsets:
            return Later.now(None)
        return begin(self._commit(group, dict(offsets)))

    def committed(
        self, group: str, at: Collection[Partition] | None = None
    ) -> Mapping[Partition, Committed]:
        """Those that were committed or asked for here."""
        if at is None:
            return {where: found for (name, where), found in self._entries() if name == group}
        found: dict[Partition, Committed] = {}
        for where in at:
            committed = self._remembered.get((group, where))
            if committed is not None:
                found[where] = committed
        return found

    def walk(self, group: str) -> Iterator[tuple[Partition, Committed]]:
        yield from self.committed(group).items()

    def settled(self, group: str) -> Later[None]:
        """Ready at once: a cluster shows an offset only once it is replicated."""
        return Later.now(None)

    def holds(self, group: str) -> bool:
        return bool(self.committed(group))

    def groups(self) -> Collection[str]:
        """Every group of the cluster when it was last asked, and those that came through here."""
        return {*self._groups, *(group for group, _ in self._remembered)}

    def names(self) -> Iterator[str]:
        yield from self.groups()

    def _entries(self) -> list[tuple[tuple[str, Partition], Committed]]:
        return list(self._remembered.items())

    def refresh(self, group: str, at: Collection[Partition] | None) -> Steps[None]:
        """Ask the group's coordinator, except for what no request can name: it is not there."""
        if not group or len(group.encode()) > _NAME_BYTES_MAX:
            return
        wanted = None if at is None else [each for each in at if _nameable(each)]
        if wanted or wanted is None:
            yield from self._fleet.persist(lambda: self._ask(group, wanted))

    def refresh_groups(self) -> Steps[None]:
        """Ask every node for the groups it coordinates."""
        nodes = list(self._fleet.everyone(ASKING))
        answers = [
            node.ask(_LIST_GROUPS, {"states_filter": (), "types_filter": ()}) for node in nodes
        ]
        yield all_of(answers)
        found: set[str] = set()
        for answer in answers:
            check("listing the groups", answer.value.error_code)
            found.update(group.group_id for group in answer.value.groups)
        self._groups = frozenset(found - {COUNCIL})

    def _commit(self, group: str, offsets: Mapping[Partition, Committed]) -> Steps[None]:
        def once() -> Steps[None]:
            fence = self.members.fence(group, offsets)
            try:
                yield from self._commit_as(group, offsets, fence)
            except Refused as refused:
                if fence != Fence() or refused.code is not ErrorCode.unknown_member_id:
                    raise
                # It has members, none of them here: a coordinator takes offsets from them only.
                elsewhere = yield from self.members.fence_elsewhere(group, offsets)
                if elsewhere == Fence():
                    raise
                yield from self._commit_as(group, offsets, elsewhere)

        yield from self._fleet.persist(once)
        for at, committed in offsets.items():
            self._remember(group, at, committed)

    def _commit_as(
        self, group: str, offsets: Mapping[Partition, Committed], fence: Fence
    ) -> Steps[None]:
        fields = _commit_fields(group, offsets, fence)
        answer = yield from self._ask_coordinator(group, _OFFSET_COMMIT, fields)
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code is ErrorCode.unknown_topic_or_partition:
                    # Refused for the moment only if it is there: the coordinator is behind.
                    self._topics.leader(Partition(topic.name, part.partition_index))
                if part.error_code is ErrorCode.stale_member_epoch:
                    yield from move_on(self.members, group, fence, offsets)
                self._check(group, f"{topic.name}-{part.partition_index}", part.error_code)

    def _ask(self, group: str, at: Collection[Partition] | None) -> Steps[None]:
        topics = None
        if at is not None:
            topics = [
                {"name": topic, "partition_indexes": tuple(indexes)}
                for topic, indexes in by_topic(at).items()
            ]
        # What an open transaction may change is told as it was: nobody waits for its end.
        fields = {"group_id": group, "topics": topics, "require_stable": False}
        answer = yield from self._ask_coordinator(group, _OFFSET_FETCH, fields)
        self._check(group, "", answer.error_code)
        if at is None:
            self._drop(group, None)
        for topic in answer.topics:
            for part in topic.partitions:
                self._check(group, f"{topic.name}-{part.partition_index}", part.error_code)
                where = Partition(topic.name, part.partition_index)
                if part.committed_offset < 0:
                    self._remembered.pop((group, where), None)
                else:
                    metadata = part.metadata or ""
                    self._remember(group, where, Committed(part.committed_offset, -1, metadata))

    def _ask_coordinator(self, group: str, key: int, fields: Mapping[str, Any]) -> Steps[Any]:
        link = yield from self._coordinator(group)
        try:
            answer = yield link.ask(key, fields)
        except Trouble:
            self._coordinators.pop(group, None)
            raise
        return answer

    def _coordinator(self, group: str) -> Steps[Link]:
        node = self._coordinators.get(group)
        link = None if node is None else self._fleet.node(node, ASKING)
        if link is None:
            doing = f"finding the coordinator of group {group!r}"
            fields = {"key": group, "key_type": _GROUP}
            answer = yield self._fleet.ask_any(_FIND_COORDINATOR, fields)
            check(doing, answer.error_code, getattr(answer, "error_message", None))
            link = self._fleet.required(self._fleet.node(answer.node_id, ASKING), doing)
            if len(self._coordinators) >= _REMEMBERED_MAX:
                self._coordinators.clear()
            self._coordinators[group] = answer.node_id
        return link

    def _check(self, group: str, where: str, code: Any) -> None:
        if code:
            self._coordinators.pop(group, None)
            raise Refused(f"offsets of group {group!r} {where}".rstrip(), code)

    def _remember(self, group: str, at: Partition, committed: Committed) -> None:
        self._remembered[group, at] = committed
        self._remembered.move_to_end((group, at))
        if len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def _drop(self, group: str, at: Collection[Partition] | None) -> None:
        places = [where for name, where in self._remembered if name == group] if at is None else at
        for where in places:
            self._remembered.pop((group, where), None)

    def forget(self, group: str, at: Collection[Partition] | None = None) -> Later[None]:
        return begin(self._forget(group, at))

    def _forget(self, group: str, at: Collection[Partition] | None) -> Steps[None]:
        if at is None:
            yield from self.refresh(group, None)
            at = list(self.committed(group))
        topics = [
            {"name": topic, "partitions": [{"partition_index": index} for index in indexes]}
            for topic, indexes in by_topic(at).items()
        ]
        fields = {"group_id": group, "topics": topics}

        def once() -> Steps[None]:
            answer = yield from self._ask_coordinator(group, _OFFSET_DELETE, fields)
            if answer.error_code is ErrorCode.group_id_not_found:
                return  # and so has no offsets
            self._check(group, "", answer.error_code)
            for topic in answer.topics:
                for part in topic.partitions:
                    if part.error_code is not ErrorCode.unknown_topic_or_partition:
                        self._check(group, f"{topic.name}-{part.partition_index}", part.error_code)

        if topics:
            yield from self._fleet.persist(once)
        self._drop(group, at)

    # What needs more than commits

    def stage(
        self,
        producer_id: int,
        group: str,
        offsets: Mapping[Partition, Committed],
        *,
        owner: str = "",
    ) -> Later[None]:
        raise UnsupportedVersion(_NOT_OFFERED)

    def staged(self) -> Collection[int]:
        return ()

    def unstable(self, group: str, at: Partition) -> bool:
        return False

    def finish(self, producer_id: int, *, commit: bool, at_once: bool = False) -> Later[None]:
        raise UnsupportedVersion(_NOT_OFFERED)

    def publish(self) -> None:
        """The cluster has its own topic of offsets."""


def _nameable(at: Partition) -> bool:
    return at.index <= _INDEX_MAX and len(at.topic.encode()) <= _NAME_BYTES_MAX


def offset_fields(offsets: Mapping[Partition, Committed]) -> list[dict[str, Any]]:
    """The topics of a request that commits."""
    return [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": offsets[Partition(topic, index)].offset,
                    "committed_leader_epoch": -1,
                    "committed_metadata": offsets[Partition(topic, index)].metadata,
                }
                for index in indexes
            ],
        }
        for topic, indexes in by_topic(offsets).items()
    ]


def _commit_fields(
    group: str, offsets: Mapping[Partition, Committed], fence: Fence
) -> Mapping[str, Any]:
    return {
        "group_id": group,
        # The field's name depends on the version.
        "generation_id": fence.generation,
        "generation_id_or_member_epoch": fence.generation,
        "member_id": fence.member_id,
        "group_instance_id": None,
        "topics": offset_fields(offsets),
    }
