"""Fluvio's two ports on the cluster engine, as `fluvio_world` has them on a disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "protocols" / "fluvio"))

import fluvio_world
from cluster_world import ClusterWorld
from council_world import Gateway, pass_time
from fluvio_world import SPU_ADDRESS, Client

from pentalog.broker.upstream import Downstream
from pentalog.protocols.fluvio.codec import Reader
from pentalog.protocols.fluvio.sc import ScSession
from pentalog.protocols.fluvio.spu import SpuSession
from pentalog.session import Context

_LISTENERS = {"ScSession": "fluvio-sc", "SpuSession": "fluvio-spu"}


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
        while self.go_on():
            super().run()

    def go_on(self) -> bool:
        """Serve what waited while the line was held."""
        if not self.line.released:
            return False
        self.line.released = False
        self.line.make_room()
        self.feed(b"")
        return True


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
            listener=_LISTENERS[listener],
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

    def __init__(self, directory: Path, *, owner: bool = True, **settings: Any) -> None:
        """Not an `owner`: it takes no part in the gateways' council."""
        directory.mkdir(exist_ok=True)
        settings.setdefault("flush_interval_ms", 50)
        self.world = ClusterWorld(directory, **settings)
        super().__init__(self.world)
        disk = self.world.disk
        self.broker, self.topics, self.groups = disk.broker, disk.topics, disk.groups
        self.smart_modules = self.world.broker.smart_modules
        if owner:
            self._own()

    def _own(self) -> None:
        council = self.world.engine.council
        council.open("one", {"fluvio-sc": ("one", 1), "fluvio-spu": ("one", 2)})
        for _ in range(100):
            if self.world.engine.state.owned:
                break
            self.runtime.advance(50)

    def close(self) -> None:
        self.world.close()


class MemoryUpstream:
    """A connection of one gateway to the controller's port of another."""

    def __init__(self, gateway: FluvioPeer, caller: Downstream) -> None:
        self.gateway = gateway
        self._caller: Downstream | None = caller
        self._coming = b""
        self._carried = 0
        self._server = gateway.sc()
        gateway.world.runtime.soon(self._open)

    def _open(self) -> None:
        if self.gateway.dead:
            self.lose()
        elif self._caller is not None:
            self._caller.opened()

    def send(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        self._coming += b"".join(pieces)

    def pause(self) -> None:
        raise AssertionError("answers are small")

    def resume(self) -> None:
        raise AssertionError("answers are small")

    def close(self) -> None:
        self._caller = None

    def lose(self) -> None:
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.lost("the wire was cut")

    def pump(self) -> bool:
        if self._caller is None:
            return False
        coming, self._coming = self._coming, b""
        moved = self._server.go_on() or bool(coming)
        if coming:
            self._server.feed(coming)
        sent = self._server.line.sent
        if sent and self.gateway.lost_answers:
            self.gateway.lost_answers -= 1
            self.lose()
        while self._carried < len(sent) and self._caller is not None:
            moved = True
            buffer = self._caller.buffer()
            size = min(len(buffer), len(sent) - self._carried)
            buffer[:size] = sent[self._carried : self._carried + size]
            self._carried += size
            self._caller.received(size)
        return moved


class FluvioPeer(Gateway):
    """One of several gateways, with Fluvio's ports."""

    def __init__(self, world: ClusterWorld, name: str, fleet: dict[str, FluvioPeer]) -> None:
        host = f"{name}.example"
        super().__init__(world, name, **{"fluvio-sc": (host, 9003), "fluvio-spu": (host, 9010)})
        self._fleet = fleet
        fleet[host] = self
        self.council.caller = self
        self.door = FluvioDoor(self)
        self.sc, self.spu = self.door.sc, self.door.spu
        self.upstreams: list[MemoryUpstream] = []
        self.dead = False
        """Nobody reaches it any more."""
        self.lost_answers = 0
        """So many are lost on their way, each with its connection."""
        self.taken_for: Callable[[FluvioPeer], FluvioPeer] = lambda peer: peer
        """Whom this one reaches when it calls somebody."""

    def die(self) -> None:
        self.dead = True
        self.dialer.cut()
        for made in [made for peer in self._fleet.values() for made in peer.upstreams]:
            if made.gateway is self:
                made.lose()

    def call(self, listener: str, host: str, port: int, caller: Downstream) -> MemoryUpstream:
        assert (listener, port) == ("fluvio-sc", 9003)
        made = MemoryUpstream(self.taken_for(self._fleet[host]), caller)
        self.upstreams.append(made)
        self.world.wires.append(made)  # type: ignore[arg-type]
        return made


def agreed(world: ClusterWorld, gateways: list[FluvioPeer]) -> None:
    def settled() -> bool:
        sizes = {len(each.council.fleet) for each in gateways}
        return sizes == {len(gateways)} and any(each.engine.state.owned for each in gateways)

    pass_time(world, list(gateways), settled)


def until(world: ClusterWorld, gateways: list[FluvioPeer], met: Callable[[], bool]) -> None:
    pass_time(world, list(gateways), met)


def asked(world: ClusterWorld, client: GatewayClient, key: int, body: bytes) -> Reader:
    """The answer, however long it takes."""
    number = client.request(key, body)
    for _ in range(400):
        client.run()
        for found, answer in client.frames():
            if found == number:
                return Reader(memoryview(answer), 0, len(answer), client.version)
    raise AssertionError("no answer")
