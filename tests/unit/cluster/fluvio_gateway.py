"""Fluvio's two ports on the cluster engine, as `fluvio_world` has them on a disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "protocols" / "fluvio"))

import fluvio_world
from cluster_world import ClusterWorld, SecondGateway
from fluvio_world import SPU_ADDRESS, Client

from pentalog.protocols.fluvio.sc import ScSession
from pentalog.protocols.fluvio.spu import SpuSession
from pentalog.session import Context


class HeldLine(fluvio_world.Line):
    """One that can be held; what waits is served again afterwards."""

    held = False
    released = False

    def hold(self) -> Any:
        self.full = self.held = True
        return self._release

    def _release(self) -> None:
        self.held = False
        self.released = True


class GatewayClient(Client):
    """One connection to a gateway: goes on whenever its line has been held."""

    line: HeldLine

    def __init__(self, broker: Any, kind: Any, version: int) -> None:
        with patch.object(fluvio_world, "Line", HeldLine):
            super().__init__(broker, kind, version)

    def run(self) -> None:
        """Lets time pass: a cluster flushes, and retries are made, after a while."""
        for _ in range(4):
            self._run()
            self.broker.runtime.advance(50)
        self._run()

    def _run(self) -> None:
        super().run()
        while self.line.released:
            self.line.released = False
            self.line.make_room()
            self.feed(b"")
            super().run()


class FluvioDoor:
    """What `fluvio_world.Client` needs of a broker, for an engine."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self.runtime, self.seeded = gateway.runtime, gateway.seeded

    def context(self, listener: str) -> Context:
        return Context(
            broker=self._gateway.broker,
            runtime=self.runtime,
            config=self._gateway.config,
            metrics=self._gateway.metrics,
            peer="test",
            listener=listener,
            advertised=lambda endpoint: SPU_ADDRESS,
        )

    def sc(self) -> GatewayClient:
        return GatewayClient(self, ScSession, 19)

    def spu(self, version: int = 24) -> GatewayClient:
        return GatewayClient(self, SpuSession, version)


class FluvioGateway(FluvioDoor):
    """Fluvio's ports on a gateway; what tests look at and change otherwise is the cluster's."""

    dates_commits = False
    """Kafka's coordinators do not tell when."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        directory.mkdir(exist_ok=True)
        settings.setdefault("flush_interval_ms", 50)
        self.world = ClusterWorld(directory, **settings)
        super().__init__(self.world)
        disk = self.world.disk
        self.broker, self.topics, self.groups = disk.broker, disk.topics, disk.groups
        self.smart_modules = self.world.broker.smart_modules
        council = self.world.engine.council
        council.open("one", {"fluvio-sc": ("one", 1), "fluvio-spu": ("one", 2)})
        for _ in range(100):
            if self.world.engine.state.owned:
                break
            self.runtime.advance(50)

    def second(self) -> FluvioDoor:
        return FluvioDoor(SecondGateway(self.world))

    def close(self) -> None:
        self.world.close()
