"""A broker with nothing but TLS and logins: its console comes by HTTPS and trusts it by itself."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate
from tests.console import chromium
from tests.console.world import Browser
from tests.server.broker_process import pentalog

from pentalog.clients.kafka import ClientOptions, Cluster
from pentalog.console.place import Place
from pentalog.console.serving import Certificate, ListenRefused

pytest.importorskip("nicegui", reason="the console is not installed")
pytestmark = pytest.mark.clients


class Started:
    """`pentalog start --json`, and what it has told so far."""

    def __init__(self, data: Path, identity: Path) -> None:
        listen = ("kafka+sasl+tls=127.0.0.1:0", "http+tls=127.0.0.1:0")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pentalog", "start", "--json", "--data", str(data)),
                *(word for one in listen for word in ("--listen", one)),
                *("--tls-certificate", str(identity), "--console", "127.0.0.1:0"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if "PENTALOG" not in name},
        )
        self.events: list[dict[str, Any]] = []

    def until(self, event: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event:
                return self.events[-1]
        raise AssertionError(f"no {event}: {self.events}")


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def identity(authority: trustme.CA, tmp_path: Path) -> Path:
    """Key and certificates in one file; good for a name that nothing here is called by."""
    made = authority.issue_cert("localhost", "broker.example")
    file = tmp_path / "broker.pem"
    made.private_key_and_cert_chain_pem.write_to_path(file)
    return file


@pytest.fixture
def started(identity: Path, tmp_path: Path) -> Iterator[Started]:
    data = tmp_path / "data"
    made = pentalog("user", "add", "alice", "--password", "secret", "--data", str(data))
    assert made.returncode == 0, made.stderr
    one = Started(data, identity)
    try:
        one.until("console")
        yield one
    finally:
        one.process.kill()
        one.process.communicate()


def spki(file: Path) -> str:
    """What Chromium calls a key."""
    text = file.read_bytes()
    first = load_pem_x509_certificate(text[text.index(b"-----BEGIN CERTIFICATE") :])
    raw = first.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(raw).digest()).decode()


def test_the_console_comes_by_https_and_goes_with_the_broker(
    started: Started, identity: Path, authority: trustme.CA, pictures: Path, tmp_path: Path
) -> None:
    addresses = next(one for one in started.events if one["event"] == "ready")["listeners"]
    url = next(one for one in started.events if one["event"] == "console")["url"]
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    port = int(addresses["http+tls"].rpartition(":")[2])
    asking = HTTPSConnection("localhost", port, context=trusting, timeout=30)
    asking.request("GET", "/topics")
    answer = asking.getresponse()
    # The certificate is good for the name the browser came by, not for an address.
    assert answer.headers["location"] == f"{url.replace('127.0.0.1', 'localhost')}/topics"
    asking.close()

    certificate = Place("", tls_certificate=str(identity)).certificate()
    options = ClientOptions(
        tls=True, tls_certificate=certificate, sasl_mechanism="SCRAM-SHA-256",
        username="alice", password="secret",
    )  # fmt: skip
    with Cluster(addresses["kafka+sasl+tls"], options) as cluster:
        cluster.create_topic("sealed", 1)
    try:
        found = chromium.find()
    except chromium.NoChromium as why:
        pytest.skip(str(why))
    trusted = f"--ignore-certificate-errors-spki-list={spki(identity)}"
    browser = Browser(found, url, pictures, trusted, f"--user-data-dir={tmp_path / 'browser'}")
    try:
        browser.open("/topics")
        assert browser.driver.current_url == f"{url}/login"
        browser.type("user", "alice")
        browser.type("password", "secret")
        browser.click("log-in")
        browser.until(lambda: not browser.driver.current_url.endswith("/login"), "the pages")
        browser.open("/topics")
        browser.until(lambda: "sealed" in browser.run("return document.body.innerText"), "a topic")
        browser.open("/connections")
        browser.until(
            lambda: "pentalog-console" in browser.run("return document.body.innerText"),
            "what the http listener tells",
        )
        assert all(cookie["secure"] for cookie in browser.driver.get_cookies())
        browser.picture("tls")
        browser.look_at_logs()
        assert browser.complaints == []
        assert browser.foreign == set()
    finally:
        browser.close()

    started.process.send_signal(signal.SIGTERM)
    assert started.until("stopped") == {"event": "stopped", "clean": True}
    assert "stopping" in [one["event"] for one in started.events]
    assert started.process.wait(60) == 0


def test_a_certificate_that_was_replaced_is_shown(
    identity: Path,
    authority: trustme.CA,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("pentalog.console.serving._LOOK_INTERVAL_S", 0.01)

    async def shown(port: int) -> str:
        return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))

    async def look() -> None:
        certificate = Certificate(str(identity), None)
        keeping = asyncio.create_task(certificate.keep())
        server = await asyncio.start_server(
            lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context
        )
        port = server.sockets[0].getsockname()[1]
        before = await shown(port)
        assert before == Place("", tls_certificate=str(identity)).certificate() + "\n"
        await asyncio.to_thread(identity.write_text, "in the middle of being replaced")
        for _ in range(3000):
            if "goes on with the certificate it had" in caplog.text:
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("it did not look at the file")
        assert await shown(port) == before
        made = authority.issue_cert("localhost")
        made.private_key_and_cert_chain_pem.write_to_path(str(identity))
        for _ in range(1000):
            if await shown(port) != before:
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("the old one is shown still")
        keeping.cancel()
        server.close()

    asyncio.run(look())


def test_a_certificate_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("nothing of the kind")
    with pytest.raises(ListenRefused, match=r"no\.pem cannot be used: .*; name PEM files"):
        Certificate(str(tmp_path / "no.pem"), None)
