"""Compiles SmartModules in a process of its own, which has so much time and memory and no more.

How long a compiler takes cannot be told from a module's size, and it cannot be interrupted; a
process can.  Its memory is gone with it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Final

from pentalog.broker.module_engine import serialized
from pentalog.model.errors import SmartModuleInvalid

MEMORY_BYTES_MAX: Final = 2 << 30
"""Address space of the process: a module of the largest size takes a quarter of it."""
_NICE: Final = 10
_REFUSED: Final = 3
_PROGRAM: Final = "from pentalog.server.module_process import main; main()"


def build(binary: bytes, cpu_s: int) -> bytes:
    """Compile a module within so many seconds of CPU; raises `SmartModuleInvalid`."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _PROGRAM, str(cpu_s)]
    try:
        ended = subprocess.run(
            command, input=binary, capture_output=True, env=environment, start_new_session=True
        )
    except OSError as error:
        raise SmartModuleInvalid(
            f"no process can be started that compiles the module: {error}; try again"
        ) from error
    if ended.returncode == 0:
        return ended.stdout
    if ended.returncode == _REFUSED:
        raise SmartModuleInvalid(ended.stderr.decode("utf-8", "replace"))
    raise SmartModuleInvalid(
        f"the module takes more than {cpu_s} s of CPU or {MEMORY_BYTES_MAX} bytes of memory to be "
        "compiled; split its functions, or build it for size"
    )


def main() -> None:
    """Compile what comes in, and hand it out."""
    cpu_s = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    try:
        made = serialized(sys.stdin.buffer.read())
    except SmartModuleInvalid as refusal:
        sys.stderr.write(str(refusal))
        sys.exit(_REFUSED)
    sys.stdout.buffer.write(made)
