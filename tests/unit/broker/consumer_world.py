"""A broker's groups and topics in a directory, and members that speak to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.runtimes import SteppedRuntime

from pentalog.broker import embedded
from pentalog.broker.consumers import LocalConsumers
from pentalog.broker.groups import LocalGroups
from pentalog.broker.port import (
    Beat,
    Beaten,
    Fence,
    Joined,
    Joining,
    Leaving,
    Proposal,
    TopicSpec,
)
from pentalog.broker.rules import LocalRules
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.topics import LocalTopics
from pentalog.config import Config
from pentalog.log.files import RealFiles
from pentalog.log.store import Store
from pentalog.metrics import Metrics
from pentalog.model.errors import MemberIdRequired
from pentalog.model.later import Later

GROUP = "readers"
SESSION_MS = 45_000
REBALANCE_MS = 60_000


class World:
    """One life of a broker; `crash` and a new `World` on the same directory are the next."""

    def __init__(self, directory: Path, *, guarded: bool = False, **settings: Any) -> None:
        self.runtime = SteppedRuntime()
        settings.setdefault("group_initial_rebalance_delay_ms", 0)
        self.config = Config(data=directory, journal_bytes=1 << 20, **settings)
        metrics = Metrics()
        self.store = Store(directory, RealFiles(), self.runtime, metrics, self.config)
        self.store.open()
        self.state = State(directory / FILE_NAME, self.runtime)
        self.state.open()
        self.topics = LocalTopics(self.store, self.state, self.runtime, self.config)
        self.topics.open()
        self.groups = LocalGroups(self.state, self.runtime, self.config)
        self.groups.open()
        self.rules = LocalRules(
            self.state, enforced=guarded, super_users=(), everyone_without_rule=False
        )
        self.rules.open()
        self.consumers = LocalConsumers(self.groups, self.topics, self.rules)
        self.consumers.open()
        self.runtime.step()

    def topic(self, name: str, partitions: int) -> None:
        self.topics.create(TopicSpec(name=name, partitions=partitions))
        self.runtime.step()

    def crash(self) -> None:
        """Nothing is closed in order; what was not on the disk is lost."""
        self.groups.close()
        self.state.close()
        self.runtime.step()
        self.store.close()
        self.runtime.step()

    def value(self, later: Later[Any]) -> Any:
        self.runtime.step()
        return later.value

    def named(self, share: Any) -> dict[str, list[int]]:
        """Partitions by topic name."""
        return {self.topics.by_id(topic).name: sorted(share[topic]) for topic in share}


class Modern:
    """A member of the newer protocol, as a client keeps it."""

    def __init__(self, world: World, member_id: str, *topics: str, **more: Any) -> None:
        self.world = world
        self.member_id = member_id
        self.epoch = 0
        self.share: dict[Any, Any] = {}
        self.topics = frozenset(topics)
        self.more = more

    def join(self) -> Modern:
        self.epoch = 0
        self.share = {}
        self.beat(
            owned={},
            topics=self.topics,
            rebalance_timeout_ms=REBALANCE_MS,
            **self.more,
        )
        return self

    def beat(self, **fields: Any) -> Beaten:
        beat = Beat(member_id=self.member_id, epoch=self.epoch, **fields)
        answer: Beaten = self.world.value(self.world.consumers.beat(GROUP, beat))
        self.epoch = answer.epoch
        if answer.share is not None:
            self.share = {topic: frozenset(indexes) for topic, indexes in answer.share.items()}
        return answer

    def obey(self) -> Beaten:
        """A heartbeat that says what the member reads: exactly what it was told."""
        return self.beat(owned=dict(self.share))

    def leave(self, epoch: int = -1) -> None:
        self.epoch = epoch
        self.beat(instance_id=self.more.get("instance_id"))

    @property
    def reads(self) -> dict[str, list[int]]:
        return self.world.named(self.share)


def settle(*members: Modern) -> None:
    """Heartbeats until nobody hears anything new."""
    for _ in range(10):
        before = [(member.epoch, member.share) for member in members]
        for member in members:
            member.obey()
        if before == [(member.epoch, member.share) for member in members]:
            return
    raise AssertionError("the members never settle")


class Older:
    """A member of the older protocol that keeps its partitions while it joins."""

    def __init__(
        self, world: World, *topics: str, instance_id: str | None = None, eager: bool = False
    ) -> None:
        self.world = world
        self.topics = frozenset(topics)
        self.instance_id = instance_id
        self.eager = eager
        self.member_id = ""
        self.generation = -1
        self.reads: dict[str, list[int]] = {}

    def subscription(self) -> bytes:
        out = bytearray(b"\0\1" + len(self.topics).to_bytes(4, "big"))
        for topic in sorted(self.topics):
            out += len(topic).to_bytes(2, "big") + topic.encode()
        out += b"\xff\xff\xff\xff"
        owned = {} if self.eager else {t: frozenset(i) for t, i in self.reads.items()}
        return bytes(out) + embedded.assignment(1, owned)[2:-4]

    def ask_to_join(self) -> Later[Joined]:
        metadata = self.subscription()
        joining = Joining(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id="older",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            proposals=(Proposal("cooperative-sticky", metadata, self.topics),),
        )
        try:
            return self.world.groups.join(GROUP, joining)
        except MemberIdRequired as told:
            self.member_id = told.member_id
            return self.ask_to_join()

    def joined(self, later: Later[Joined]) -> Joined:
        joined: Joined = self.world.value(later)
        self.member_id, self.generation = joined.member_id, joined.generation
        return joined

    def join(self) -> Joined:
        """Join where the broker answers at once, and fetch the part of the plan."""
        joined = self.joined(self.ask_to_join())
        self.sync({})
        return joined

    @property
    def fence(self) -> Fence:
        return Fence(self.member_id, self.generation, self.instance_id)

    def sync(self, plan: dict[str, bytes]) -> None:
        synced = self.world.value(self.world.groups.sync(GROUP, self.fence, plan))
        parts = embedded.assigned(synced.assignment)
        self.reads = {topic: sorted(indexes) for topic, indexes in parts.items()}

    def beat(self) -> None:
        self.world.groups.heartbeat(GROUP, self.fence)
        self.world.runtime.step()

    def leave(self) -> None:
        (refusal,) = self.world.groups.leave(GROUP, [Leaving(self.member_id)])
        if refusal is not None:
            raise refusal
        self.world.runtime.step()
