"""Fuzz one door for long: `python -m tests.fuzz.doors DOOR --frames N --seed S`."""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tests.fuzz.twins import Twins

DOORS: Final = ("kafka", "rustlog", "blipmq", "cursus", "fluvio")
"""Each has a module of its name that makes and mutates its frames."""
STEP: Final = 20_000


def fuzz(door: str, frames: int, seed: int) -> Twins[Any]:
    """Feed so many mutated frames to the door; raises if something does not hold."""
    made: type[Twins[Any]] = import_module(f"tests.fuzz.{door}.{door}_fuzz").Fuzz
    with tempfile.TemporaryDirectory(prefix="pentalog-fuzz-") as directory:
        run = made(seed, Path(directory))
        run.run(frames)
        return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("door", choices=DOORS)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-mib-max", type=int, default=1024)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    done, seed = 0, asked.seed
    while done < asked.frames:
        run = fuzz(asked.door, min(STEP, asked.frames - done), seed)
        done += run.frames
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(
            f"seed {seed}: {done} frames, {run.answers} answers, {run.hang_ups} hang-ups, "
            f"{memory} MiB at most",
            flush=True,
        )
        if memory > asked.memory_mib_max:
            sys.exit(f"{memory} MiB used; at most {asked.memory_mib_max} were allowed")
        seed += 1


if __name__ == "__main__":
    main()
