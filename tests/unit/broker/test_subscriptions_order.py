"""The order of deliveries, checked against a queue of copies as the original keeps it."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import pytest
from tests.support.blipmq_world import BlipBroker
from tests.unit.broker.test_subscriptions import AT, acknowledge, subscribe, take

TICK_MS = 200


class Queue:
    """What the original does with one subscription: a queue, and what is on lease."""

    def __init__(self, attempts_max: int) -> None:
        self.attempts_max = attempts_max
        self.queued: deque[tuple[int, int]] = deque()
        """Tags, and how often each was delivered."""
        self.leased: dict[int, tuple[int, int, int]] = {}
        """By tag: attempts, when it is due, when it was delivered."""
        self.dead: list[int] = []
        self._deliveries = 0

    def deliver(self, count: int, now_ms: int) -> list[int]:
        found = []
        while self.queued and len(found) < count:
            tag, attempts = self.queued.popleft()
            self._deliveries += 1
            due_ms = now_ms + (100 << attempts)
            self.leased[tag] = (attempts + 1, due_ms, self._deliveries)
            found.append(tag)
        return found

    def acknowledge(self, tag: int) -> bool:
        return self.leased.pop(tag, None) is not None

    def tick(self, now_ms: int) -> None:
        due = [
            (due_ms, attempts, number, tag)
            for tag, (attempts, due_ms, number) in self.leased.items()
            if due_ms <= now_ms
        ]
        for _, attempts, _, tag in sorted(due):
            del self.leased[tag]
            if 0 < self.attempts_max <= attempts:
                self.dead.append(tag)
            else:
                self.queued.append((tag, attempts))


@pytest.mark.parametrize("seed", range(8))
def test_order_is_that_of_a_queue(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    attempts_max = dice.choice((-1, 3))
    broker = BlipBroker(tmp_path)
    broker.topic("t", subscription_attempts_max=str(attempts_max))
    subscription = subscribe(broker)
    queue = Queue(attempts_max)
    written = 0
    for _ in range(150):
        now_ms = broker.runtime.now_ms()
        for _ in range(dice.randrange(3)):
            count = dice.randrange(1, 12)
            broker.append(AT, *(b"%d" % (written + place + 1) for place in range(count)))
            queue.queued.extend((written + place + 1, 0) for place in range(count))
            written += count
        for _ in range(dice.randrange(3)):
            count = dice.randrange(1, 20)
            found = take(broker, subscription, count)
            assert list(found) == queue.deliver(count, now_ms)
            assert list(found.values()) == [b"%d" % tag for tag in found]
        for tag in dice.sample(range(written + 1), min(written, dice.randrange(30))):
            assert (acknowledge(subscription, tag) == []) == queue.acknowledge(tag)
        for _ in range(dice.choice((0, 1, 1, 2, 5))):
            broker.runtime.advance(TICK_MS)
            queue.tick(broker.runtime.now_ms())
    assert broker.metrics.dead_letters == len(queue.dead)
    broker.stop()
