"""kill -9 a real broker under BlipMQ load of quality 1, with consumers, again and again.

Every publish that a PONG has fenced is delivered at least once, under the tag it always had, to a
subscription of quality 1 that was made before all deaths, and at most once to one of quality 0.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))

from blipmq_raw import NACK, RawClient, publish_frame
from tests.support.victims import Victim, wait_until

CYCLES = int(os.environ.get("PENTALOG_CYCLES", "300" if "PENTALOG_TORTURE" in os.environ else "10"))
SEED = int(os.environ.get("PENTALOG_SEED", str(random.randrange(1 << 30))))
TOPIC = "killed"
PUBLISHERS = 2

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300 + 10 * CYCLES)]


class Worker(threading.Thread):
    """Does its work over one connection after another until it is stopped."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.stopped = threading.Event()
        self.flaw = ""

    def run(self) -> None:
        while not self.stopped.is_set() and not self.flaw:
            try:
                with RawClient(self.port) as client:
                    client.shake_hands()
                    while not self.stopped.is_set() and not self.flaw:
                        self.work(client)
            except (OSError, EOFError):
                time.sleep(0.01)

    def work(self, client: RawClient) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.stopped.set()
        self.join(60)
        assert not self.is_alive()
        assert self.flaw == ""


class Publisher(Worker):
    def __init__(self, port: int, name: int) -> None:
        super().__init__(port)
        self.number = name
        self.sent = 0
        self.fenced: set[bytes] = set()

    def work(self, client: RawClient) -> None:
        block = [b"%d:%d" % (self.number, self.sent + place) for place in range(50)]
        self.sent += len(block)
        answers = client.fence(
            *[publish_frame(9, 1, TOPIC, message + bytes(100)) for message in block]
        )
        if answers:
            self.flaw = f"refused: {answers[0]}"
        self.fenced.update(block)
        time.sleep(0.002)


class Consumer(Worker):
    def __init__(self, port: int, subscription: int, seed: int) -> None:
        super().__init__(port)
        self.subscription = subscription
        self.tags: dict[int, bytes] = {}
        self._dice = random.Random(seed)

    def work(self, client: RawClient) -> None:
        tags = []
        for delivery in client.poll(self.subscription, 300):
            if delivery.type == NACK:
                self.flaw = f"refused: {delivery}"
                return
            message = delivery.message[2].rstrip(b"\0")
            tag = delivery.correlation_id
            if self.tags.setdefault(tag, message) != message:
                self.flaw = f"tag {tag} was {self.tags[tag]!r} and is {message!r}"
            tags.append(tag)
        if tags and self._dice.random() < 0.9:
            client.acknowledge(self.subscription, *tags)


class ForgetfulConsumer(Worker):
    """Of quality 0: it acknowledges nothing, and sees nothing twice."""

    def __init__(self, port: int, subscription: int) -> None:
        super().__init__(port)
        self.subscription = subscription
        self.seen: set[bytes] = set()

    def work(self, client: RawClient) -> None:
        for delivery in client.poll(self.subscription, 300):
            if delivery.type == NACK:
                self.flaw = f"refused: {delivery}"
                return
            message = delivery.message[2].rstrip(b"\0")
            if message in self.seen:
                self.flaw = f"{message!r} was delivered twice"
            self.seen.add(message)


def test_kill_under_load_of_quality_1(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    print(f"seed {SEED}")
    # What was delivered and lost with the connection counts as an attempt.
    defaults = "segment.bytes=200000,subscription.attempts.max=-1"
    victim = Victim(tmp_path, "blipmq", defaults)
    victim.start()
    workers: list[Worker] = []
    try:
        with RawClient(victim.port) as client:
            subscription = client.shake_hands().subscribe(TOPIC, 1)
            forgetful = ForgetfulConsumer(victim.port, client.subscribe(TOPIC, 0))
        consumer = Consumer(victim.port, subscription, SEED)
        publishers = [Publisher(victim.port, name) for name in range(PUBLISHERS)]
        workers = [*publishers, consumer, forgetful]
        for worker in workers:
            worker.start()
        victim.die_often(
            CYCLES, dice, lambda: min(len(publisher.fenced) for publisher in publishers), more=50
        )
        for publisher in publishers:
            publisher.finish()
        fenced = set().union(*(publisher.fenced for publisher in publishers))
        last = {b"last:%d" % number for number in range(500)}
        with RawClient(victim.port) as client:
            client.shake_hands().fence(*[publish_frame(9, 1, TOPIC, message) for message in last])
        fenced |= last

        def delivered() -> bool:
            assert consumer.flaw == forgetful.flaw == ""
            return fenced <= set(consumer.tags.values()) and last <= forgetful.seen

        wait_until(delivered, "some were never delivered")
        consumer.finish()
        forgetful.finish()
        print(f"quality 0: {len(forgetful.seen)} of {len(fenced)} were delivered")
    finally:
        for worker in workers:
            worker.stopped.set()
        victim.kill()
