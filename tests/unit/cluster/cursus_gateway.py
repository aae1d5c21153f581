"""Cursus' door on the cluster engine, in the place of a broker on a directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_world import ClusterWorld, SecondGateway
from tests.support.cursus_world import Client, Line

STEP_MS = 10
STEPS_MAX = 300


class GatewayLine(Line):
    """Also holds what must not be served yet."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self.resume: Callable[[], None] = lambda: None
        self.held = False

    def hold(self) -> Callable[[], None]:
        self.full = self.held = True

        def release() -> None:
            self.full = self.held = False
            self.resume()

        return release


class GatewayClient(Client):
    def __init__(self, broker: Any) -> None:
        line = GatewayLine(broker.runtime)
        line.resume = lambda: broker.runtime.soon(lambda: self.feed(b""))
        super().__init__(broker, line)
        self.line: GatewayLine = line

    def ask(self, body: bytes | str) -> list[bytes]:
        found = super().ask(body)
        for _ in range(STEPS_MAX):
            if found or not self.line.held:
                break
            self.broker.advance(STEP_MS)
            found = self.frames()
        return found


class CursusGateway(ClusterWorld):
    """Stands for a `CursusBroker` in tests of that door."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self.log = self.broker.log
        self.engine.council.open("one", {"cursus": ("one.example", 9000)})
        self.owns()
        self.topics = self.broker.topics
        self.beside = self.disk.broker

    def owns(self) -> None:
        """Wait until this gateway owns the state."""
        for _ in range(STEPS_MAX):
            self.advance(100)
            if self.engine.state.owned:
                return
        raise AssertionError("nobody owns the state")

    def connect(self) -> GatewayClient:
        return GatewayClient(self)

    def step(self) -> None:
        self.runtime.run()

    def advance(self, delay_ms: int) -> None:
        while delay_ms > 0:
            self.runtime.advance(min(STEP_MS, delay_ms))
            self.runtime.run()
            delay_ms -= STEP_MS


class OtherGateway(SecondGateway):
    """Another gateway in front of the same cluster."""

    def __init__(self, world: CursusGateway) -> None:
        super().__init__(world)
        self.world = world
        self.step, self.advance = world.step, world.advance

    def sit(self, gateway_id: str, address: tuple[str, int]) -> None:
        """Take a seat in the council, and wait until everybody knows."""
        self.engine.council.open(gateway_id, {"cursus": address})
        for _ in range(STEPS_MAX):
            self.advance(100)
            councils = (self.engine.council, self.world.engine.council)
            if all(len(council.fleet) == 2 and council.owner for council in councils):
                self.world.owns()
                return
        raise AssertionError("the gateways do not agree")

    def connect(self) -> GatewayClient:
        return GatewayClient(self)


@contextmanager
def opened_gateway(directory: Path) -> Iterator[CursusGateway]:
    """A gateway whose cluster has the topic `orders`."""
    gateway = CursusGateway(directory)
    gateway.connect().text("CREATE topic=orders partitions=4")
    try:
        yield gateway
    finally:
        gateway.close()
