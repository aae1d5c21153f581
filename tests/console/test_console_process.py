"""The console beside `pentalog start`: comes by itself, comes again, goes with the broker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from tests.server.broker_process import BrokerProcess

pytest.importorskip("nicegui", reason="the console is not installed")

PATIENCE_S = 60.0


def until(ask: Callable[[], str | None], what: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = ask()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come")


def sent_to(http: str) -> str | None:
    """Where the http listener sends a browser."""
    try:
        with urlopen(f"http://{http}/topics", timeout=60) as answer:
            found = str(answer.url)
    except (URLError, OSError):
        return None
    return None if http in found else found


def children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == parent:
            found.append(int(status.parent.name))
    return found


def gone(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def test_it_comes_again_and_goes_with_the_broker(tmp_path: Path) -> None:
    arguments = ("--listen", "http=127.0.0.1:0", "--console", "127.0.0.1:0")
    with BrokerProcess(tmp_path / "data", *arguments) as broker:
        http = next(line for line in broker.lines if line.startswith("http")).rpartition(" ")[2]
        first = until(lambda: sent_to(http), "a console")
        assert first.endswith("/topics")
        (console,) = children(broker.pid)
        os.kill(console, signal.SIGKILL)
        until(lambda: "gone" if gone(console) else None, "its end")
        until(lambda: sent_to(http), "another console")
        (again,) = children(broker.pid)
        assert again != console
        broker.signal(signal.SIGKILL)
        until(lambda: "gone" if gone(again) else None, "its end with the broker")


def test_it_can_be_left_out(tmp_path: Path) -> None:
    arguments = ("--listen", "http=127.0.0.1:0", "--console", "off")
    with BrokerProcess(tmp_path / "data", *arguments) as broker:
        http = next(line for line in broker.lines if line.startswith("http")).rpartition(" ")[2]
        with urlopen(f"http://{http}/", timeout=60) as answer:
            assert b"no web console" in answer.read()
        assert children(broker.pid) == []
        assert broker.stop() == 0
