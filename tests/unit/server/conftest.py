"""A real server for the small protocol of `echo_bench`, on both event loops."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trustme
from echo_bench import Bench, Run

from pentalog.broker.operation import UNLIMITED, Quotas
from pentalog.broker.port import Broker
from pentalog.broker.security import UNGUARDED
from pentalog.config import Config, Listen
from pentalog.log.files import RealFiles
from pentalog.server import lifecycle
from pentalog.server.asyncio_runtime import AsyncioRuntime
from pentalog.server.certificates import Certificates
from pentalog.server.listener import Listeners
from pentalog.session import Endpoint


@pytest.fixture(params=["uvloop", "asyncio"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """Run a coroutine function against a server; config and endpoint settings by keyword."""
    yield from _serving(request.param, tmp_path, trust=None)


@pytest.fixture
def serve_tls(tmp_path: Path) -> Iterator[Run]:
    """The same, with TLS on the way."""
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "server.pem")
    )
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    yield from _serving("uvloop", tmp_path, trust=trust)


def _serving(kind: str, tmp_path: Path, trust: ssl.SSLContext | None) -> Iterator[Run]:
    loop = lifecycle.new_loop() if kind == "uvloop" else asyncio.new_event_loop()

    def run(
        test: Callable[[Bench], Coroutine[Any, Any, None]],
        *,
        file_content: bytes = b"",
        endpoint: dict[str, Any] | None = None,
        quotas: Quotas = UNLIMITED,
        **settings: Any,
    ) -> None:
        name = "echo" if trust is None else "echo+tls"
        certificate = "" if trust is None else str(tmp_path / "server.pem")
        settings = {"tls_certificate": certificate, **settings}
        config = Config(listen=(Listen(name, "127.0.0.1", 0),), **settings)
        bench = Bench(loop, config, endpoint or {}, trust=trust)
        if file_content:
            path = tmp_path / "file"
            path.write_bytes(file_content)
            bench.file = RealFiles().open(path, writable=False)
        runtime = AsyncioRuntime(loop)
        # The echo protocol asks nothing of a broker; the server asks who has a quota.
        broker = cast("Broker", SimpleNamespace(quotas=quotas, rules=UNGUARDED))
        certificates = None if trust is None else Certificates(config, runtime.monotonic)
        bench.listeners = Listeners(loop, broker, runtime, config, bench.metrics, certificates)
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
