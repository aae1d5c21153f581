"""Several gateways in front of one cluster, each with ways to it that can be cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster_world import ClusterWorld, MemoryWire

from pentalog.cluster.council import ClusterCouncil
from pentalog.cluster.engine import Engine
from pentalog.cluster.wire import Receiver
from pentalog.metrics import Metrics

STEP_MS = 50


class Dialer:
    """The ways of one gateway to the cluster, which can all be cut."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._wires: list[MemoryWire] = []
        self.away = False

    def dial(self, host: str, port: int, receiver: Receiver) -> MemoryWire:
        self._wires.append(self._world.dial(host, port, receiver))
        if self.away:
            self._world.runtime.soon(self._wires[-1].lose)
        return self._wires[-1]

    def cut(self) -> None:
        self.away = True
        for wire in self._wires:
            wire.lose()


class Gateway:
    def __init__(self, world: ClusterWorld, name: str, **doors: Any) -> None:
        self.name = name
        self.world = world
        self.dialer = Dialer(world)
        self.runtime, self.config, self.metrics = world.runtime, world.config, world.metrics
        self.seeded = world.seeded
        servers = [("host.example", 9092)]
        self.engine = Engine(self.dialer, world.runtime, Metrics(), servers)
        self.broker = world.until(self.engine.open())
        self.council: ClusterCouncil = self.engine.council
        self.council.open(name, doors or {"blipmq": (f"{name}.example", 5555)})


def pass_time(
    world: ClusterWorld, gateways: list[Gateway], met: Callable[[], bool], most_ms: int = 60_000
) -> int:
    """Until it is so; nobody may share his ownership meanwhile.  How long it took."""
    for passed_ms in range(0, most_ms, STEP_MS):
        world.runtime.run()
        owners = [each.name for each in gateways if each.council.owned]
        assert len(owners) < 2
        if met():
            return passed_ms
        world.runtime.advance(STEP_MS)
    raise AssertionError("it never came to that")
