"""A whole broker in a directory, on one thread, whose time moves only when told to."""

from __future__ import annotations

import heapq
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kafka_world import Line

from pentalog.broker.consumers import LocalConsumers
from pentalog.broker.groups import LocalGroups
from pentalog.broker.live_settings import LocalSettings
from pentalog.broker.log import LocalLog
from pentalog.broker.offsets_topic import OffsetsTopic
from pentalog.broker.port import Broker
from pentalog.broker.producers import LocalProducers
from pentalog.broker.quotas import LocalQuotas
from pentalog.broker.rules import LocalRules
from pentalog.broker.security import Access
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.tokens import LocalTokens
from pentalog.broker.topics import LocalTopics
from pentalog.broker.transactions import LocalTransactions
from pentalog.broker.users import LocalUsers
from pentalog.config import Config
from pentalog.log.files import RealFiles
from pentalog.log.store import Store
from pentalog.metrics import Metrics
from pentalog.model.types import Volume
from pentalog.protocols.kafka.session import KafkaSession
from pentalog.session import Address, Context


class ManualTimer:
    def __init__(self, run: Callable[[], None]) -> None:
        self.run: Callable[[], None] | None = run

    def cancel(self) -> None:
        self.run = None


class ManualRuntime:
    def __init__(self) -> None:
        self.time_ms = 1_700_000_000_000
        self.wall_step_ms = 0
        """How far the wall clock has been set forward, or back if negative."""
        self.held_lanes: set[str] = set()
        """Lanes whose threads are stuck until `release`."""
        self._held: list[Callable[[], None]] = []
        self._due: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._numbers = count()

    def now_ms(self) -> int:
        return self.time_ms + self.wall_step_ms

    def monotonic(self) -> float:
        return self.time_ms / 1000

    def soon(self, run: Callable[[], None]) -> None:
        self._due.append(run)

    def after(self, delay_ms: float, run: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(run)
        heapq.heappush(self._timers, (self.time_ms + delay_ms, next(self._numbers), timer))
        return timer

    def offload(
        self,
        lane: str,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        def do() -> None:
            if lane in self.held_lanes:
                self._held.append(do)
                return
            try:
                value = work()
            except Exception as error:
                done(None, error)
            else:
                done(value, None)

        self._due.append(do)

    def run(self) -> None:
        while self._due:
            self._due.popleft()()

    def release(self) -> None:
        """Let held lanes do their work with the next `run`."""
        self.held_lanes.clear()
        self._due += self._held
        self._held.clear()

    def advance(self, delay_ms: int) -> None:
        self.run()
        self.time_ms += delay_ms
        while self._timers and self._timers[0][0] <= self.time_ms:
            run = heapq.heappop(self._timers)[2].run
            if run is not None:
                run()
            self.run()


class SteadyFiles(RealFiles):
    """On a disk of which nobody else takes anything: answers that tell it must be equal."""

    def volume(self, path: Path) -> Volume:
        return Volume(1 << 40, 1 << 39)


class DiskBroker:
    """Opened in a directory; everything drawn at random comes from the seed."""

    def __init__(self, directory: Path, *, seed: int = 0, **settings: Any) -> None:
        self.runtime = ManualRuntime()
        # The same name for every broker: answers that tell it must be equal.
        self.config = Config(data=Path("data"), **settings)
        self.metrics = Metrics()
        self._dice = random.Random(seed)
        self._state_of_random = self._dice.getstate()
        self.store = Store(directory, SteadyFiles(), self.runtime, self.metrics, self.config)
        self.state = State(directory / FILE_NAME, self.runtime)
        producers = LocalProducers(self.state)
        with self.seeded():
            self.store.open()
            self.state.open()
            self.settings = LocalSettings(self.state, self.config)
            self.settings.open()
            self.topics = LocalTopics(self.store, self.state, self.runtime, self.settings.live)
            self.topics.open()
            self.settings.watch(self.topics.reconfigure, self.topics.check_defaults)
            self.quotas = LocalQuotas(self.state, self.runtime)
            self.quotas.open()
            producers.open()
            log = LocalLog(self.store, self.runtime, self.metrics)
            self.groups = LocalGroups(self.state, self.runtime, self.config)
            self.groups.open()
            self.groups.offsets.topic = OffsetsTopic(
                self.topics, self.store, self.runtime, self.groups.offsets.entries
            )
            self.topics.on_deleted.append(self.groups.topic_deleted)
            consumers = LocalConsumers(self.groups, self.topics)
            consumers.open()
            self.transactions = LocalTransactions(
                self.store,
                log,
                self.state,
                producers,
                self.groups.offsets,
                self.runtime,
                self.config,
            )
            self.transactions.open()
            self.broker = Broker(
                "AAAAAAAAAAAAAAAAAAAAAA",
                log,
                self.topics,
                producers,
                self.groups,
                self.transactions,
                consumers=consumers,
                quotas=self.quotas,
                settings=self.settings,
                rules=self._rules(),
                users=self._users(),
                tokens=self._tokens(),
            )
            self.runtime.run()

    def _rules(self) -> LocalRules:
        rules = LocalRules(self.state, enforced=self.config.authorization)
        rules.open()
        return rules

    def _users(self) -> LocalUsers:
        users = LocalUsers(self.state, self.runtime)
        users.open()
        return users

    def _tokens(self) -> LocalTokens:
        tokens = LocalTokens(self.state, self.runtime, self.config)
        tokens.open()
        return tokens

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Topic ids and session ids repeat from seed to seed."""
        before = random.getstate()
        random.setstate(self._state_of_random)
        made = lambda: uuid.UUID(int=random.getrandbits(128), version=4)  # noqa: E731
        try:
            with patch.object(uuid, "uuid4", made):
                yield
        finally:
            self._state_of_random = random.getstate()
            random.setstate(before)

    def connect(self, line: Line, *demands: str) -> KafkaSession:
        context = Context(
            broker=self.broker,
            runtime=self.runtime,
            config=self.config,
            metrics=self.metrics,
            peer="test",
            listener="kafka",
            advertised=lambda endpoint: Address("host.example", 9092),
            demands=frozenset(demands),
            access=Access(self.broker.rules),
        )
        return KafkaSession(context, line)

    def close(self) -> None:
        self.groups.stop_waiting()
        self.groups.close()
        self.transactions.close()
        self.state.close()
        self.runtime.run()
        self.store.close()
        self.runtime.run()


class Connection:
    """A session on a broker, with the receive buffer a server would keep for it."""

    def __init__(self, broker: DiskBroker, *demands: str) -> None:
        self.broker = broker
        self.line = Line()
        self.session = broker.connect(self.line, *demands)
        self._left = b""

    def feed(self, data: bytes) -> None:
        buffer = bytearray(self._left + data)
        with self.broker.seeded():
            used = self.session.receive(memoryview(buffer))
        assert 0 <= used <= len(buffer)
        self._left = bytes(buffer[used:])
        # What was sent must not depend on what the buffer holds next.
        buffer[:] = b"\xaa" * len(buffer)

    def run(self) -> None:
        with self.broker.seeded():
            self.broker.runtime.run()

    def ask(self, data: bytes) -> bytes:
        """The answer to one request, given whatever waits it needs."""
        before = len(self.line.frames())
        self.feed(data)
        self.run()
        (answer,) = self.line.frames()[before:]
        return answer
