"""Build the kernels with the address sanitizer in a folder of their own and fuzz them there.

    python -m tests.fuzz.kernels.sanitizer --count 20000

Needs gcc and its libasan; reads or writes outside a buffer then end the process with a report.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
CYTHON = "build/cython"
LEVEL = '"-O3"'
FLAGS = "-fsanitize=address -fno-omit-frame-pointer -g1"


def library() -> str | None:
    """Where gcc keeps libasan, None if it has none."""
    if shutil.which("gcc") is None:
        return None
    path = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    ).stdout.strip()
    return path if Path(path).is_absolute() else None


def build(folder: Path, *, level: str = "-O0") -> Path:
    """A copy of the sources with instrumented kernels; returns what to put on the path.

    The lower `level`, for short runs, is compiled in a fraction of the time of the kernels' own.
    """
    setup = (ROOT / "setup.py").read_text()
    assert setup.count(LEVEL) == 1
    (folder / "setup.py").write_text(setup.replace(LEVEL, f'"{level}"'))
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignore)
    if (ROOT / CYTHON).exists():
        # With the times of the files: what is as new as its source is not translated again.
        shutil.copytree(ROOT / CYTHON, folder / CYTHON)
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", "src"],
        cwd=folder,
        env={**os.environ, "CC": "gcc", "CFLAGS": FLAGS, "LDFLAGS": "-fsanitize=address"},
        check=True,
        capture_output=True,
    )
    missing = [
        path.stem
        for path in (folder / "src/pentalog/kernels/compiled").glob("*.pyx")
        if not list(path.parent.glob(f"{path.stem}.*.so"))
    ]
    if missing:
        raise RuntimeError(f"the kernels {missing} could not be compiled with {FLAGS}")
    return folder / "src"


def fuzz(source: Path, preload: str, *, count: int, seed: int) -> subprocess.CompletedProcess[str]:
    # Python's own allocator would hide small buffers inside large ones.
    environment = {
        **os.environ,
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(source),
    }
    command = [sys.executable, "-m", "tests.fuzz.kernels.mutations"]
    return subprocess.run(
        [*command, "--count", str(count), "--seed", str(seed)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    preload = library()
    if preload is None:
        sys.exit("gcc with libasan was not found; install gcc to run this")
    with tempfile.TemporaryDirectory() as folder:
        source = build(Path(folder), level="-O3")
        result = fuzz(source, preload, count=options.count, seed=options.seed)
    print(result.stdout, result.stderr, sep="", end="")
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
