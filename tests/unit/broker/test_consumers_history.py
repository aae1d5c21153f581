"""Random histories of a shared group: no partition is ever read by two, and all settle."""

from __future__ import annotations

import random
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from consumer_world import GROUP, Modern, Older, World

from pentalog.broker import drafting
from pentalog.model.errors import MemberEpochFenced, Rebalancing, StaleGeneration, UnknownMember

SEEDS = range(40)
STEPS = 150


class History:
    """Members that come, go, stall and are restarted with their broker."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.dice = random.Random(seed)
        self.world = World(directory)
        self.world.topic("orders", 7)
        self.world.topic("bills", 3)
        self.names = count()
        # It keeps the group one that the broker plans.
        self.anchor = Modern(self.world, "anchor", "orders", "bills").join()
        self.members: list[Modern | Older] = [self.anchor]
        self.lingering: dict[Modern | Older, set[Any]] = {}
        """What clients were told to give up and still read: they need a moment for it."""

    def check(self) -> None:
        read: list[Any] = []
        for member in self.members:
            read += self.reads(member) | self.lingering.get(member, set())
        assert len(read) == len(set(read)), sorted(read)

    def reads(self, member: Modern | Older) -> set[Any]:
        shares: dict[Any, Any] = member.share if isinstance(member, Modern) else member.reads
        topics = self.world.topics
        return {
            (topics.get(topic).topic_id if isinstance(topic, str) else topic, index)
            for topic, indexes in shares.items()
            for index in indexes
        }

    def step(self) -> None:
        often = [self.beat] * 3
        rarely = [self.come, self.go, self.quiet, self.hold_on, self.resubscribe]
        self.dice.choice([*often, *rarely, self.grow, self.wait, self.restart])()
        self.check()

    def come(self) -> None:
        if len(self.members) >= 8:
            return
        topics = self.dice.choice([("orders",), ("orders", "bills"), ("bills",)])
        newcomer: Modern | Older
        if self.dice.random() < 0.4:
            newcomer = Older(self.world, *topics, eager=self.dice.random() < 0.5)
        else:
            newcomer = Modern(self.world, f"m{next(self.names)}", *topics)
        newcomer.join()
        self.members.append(newcomer)

    def go(self) -> None:
        if len(self.members) > 1:
            self.guarded(self.dice.choice(self.members[1:]), leaving=True)

    def beat(self) -> None:
        self.guarded(self.dice.choice(self.members))

    def guarded(self, member: Modern | Older, *, leaving: bool = False) -> None:
        """What a client does: it obeys, joins again when told to, and starts over if fenced."""
        before = self.reads(member)
        self.lingering.pop(member, None)
        if self.act(member, leaving=leaving):
            self.linger(member, before)

    def linger(self, member: Modern | Older, before: set[Any]) -> None:
        known = self.lingering.get(member, set())
        self.lingering[member] = (before | known) - self.reads(member)

    def act(self, member: Modern | Older, *, leaving: bool) -> bool:
        """False if the member is gone, or had to start over."""
        try:
            if leaving:
                member.leave()
                self.members.remove(member)
            elif isinstance(member, Modern):
                member.obey()
            else:
                try:
                    member.beat()
                except Rebalancing:
                    if member.eager:
                        member.reads = {}
                    member.join()
                    return not member.eager
        except (UnknownMember, MemberEpochFenced, StaleGeneration):
            self.start_over(member)
            return False
        return not leaving

    def start_over(self, member: Modern | Older) -> None:
        """Fenced: the others had all the time of a session, so nothing lingers."""
        self.lingering.pop(member, None)
        if isinstance(member, Older):
            member.member_id, member.generation, member.reads = "", -1, {}
        member.join()

    def quiet(self) -> None:
        """A heartbeat that says nothing of partitions."""
        member = self.dice.choice(self.members)
        if isinstance(member, Modern):
            before = self.reads(member)
            try:
                member.beat()
            except UnknownMember:
                self.start_over(member)
            else:
                self.linger(member, before)

    def hold_on(self) -> None:
        """A heartbeat that says the member still reads what it shall give up."""
        member = self.dice.choice(self.members)
        if isinstance(member, Modern):
            before = self.reads(member)
            owned = dict(member.share)
            for topic, index in self.lingering.get(member, ()):
                owned[topic] = owned.get(topic, frozenset()) | {index}
            try:
                member.beat(owned=owned)
            except UnknownMember:
                self.start_over(member)
            else:
                self.linger(member, before)

    def resubscribe(self) -> None:
        member = self.dice.choice(self.members[1:] or self.members)
        if not isinstance(member, Modern) or member is self.anchor:
            return
        member.topics = frozenset(self.dice.choice([("orders",), ("orders", "bills")]))
        before = self.reads(member)
        self.lingering.pop(member, None)
        try:
            member.beat(topics=member.topics, owned=dict(member.share))
        except UnknownMember:
            self.start_over(member)
        else:
            self.linger(member, before)

    def grow(self) -> None:
        partitions = self.world.topics.get("orders").partitions
        if partitions < 12 and self.dice.random() < 0.3:
            self.world.topics.grow("orders", partitions + 1)

    def wait(self) -> None:
        """All clients live through it, or one of them sleeps so long that it is fenced."""
        sleeper = self.dice.choice(self.members[1:]) if len(self.members) > 1 else None
        asleep = sleeper is not None and self.dice.random() < 0.3
        for _ in range(12 if asleep else 1):
            self.world.runtime.advance(5_000)
            for member in list(self.members):
                if not (asleep and member is sleeper):
                    self.guarded(member)
            if asleep and sleeper is not None:
                # A client that may not be heard stops reading by its own clock.
                forget(sleeper)
                self.lingering.pop(sleeper, None)

    def restart(self) -> None:
        if self.dice.random() < 0.3:
            self.world.crash()
            self.world = World(self.directory)
            for member in self.members:
                member.world = self.world

    def settle(self) -> None:
        for _ in range(40):
            before = self.seen()
            for member in list(self.members):
                self.guarded(member)
                self.check()
            if before == self.seen() and self.world.consumers.view(GROUP).state == "Stable":
                return
        raise AssertionError(self.world.consumers.view(GROUP))

    def seen(self) -> list[Any]:
        return [
            (m.epoch if isinstance(m, Modern) else m.generation, self.reads(m))
            for m in self.members
        ]


def forget(member: Modern | Older) -> None:
    if isinstance(member, Older):
        member.reads = {}
    else:
        member.share = {}


@pytest.mark.parametrize("seed", SEEDS)
def test_no_partition_is_read_by_two(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        # As if every plan were a lot of work.
        monkeypatch.setattr(drafting, "_LIGHT_WORK", -1)
        monkeypatch.setattr(drafting, "WORK_PER_TURN", 1)
    history = History(tmp_path, seed)
    for _ in range(STEPS):
        history.step()
    history.settle()
    topics = history.world.topics
    expected = {
        (topics.get(name).topic_id, index)
        for name in ("orders", "bills")
        for index in range(topics.get(name).partitions)
    }
    read = [place for member in history.members for place in history.reads(member)]
    assert sorted(read) == sorted(expected)
    history.world.crash()
    shutil.rmtree(tmp_path)
