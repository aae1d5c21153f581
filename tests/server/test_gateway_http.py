"""What a gateway tells those who look at it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pentalog
from pentalog.config import Config, parse_listen
from pentalog.gateway import Gateway
from pentalog.server import lifecycle


async def get(gateway: Gateway, path: str) -> tuple[int, str]:
    at = gateway.addresses["http"]
    reader, writer = await asyncio.open_connection(at.host, at.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


def test_health_is_the_clusters(tmp_path: Path) -> None:
    broker = pentalog.Broker(tmp_path, listen=("kafka=127.0.0.1:0",))
    broker.start()
    listen = tuple(parse_listen(f"{name}=127.0.0.1:0") for name in ("http", "rustlog"))

    async def look(loop: lifecycle.Loop) -> None:
        config = Config(engine=f"kafka://{broker.address()}", listen=listen)
        gateway = Gateway(config, loop)
        await gateway.start()
        try:
            await talk(gateway, loop)
        finally:
            assert await gateway.stop()

    async def talk(gateway: Gateway, loop: lifecycle.Loop) -> None:
        assert await get(gateway, "/health") == (200, "healthy\n")
        assert (await get(gateway, "/ready"))[0] == 200
        code, metrics = await get(gateway, "/metrics")
        assert code == 200
        assert 'pentalog_connections{door="rustlog"} 0' in metrics
        assert "pentalog_disk" not in metrics
        assert "pentalog_topics 0" in metrics
        assert (await get(gateway, "/api/v1/connections"))[0] == 200
        assert (await get(gateway, "/api/v1/subscriptions"))[0] == 200
        await loop.run_in_executor(None, broker.stop)
        code, text = await get(gateway, "/health")
        assert code == 503
        assert "the cluster does not answer" in text
        code, metrics = await get(gateway, "/metrics")
        assert code == 200
        assert 'pentalog_connections{door="rustlog"} 0' in metrics
        assert "pentalog_topics" not in metrics

    try:
        lifecycle.run(look)
    finally:
        broker.stop()
