"""Pages are counted before they are built; those that nobody looks at make room."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

pytest.importorskip("nicegui", reason="the console is not installed")

from pentalog.console import doorway
from pentalog.console.application import Console
from pentalog.console.doorway import Doorway
from pentalog.console.place import Place


class FakeClient:
    """In the place of NiceGUI's."""

    instances: ClassVar[dict[str, FakeClient]] = {}

    def __init__(self, name: str, created: float, *, connected: bool = False) -> None:
        self.id = name
        self.created = created
        self.has_socket_connection = connected
        self.instances[name] = self

    def delete(self) -> None:
        del self.instances[self.id]


class World:
    def __init__(self, place: Place) -> None:
        self.console = Console(place)
        self.built = 0
        self.doorway = Doorway(self._build, self.console, ("log.example",))

    async def _build(self, scope: Any, receive: Any, send: Any) -> None:
        self.built += 1
        name = f"built-{self.built}"
        FakeClient(name, created=100.0 + self.built)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def get(self, path: str = "/topics", **headers: str) -> int:
        given = {"host": "log.example", **headers}
        scope = {
            "type": "http", "method": "GET", "path": path, "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self.doorway(scope, receive, send))
        return int(sent[0]["status"])


@pytest.fixture(autouse=True)
def _few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorway, "Client", FakeClient)
    monkeypatch.setattr(doorway, "PAGES_MAX", 5)
    FakeClient.instances.clear()


def test_pages_without_a_browser_make_room() -> None:
    world = World(Place("127.0.0.1:1"))
    for number in range(50):
        assert world.get(f"/{number}") == 200
    assert len(FakeClient.instances) == 5
    assert "built-50" in FakeClient.instances


def test_pages_of_users_stay() -> None:
    world = World(Place("127.0.0.1:1", login=True))
    for number in range(5):
        FakeClient(f"page-{number}", created=number, connected=True)
        world.console.pages[f"page-{number}"] = session = world.console.session_of(str(number))
        session.user = "alice" if number < 4 else ""
        session._logged_in_s = session.used_s
    assert world.get() == 200
    assert "page-4" not in FakeClient.instances
    assert {f"page-{number}" for number in range(4)} <= set(FakeClient.instances)
    FakeClient.instances.pop("built-1")
    FakeClient("page-4", created=9, connected=True)
    world.console.pages["page-4"] = world.console.pages["page-0"]
    assert world.get() == 503
    assert world.get("/_nicegui/asset.js") == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://log.example"}, 200),
        ({"host": "127.0.0.1:9645", "origin": "https://log.example"}, 200),
        ({"host": "127.0.0.1:9645", "origin": "https://evil.example"}, 403),
        ({"host": "other.example"}, 403),
        ({"host": "[::1]:9645"}, 200),
        ({"origin": "https://[log.example"}, 403),
        ({"origin": "file://log.example"}, 403),
    ],
)
def test_names(headers: dict[str, str], status: int) -> None:
    assert World(Place("127.0.0.1:1")).get(**headers) == status


def test_browsers_of_closed_pages_are_let_in_for_a_moment_and_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NiceGUI tells them to load their page again; one that does not listen is hung up on."""
    monkeypatch.setattr(doorway, "_RELOAD_S", 0.05)
    let_in, refused = [], []

    async def keep(*_: Any) -> None:
        let_in.append(1)
        await asyncio.Event().wait()

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        refused.append(message)

    async def visit(count: int, page: str) -> None:
        scope = {
            "type": "websocket", "path": "/_nicegui_ws/socket.io/",
            "query_string": f"client_id={page}".encode(), "headers": [(b"host", b"log.example")],
        }  # fmt: skip
        await asyncio.gather(*(entrance(scope, receive, send) for _ in range(count)))

    entrance = Doorway(keep, Console(Place("127.0.0.1:1")), ("log.example",))
    asyncio.run(visit(25, "00000000-0000-4000-8000-000000000000"))
    assert (len(let_in), len(refused)) == (20, 5)
    asyncio.run(visit(1, "00000000-0000-4000-8000-000000000000"))
    assert (len(let_in), len(refused)) == (21, 5)
    asyncio.run(visit(1, "none"))
    assert (len(let_in), len(refused)) == (21, 6)
