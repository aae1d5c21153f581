"""What a gateway refuses before it touches anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pentalog.app import App, StartFailed
from pentalog.cli.broker import new_app
from pentalog.cluster import engine
from pentalog.config import Config, ConfigError, load, parse_listen
from pentalog.gateway import Gateway
from pentalog.server import lifecycle

CLUSTER = "kafka://127.0.0.1:9"


def made(**settings: Any) -> App | Gateway:
    async def make(loop: lifecycle.Loop) -> App | Gateway:
        return new_app(Config(**settings), loop)

    return lifecycle.run(make)


def test_the_engine_is_chosen_by_a_setting(tmp_path: Path) -> None:
    assert isinstance(made(data=tmp_path), App)
    assert isinstance(made(engine=CLUSTER), Gateway)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["", "kafka://", "kafka://host", "redis://host:1", "remote"])
def test_engines_there_are_not(given: str) -> None:
    with pytest.raises(ConfigError, match=r"setting engine is .*accepted is local, or kafka://"):
        load(flags={"engine": given})


def test_engines_from_every_source() -> None:
    several = "kafka://one:9092,[::1]:9093"
    assert load(toml=f'engine = "{several}"').config.engine == several
    assert load(flags={"engine": "kafka+sasl+tls://one:1"}).config.engine.startswith("kafka+sasl")
    assert load(environment={"PENTALOG_ENGINE": CLUSTER}).config.engine == CLUSTER


def test_kafkas_port_is_opened_for_those_who_ask() -> None:
    def opened(*listen: str) -> set[str]:
        gateway = made(engine=CLUSTER, listen=tuple(map(parse_listen, listen)))
        assert isinstance(gateway, Gateway)
        return {endpoint.name for _, endpoint in gateway._listen}

    assert opened() == {"rustlog", "blipmq", "cursus", "fluvio-sc", "fluvio-spu", "http"}
    assert opened("kafka=127.0.0.1:0") == {"kafka"}
    assert opened("kafka+sasl=127.0.0.1:0", "rustlog=127.0.0.1:0") == {"kafka", "rustlog"}
    with pytest.raises(ConfigError, match="nothing"):
        opened("nothing=127.0.0.1:0")


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "START_PATIENCE_MS", 100)

    async def start(loop: lifecycle.Loop) -> None:
        listen = (parse_listen("rustlog=127.0.0.1:0"),)
        gateway = Gateway(Config(engine=CLUSTER, listen=listen), loop)
        with pytest.raises(StartFailed, match=r"127.0.0.1:9: cannot be reached"):
            await gateway.start()
        assert len(asyncio.all_tasks()) == 1

    lifecycle.run(start)
