"""A real server for the small protocol of `echo_bench`, on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from echo_bench import Bench, Run

from pentalog.broker.operation import UNLIMITED, Quotas
from pentalog.broker.port import Broker
from pentalog.broker.security import UNGUARDED
from pentalog.config import Config, Listen
from pentalog.log.files import RealFiles
from pentalog.server import lifecycle
from pentalog.server.asyncio_runtime import AsyncioRuntime
from pentalog.server.listener import Listeners
from pentalog.session import Endpoint


@pytest.fixture(params=["uvloop", "asyncio"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """Run a coroutine function against a server; config and endpoint settings by keyword."""
    loop = lifecycle.new_loop() if request.param == "uvloop" else asyncio.new_event_loop()

    def run(
        test: Callable[[Bench], Coroutine[Any, Any, None]],
        *,
        file_content: bytes = b"",
        endpoint: dict[str, Any] | None = None,
        quotas: Quotas = UNLIMITED,
        **settings: Any,
    ) -> None:
        config = Config(listen=(Listen("echo", "127.0.0.1", 0),), **settings)
        bench = Bench(loop, config, endpoint or {})
        if file_content:
            path = tmp_path / "file"
            path.write_bytes(file_content)
            bench.file = RealFiles().open(path, writable=False)
        runtime = AsyncioRuntime(loop)
        # The echo protocol asks nothing of a broker; the server asks who has a quota.
        broker = cast("Broker", SimpleNamespace(quotas=quotas, rules=UNGUARDED))
        bench.listeners = Listeners(loop, broker, runtime, config, bench.metrics)
        door = Endpoint("echo", 0, bench.open_session, **bench.endpoint_settings)

        async def whole() -> None:
            await bench.listeners.open([(config.listen[0], door)])
            try:
                await asyncio.wait_for(test(bench), 60)
            finally:
                await bench.listeners.close(timeout_ms=500)

        loop.run_until_complete(whole())
        assert bench.metrics.connections_opened == bench.metrics.connections_closed

    yield run
    loop.close()
