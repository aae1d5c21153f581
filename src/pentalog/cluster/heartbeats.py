"""Heartbeats to the coordinators of groups, for members that this gateway answers for."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from pentalog.clients.kafka import messages
from pentalog.cluster.coordination import GROUP, Coordination
from pentalog.cluster.refusals import check
from pentalog.cluster.steps import Steps, begin
from pentalog.cluster.topics import ClusterTopics
from pentalog.model.errors import BrokerError
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.runtime import Runtime, Timer

_HEARTBEAT: Final = 68
_JOINING: Final = 0
_LEAVING: Final = -1
_REBALANCE_MS: Final = 60_000
_INTERVAL_MS: Final = 3_000
_ASSIGNOR: Final = "range"
_DRAWN: Final = 12
_SEAL: Final = 8
_EXPELLED: Final = (
    ErrorCode.unknown_member_id,
    ErrorCode.fenced_member_epoch,
    ErrorCode.group_id_not_found,
)


class Member:
    """A member of this gateway's."""

    __slots__ = (
        "beaten_s",
        "beating",
        "counted_from",
        "epoch",
        "generation",
        "gone",
        "group",
        "interval_ms",
        "member_id",
        "name",
        "partitions",
        "seen_ms",
        "seen_s",
        "stale",
        "timer",
        "told",
        "topic",
        "waiting",
    )  # fmt: skip

    def __init__(
        self, group: str, topic: str, member_id: str, name: str, now_ms: int, now_s: float
    ) -> None:
        self.group = group
        self.topic = topic
        self.member_id = member_id
        self.name = name
        self.seen_ms = now_ms
        self.seen_s = now_s
        """The same moment by the monotonic clock: timeouts do not follow a clock that is set."""
        self.beaten_s = float("-inf")
        self.epoch = _JOINING
        self.counted_from = 0
        """The group's epoch before its first member read this topic: generations count from it."""
        self.generation = 0
        self.told = False
        """It knows its generation, so that another share needs another one."""
        self.partitions: tuple[int, ...] = ()
        self.stale = False
        """It was told that it missed a change, and has not come back since."""
        self.gone = False
        self.beating = False
        self.waiting: list[Later[None]] = []
        """Who wants to know what the next heartbeat says."""
        self.interval_ms = _INTERVAL_MS
        self.timer: Timer | None = None


class Heartbeats:
    """What a coordinator is told of members, and what it says to them."""

    def __init__(self, topics: ClusterTopics, coordination: Coordination, runtime: Runtime) -> None:
        self._topics = topics
        self._coordination = coordination
        self._runtime = runtime

    def beat(self, member: Member) -> Later[None]:
        """Tell the coordinator of a member; ready when its word has been taken over."""
        later: Later[None] = Later()
        member.waiting.append(later)
        if not member.beating:
            member.beating = True
            begin(self._beat_until_heard(member))
        return later

    def _beat_until_heard(self, member: Member) -> Steps[None]:
        while member.waiting:
            waiting, member.waiting = member.waiting, []
            try:
                if not member.gone:
                    yield from self.exchange(member)
            except BrokerError:
                pass  # tried again when it is due; until then the member keeps what it has
            for later in waiting:
                later.fill(None)
        member.beating = False

    def exchange(self, member: Member) -> Steps[None]:
        """Heartbeats until the coordinator knows that what it planned has been taken over."""
        while not member.gone:
            member.beaten_s = self._runtime.monotonic()
            answer = yield from self._ask(member, member.epoch)
            if member.gone:
                return
            if answer.error_code in _EXPELLED and member.epoch != _JOINING:
                # Begin anew under the same id; what it had may be another's by now.
                member.epoch = _JOINING
                self._take(member, ())
                continue
            check(_doing(member), answer.error_code, answer.error_message)
            self._move_on(member, answer.member_epoch)
            member.interval_ms = int(answer.heartbeat_interval.total_seconds() * 1000)
            if answer.assignment is None or not self._take(
                member, self._planned(member, answer.assignment)
            ):
                return

    def _planned(self, member: Member, assignment: Any) -> tuple[int, ...]:
        topic_id = self._topics.get(member.topic).topic_id
        return tuple(
            sorted(
                index
                for part in assignment.topic_partitions
                if part.topic_id == topic_id
                for index in part.partitions
            )
        )

    def _take(self, member: Member, partitions: tuple[int, ...]) -> bool:
        """Is it another share than before?"""
        if partitions == member.partitions:
            return False
        member.partitions = partitions
        self._renew(member)
        return True

    def _move_on(self, member: Member, epoch: int) -> None:
        if epoch != member.epoch:
            member.epoch = epoch
            self._renew(member)

    def _renew(self, member: Member) -> None:
        """A new generation, by the group's epoch; the same one if nobody knows it yet."""
        least = member.generation + 1 if member.told else member.generation
        member.generation = max(least, member.epoch - member.counted_from, 1)
        member.told = False

    def _ask(self, member: Member, epoch: int) -> Steps[Any]:
        joining = epoch == _JOINING
        owned = []
        if member.partitions and epoch > _JOINING:
            topic_id = self._topics.get(member.topic).topic_id
            owned = [{"topic_id": topic_id, "partitions": member.partitions}]
        fields = {
            "group_id": member.group,
            "member_id": member.member_id,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": messages.ms(_REBALANCE_MS if joining else -1),
            "subscribed_topic_names": (member.topic,) if joining else None,
            "subscribed_topic_regex": None,
            "server_assignor": _ASSIGNOR if joining else None,
            "topic_partitions": owned,
        }
        return (yield from self._coordination.ask(GROUP, member.group, _HEARTBEAT, fields, _code))

    def leave(self, member: Member) -> Steps[bool]:
        """Was it still there?"""
        answer = yield from self._ask(member, _LEAVING)
        if answer.error_code in _EXPELLED:
            return False
        check(_doing(member), answer.error_code, answer.error_message)
        return True


def sealed(name: str, drawn: str) -> str:
    """It ends with what can only be drawn by a gateway, so that every gateway knows it again."""
    seal = hashlib.sha256(f"{name}-{drawn}".encode("utf-8", "surrogateescape")).hexdigest()[:_SEAL]
    return f"{name}-{drawn}{seal}"


def given_out(name: str) -> bool:
    base, _, drawn = name.rpartition("-")
    return len(drawn) == _DRAWN + _SEAL and sealed(base, drawn[:_DRAWN]) == name


def _code(answer: Any) -> ErrorCode:
    code: ErrorCode = answer.error_code
    return code


def _doing(member: Member) -> str:
    return f"telling the cluster of member {member.member_id!r} of group {member.group!r}"
