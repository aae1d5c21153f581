"""The demonstration, run as `make demo` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]


def test_the_story_ends_well() -> None:
    if not Path(sys.executable).with_name("pentalog").exists():
        pytest.skip("the package is not installed: `make install` does it")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every acknowledged record is there" in done.stdout
    assert "Stopped cleanly" in done.stdout
