"""All nodes of the cluster, addressed by what is asked of them; and patience with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from pentalog.cluster.link import Link, Login
from pentalog.cluster.refusals import Lost, Trouble, told
from pentalog.cluster.steps import Steps
from pentalog.cluster.wire import Dialer
from pentalog.model.later import Later
from pentalog.runtime import Runtime

T = TypeVar("T")

WRITING: Final = "writing"
READING: Final = "reading"
ASKING: Final = "asking"
"""What a connection is for: a node answers one request of each connection after the other, and
nobody's write shall wait until somebody's records have come from a disk."""

PATIENCE_MS: Final = 30_000
"""How long anything is tried again before it is refused."""
REQUEST_TIMEOUT_MS: Final = 15_000
"""A node that is silent for this long is given up: by then the cluster has put others in its place,
and there is patience left to ask them."""
NODE_PATIENCE_MS: Final = 10_000
"""How long a node is told to wait for others before it answers."""
_PAUSE_FIRST_MS: Final = 20
_PAUSE_MS_MAX: Final = 1_000


class Fleet:
    def __init__(
        self,
        dialer: Dialer,
        runtime: Runtime,
        servers: Sequence[tuple[str, int]],
        login: Login | None = None,
    ) -> None:
        """`servers` are asked as long as nothing is known of the others."""
        self._dialer = dialer
        self._runtime = runtime
        self._login = login
        self._servers = [(host, port) for host, port in servers]
        self._addresses: dict[int, tuple[str, int]] = {}
        self._links: dict[tuple[str, int, str], Link] = {}
        self._turn = 0
        self._closed = False
        self.patience_ms = PATIENCE_MS
        self.controller = -1

    @property
    def names(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self._servers)

    def learn(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """Where the nodes are; the links to places that are no longer named are closed."""
        self._addresses = dict(addresses)
        named = {*self._addresses.values(), *self._servers}
        for key in [key for key in self._links if key[:2] not in named]:
            self._links.pop(key).close()

    def node(self, node_id: int, purpose: str, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Link | None:
        """The link to a node; None if nobody has said where it is."""
        address = self._addresses.get(node_id)
        return None if address is None else self._link(address, purpose, timeout_ms)

    def everyone(self, purpose: str) -> list[Link]:
        """The links to all nodes, or to somebody if none is known."""
        return [self._link(address, purpose) for address in self._addresses.values()] or [
            self.any()
        ]

    def any(self) -> Link:
        """A link to whoever answers: those that do so first, the others in turns."""
        places = [*self._addresses.values(), *self._servers]
        for address in places:
            link = self._links.get((*address, ASKING))
            if link is not None and link.prompt:
                return link
        self._turn += 1
        return self._link(places[self._turn % len(places)], ASKING)

    def ask_any(self, key: int, fields: Mapping[str, Any]) -> Later[Any]:
        return self.any().ask(key, fields)

    def ask_controller(self, key: int, fields: Mapping[str, Any]) -> Later[Any]:
        link = self.node(self.controller, ASKING)
        return (self.any() if link is None else link).ask(key, fields)

    def sleep(self, delay_ms: float) -> Later[None]:
        later: Later[None] = Later()
        self._runtime.after(delay_ms, lambda: later.fill(None))
        return later

    def monotonic(self) -> float:
        return self._runtime.monotonic()

    def soon(self, run: Callable[[], None]) -> None:
        """Call `run` when what is due in this turn is done."""
        self._runtime.soon(run)

    def persist(self, once: Callable[[], Steps[T]]) -> Steps[T]:
        """Repeat what fails for the moment, with growing pauses; anything else is final."""
        deadline_s = self._runtime.monotonic() + self.patience_ms / 1000
        pause_ms = _PAUSE_FIRST_MS
        while True:
            try:
                return (yield from once())
            except Trouble as trouble:
                left_s = deadline_s - self._runtime.monotonic()
                if not trouble.retriable or left_s < pause_ms / 1000:
                    raise told(trouble) from trouble
            yield self.sleep(pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)

    def required(self, link: Link | None, doing: str) -> Link:
        if link is None:
            raise Lost(f"{doing}: nobody says which node is to be asked")
        return link

    def close(self) -> None:
        self._closed = True
        for link in list(self._links.values()):
            link.close()
        self._links.clear()

    def _link(
        self, address: tuple[str, int], purpose: str, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> Link:
        key = (*address, purpose)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(
                self._dialer,
                self._runtime,
                *address,
                timeout_ms=timeout_ms,
                login=self._login,
            )
            if self._closed:
                link.close()
        return link


def by_topic(places: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Partitions as requests name them."""
    found: dict[str, list[int]] = {}
    for topic, index in places:
        found.setdefault(topic, []).append(index)
    return found
