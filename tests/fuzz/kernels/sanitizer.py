"""Build the kernels with sanitizers in a folder of their own and fuzz them there.

    python -m tests.fuzz.kernels.sanitizer --count 20000

Needs gcc with libasan and libubsan; reads or writes outside a buffer, and arithmetic that C does
not define, then end the process with a report.
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
BOUNDS = '"boundscheck": False'
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
FLAGS = f"{SANITIZERS} -fno-omit-frame-pointer -g1"
LIBRARIES = ("libasan.so", "libubsan.so")
MISSING = "gcc with libasan and libubsan was not found; install gcc to run this"


def libraries() -> str | None:
    """What to preload, with colons; None if gcc has not all of it."""
    if shutil.which("gcc") is None:
        return None
    found = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ,
        ).stdout.strip()
        for name in LIBRARIES
    ]
    return ":".join(found) if all(Path(path).is_absolute() for path in found) else None


def build(folder: Path, *, level: str = "-O0", bounds: bool = False) -> Path:
    """A copy of the sources with instrumented kernels; returns what to put on the path.

    The lower `level`, for short runs, is compiled in a fraction of the time of the kernels' own.
    With `bounds`, Cython checks the indexes of lists, tuples and bytes; all of it is translated
    again for that.
    """
    setup = (ROOT / "setup.py").read_text()
    assert setup.count(LEVEL) == setup.count(BOUNDS) == 1
    setup = setup.replace(LEVEL, f'"{level}"')
    if bounds:
        setup = setup.replace(BOUNDS, '"boundscheck": True')
    (folder / "setup.py").write_text(setup)
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    # With the times of the files: what is as new as its source is not made again.
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignore, dirs_exist_ok=True)
    if (ROOT / CYTHON).exists() and not bounds:
        shutil.copytree(ROOT / CYTHON, folder / CYTHON, dirs_exist_ok=True)
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", "src"],
        cwd=folder,
        env={**os.environ, "CC": "gcc", "CFLAGS": FLAGS, "LDFLAGS": SANITIZERS},
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


def environment(source: Path, preload: str) -> dict[str, str]:
    """What a Python needs to run the kernels of an instrumented build."""
    return {
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # Python's own allocator would hide small buffers inside large ones.
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(source),
    }


def fuzz(source: Path, preload: str, *, count: int, seed: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.kernels.mutations"]
    return subprocess.run(
        [*command, "--count", str(count), "--seed", str(seed)],
        cwd=ROOT,
        env={**os.environ, **environment(source, preload)},
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    preload = libraries()
    if preload is None:
        sys.exit(MISSING)
    with tempfile.TemporaryDirectory() as folder:
        source = build(Path(folder), level="-O3")
        result = fuzz(source, preload, count=options.count, seed=options.seed)
    print(result.stdout, result.stderr, sep="", end="")
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
