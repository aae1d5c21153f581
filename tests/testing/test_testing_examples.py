"""The examples in docs/testing.md, run as their readers would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pentalog

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.compile(r"```python\n# (test_\w+\.py)\n(.*?)```", re.DOTALL)


def test_the_documents_examples_pass(tmp_path: Path) -> None:
    examples = EXAMPLE.findall((ROOT / "docs" / "testing.md").read_text())
    assert [name for name, _ in examples] == [
        "test_orders_confluent.py", "test_orders_aiokafka.py", "test_orders_faststream.py",
    ]  # fmt: skip
    for name, text in examples:
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    if "pentalog" not in {one.name for one in entry_points(group="pytest11")}:
        command += ["-p", "pentalog.testing.plugin"]
    source = str(Path(pentalog.__file__).parents[1])
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
