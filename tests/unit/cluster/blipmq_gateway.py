"""BlipMQ connections to gateways, and those between gateways, driven by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster_world import ClusterWorld
from council_world import Gateway, pass_time
from tests.support.blipmq_world import AUTH, HELLO, Connection

from pentalog.broker.port import TopicSpec
from pentalog.broker.security import UNTIRING
from pentalog.broker.upstream import Downstream

ROUNDS_MAX = 20_000


class BlipConnection(Connection):
    """Given what it left behind again, when there is room; time passes while it waits."""

    def __init__(self, gateway: BlipGateway, *, full_bytes: int = 1 << 30) -> None:
        self._again = False
        super().__init__(gateway, "127.0.0.1:50000", full_bytes)  # type: ignore[arg-type]

    def _let_go(self) -> None:
        super()._let_go()
        self._again = True

    def pump(self) -> bool:
        if not self._again or self.full or self.ended:
            return False
        self._again = False
        self.feed(b"")
        return True

    def ask_in_part(self, data: bytes) -> bytes:
        """What is answered, though the last frame may not be whole."""
        return self.ask(data, whole=False)

    def ask(self, data: bytes, *, whole: bool = True) -> bytes:
        runtime = self.broker.runtime
        self.feed(data)
        out = bytearray(self.take())
        for _ in range(ROUNDS_MAX):
            runtime.run()  # type: ignore[attr-defined]
            taken = self.take()
            out += taken
            self._again = self._again or bool(taken)
            if self.pump():
                continue
            left = self._left if whole or self.full else b""
            if not (left or self._line) or self.ended:
                return bytes(out)
            runtime.advance(10)  # type: ignore[call-arg]
        raise AssertionError(f"no answer; {len(self._left)} bytes and {self._line} are left")


class MemoryUpstream:
    """A connection of one gateway to another."""

    def __init__(self, world: ClusterWorld, gateway: BlipGateway, caller: Downstream) -> None:
        self.gateway = gateway
        self.paused = False
        self.stuck = False
        """Nothing comes or goes, and nobody is told."""
        self._caller: Downstream | None = caller
        self._coming = b""
        self._server = BlipConnection(gateway, full_bytes=100_000)
        world.runtime.soon(self._open)

    def _open(self) -> None:
        if self._caller is None:
            return
        if self.gateway.dead:
            self.lose()
        else:
            self._caller.opened()

    def send(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        self._coming += b"".join(pieces)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self) -> None:
        if self._caller is not None:
            self._caller = None
            self._server.session.close()

    def lose(self) -> None:
        caller, self._caller = self._caller, None
        if caller is not None:
            self._server.session.close()
            caller.lost("the wire was cut")

    def pump(self) -> bool:
        if self._caller is None or self.stuck:
            return False
        moved = bool(self._coming)
        if moved:
            coming, self._coming = self._coming, b""
            self._server.feed(coming)
        answer = b"" if self.paused else self._server.take()
        self._server._again = self._server._again or bool(answer)
        while answer and self._caller is not None:
            moved = True
            buffer = self._caller.buffer()
            size = min(len(buffer), len(answer))
            buffer[:size] = answer[:size]
            answer = answer[size:]
            self._caller.received(size)
            del buffer  # held until now, as a loop does
            if self.paused:
                self._server._line.insert(0, answer)
                break
        return self._server.pump() or moved


class BlipGateway(Gateway):
    def __init__(self, world: ClusterWorld, name: str, fleet: dict[str, BlipGateway]) -> None:
        super().__init__(world, name)
        self.attempts = UNTIRING
        self.dead = False
        self.upstreams: list[MemoryUpstream] = []
        self._fleet = fleet
        fleet[f"{name}.example"] = self
        self.council.caller = self

    def call(self, listener: str, host: str, port: int, caller: Downstream) -> MemoryUpstream:
        assert (listener, port) == ("blipmq", 5555)
        made = MemoryUpstream(self.world, self._fleet[host], caller)
        self.upstreams.append(made)
        self.world.wires.append(made)  # type: ignore[arg-type]
        return made

    @property
    def keeps(self) -> bool:
        """It has the subscriptions."""
        return self.broker.subscriptions.here

    def kill(self) -> None:
        """Never to be heard of again."""
        self.dead = True
        self.dialer.cut()
        for gateway in self._fleet.values():
            for upstream in gateway.upstreams:
                if upstream.gateway is self:
                    upstream.lose()

    def client(self, **options: Any) -> BlipConnection:
        """A connection that has shaken hands."""
        connection = BlipConnection(self, **options)
        connection.ask(HELLO + AUTH)
        return connection


class BlipFleet:
    """Gateways in front of a cluster; stands for a `BlipBroker` in tests of that door."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.world = ClusterWorld(directory)
        known: dict[str, BlipGateway] = {}
        gateways = [BlipGateway(self.world, name, known) for name in names]
        pass_time(self.world, gateways, lambda: all(each.council.owner for each in gateways))
        pass_time(self.world, gateways, lambda: any(each.keeps for each in gateways))
        self.gateway = min(gateways, key=lambda each: each.keeps)
        """Clients come here: to one that does not keep the subscriptions, if there is one."""
        self.runtime = self.world.runtime
        self.log = self.world.disk.broker.log
        self.topics = self.world.disk.topics
        """As the cluster has them."""

    def connect(self) -> BlipConnection:
        return BlipConnection(self.gateway)

    def client(self) -> BlipConnection:
        return self.gateway.client()

    def topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.topics.create(TopicSpec(name=name, partitions=partitions, settings=named))
        self.runtime.run()

    def stop(self) -> None:
        self.world.close()
