"""Verbs that ask an http listener behind TLS."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import pentalog
from pentalog.config import Listen

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def secured(
    authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pentalog.Broker]:
    file = tmp_path_factory.mktemp("identity") / "broker.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(file)
    listen = (Listen("http+tls", "127.0.0.1", 0),)
    with pentalog.Broker(listen=listen, tls_certificate=str(file)) as broker:
        yield broker


def test_connections_are_listed(
    run: Run,
    secured: pentalog.Broker,
    authority: trustme.CA,
    settings: dict[str, str],
    tmp_path: Path,
) -> None:
    where = f"https://{secured.address('http+tls')}"
    refused = run("inspect", "--http", where, code=1).said
    assert "certificate" in refused
    assert refused.count("\n") == 1
    settings["PENTALOG_LOGIN_CA"] = str(tmp_path / "ca.pem")
    assert "ca.pem" in run("inspect", "--http", where, code=1).said
    authority.cert_pem.write_to_path(settings["PENTALOG_LOGIN_CA"])
    (found,) = json.loads(run("inspect", "--http", where, "--json").stdout)
    assert found["listener"] == "http+tls"


def test_without_tls_the_next_step_is_said(run: Run, secured: pentalog.Broker) -> None:
    said = run("inspect", "--http", secured.address("http+tls"), code=1).said
    assert "https://HOST:PORT if it is http+tls" in said
