"""What `pentalog start` prints, word for word, for people and for programs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Start = Callable[..., "subprocess.Popen[bytes]"]
SNAPSHOTS = Path(__file__).with_name("snapshots")
LISTEN = ("--listen", "kafka=127.0.0.1:0", "--listen", "http=127.0.0.1:0", "--console", "off")
TIMEOUT_S = 180.0


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["people", "programs"])
def test_a_life_reads_as_it_did(start: Start, tmp_path: Path, flags: tuple[str, ...]) -> None:
    process = start("start", "--data", str(tmp_path / "data"), *LISTEN, *flags)
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(line.decode())
        if "ready" in told[-1]:
            break
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=TIMEOUT_S)
    text = "".join(told) + rest.decode()
    text = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", text).replace(str(tmp_path), "HERE")
    kept = SNAPSHOTS / f"start{'-json' if flags else ''}.txt"
    if os.environ.get("PENTALOG_RENEW_SNAPSHOTS"):
        kept.write_text(text)
    assert text == kept.read_text()
    assert process.returncode == 0


def test_a_warning_is_an_event(start: Start, tmp_path: Path) -> None:
    """Here: that everybody is served."""
    listen = ("--listen", "kafka=0.0.0.0:0", "--allow-open-listeners", "true", "--json")
    process = start("start", "--data", str(tmp_path / "data"), *listen)
    assert process.stdout is not None
    first = process.stdout.readline()
    second = process.stdout.readline()
    assert b'"event": "warning"' in first + second
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)
