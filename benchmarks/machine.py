"""The machine a benchmark runs on: what it is, and how it is made ready."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from brokers import ROOT

CACHE = ROOT / ".cache" / "benchmarks"


def compiled(source: str) -> Path:
    """The program made from a C file in this directory, compiled when the source is newer."""
    text = Path(__file__).resolve().parent / source
    program = CACHE / text.stem
    CACHE.mkdir(parents=True, exist_ok=True)
    if not program.exists() or program.stat().st_mtime < text.stat().st_mtime:
        subprocess.run(
            ["gcc", "-O2", "-o", str(program), str(text), "-ldl"], check=True, env=os.environ
        )
    return program


def librdkafka() -> Path:
    """The C client inside the confluent-kafka wheel."""
    found = find_spec("confluent_kafka")
    if found is None or found.origin is None:
        raise SystemExit("confluent-kafka is not installed: pip install 'pentalog[bench]'")
    directory = Path(found.origin).resolve().parent.parent / "confluent_kafka.libs"
    libraries = sorted(directory.glob("librdkafka*.so*"))
    if not libraries:
        raise SystemExit(f"no librdkafka in {directory}; install confluent-kafka as a wheel")
    return libraries[0]


def warm_page_memory(directory: Path, *, size_bytes: int) -> None:
    """Write and delete a file, so that neither broker is the first to touch the memory.

    Memory a virtual machine has not used before costs several times as much as recycled
    memory: more than any difference between brokers.
    """
    path = directory / "warm"
    block = os.urandom(1 << 20)
    with path.open("wb") as file:
        for _ in range(size_bytes >> 20):
            file.write(block)
    path.unlink()


def settle() -> None:
    """Let earlier writes reach the disk now instead of during the next run."""
    os.sync()


def described() -> dict[str, Any]:
    """What a figure needs beside it to mean something."""
    processor = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return {
        "processor": processor[1].strip() if processor else platform.machine(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(int(memory[1]) / 2**20) if memory else 0,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": _java_version(),
        "commit": _commit(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _java_version() -> str:
    answer = subprocess.run(
        ["java", "-version"], capture_output=True, text=True, check=False, env=os.environ
    )
    found = re.search(r'version "([^"]+)"', answer.stderr)
    return found[1] if found else "unknown"


def _commit() -> str:
    answer = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    return answer.stdout.strip() or "unknown"
