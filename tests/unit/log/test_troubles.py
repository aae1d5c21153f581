"""What fails every time is told once a minute, and how often it was not told."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
from tests.support.logs import LogBench
from tests.support.runtimes import SteppedRuntime

from pentalog.log.troubles import SILENCE_S, Troubles
from pentalog.model.errors import StorageFull
from pentalog.testing.disk import FillableFiles

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_trouble_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    runtime = SteppedRuntime()
    troubles = Troubles(runtime)
    for number in range(1000):
        troubles.tell(logging.ERROR, "write to", f"write to t-{number}", FULL)
    troubles.tell(logging.WARNING, "marks", "publish the marks", FULL)
    troubles.tell(logging.ERROR, "write to", "write to t-0", OSError(errno.EIO, "I/O error"))
    assert caplog.messages == [
        "cannot write to t-0: No space left on device",
        "cannot publish the marks: No space left on device",
        "cannot write to t-0: I/O error",
    ]
    caplog.clear()
    runtime.advance(SILENCE_S * 1000)
    troubles.tell(logging.ERROR, "write to", "write to t-7", FULL)
    assert caplog.messages == [
        "cannot write to t-7: No space left on device; 999 times more meanwhile"
    ]


def test_a_full_disk_fills_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FillableFiles()
    bench = LogBench(tmp_path, files=files)
    bench.partition()
    bench.append(b"before")
    files.full = True
    for _ in range(100):
        with pytest.raises(StorageFull):
            bench.append(b"meanwhile")
        bench.runtime.advance(500)
    assert len(caplog.messages) <= 5, "one line for each kind of thing that fails"
    files.full = False
    bench.append(b"after")
    assert sorted(bench.values()) == [0, 1]
