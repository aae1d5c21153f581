"""Run tests on kernels built with the address and undefined behaviour sanitizers.

    python -m tests.sanitized [PYTEST ARGUMENT]...

The kernels are built in `build/sanitized`; the installed ones stay as they are.  A read or write
outside a buffer, or arithmetic that C does not define, ends the process with a report; an index
outside a list, a tuple or bytes raises IndexError.  Without arguments, all tests run that call
kernels in the process of pytest and start no Java.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.fuzz.kernels import sanitizer

FOLDER = sanitizer.ROOT / "build/sanitized"
TESTS = ("tests/unit", "tests/golden", "tests/fuzz/kernels")
# Builds instrumented kernels itself.
LEFT_OUT = "tests/fuzz/kernels/test_kernel_fuzz.py::test_kernels_stay_inside_their_buffers"
CHECK = """
import pathlib, sys
from pentalog import kernels
from pentalog.kernels.compiled import batch
built = pathlib.Path(batch.__file__)
assert set(kernels.KERNELS.values()) == {"compiled"}, kernels.KERNELS
assert built.is_relative_to(sys.argv[1]), built
for call in (b"__asan_report_store", b"__ubsan_handle"):
    assert call in built.read_bytes(), f"{built} is not instrumented"
"""


def main(arguments: list[str]) -> int:
    preload = sanitizer.libraries()
    if preload is None:
        sys.exit(sanitizer.MISSING)
    FOLDER.mkdir(parents=True, exist_ok=True)
    source = sanitizer.build(FOLDER, level="-O1", bounds=True)
    environment = {**os.environ, **sanitizer.environment(source, preload)}
    check = [sys.executable, "-c", CHECK, str(source)]
    subprocess.run(check, cwd=sanitizer.ROOT, env=environment, check=True)
    chosen = arguments or ["-q", "-n", str(os.cpu_count()), *TESTS, "--deselect", LEFT_OUT]
    # pytest would keep a report that goes to standard error, and lose it when the process ends.
    command = [sys.executable, "-m", "pytest", "--capture=sys", "--max-worker-restart=0", *chosen]
    return subprocess.run(command, cwd=sanitizer.ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
