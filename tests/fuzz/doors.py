"""Fuzz one door for long: `python -m tests.fuzz.doors DOOR --frames N --seed S`."""

from __future__ import annotations

import argparse
import logging
import resource
import sys
from importlib import import_module
from typing import Final, Protocol

DOORS: Final = ("kafka", "rustlog", "blipmq", "cursus", "fluvio")
"""Each has a module of its name that makes and mutates its frames."""
STEP: Final = 20_000


class Run(Protocol):
    frames: int
    answers: int
    hang_ups: int


def fuzz(door: str, frames: int, seed: int) -> Run:
    """Feed so many mutated frames to the door; raises if something does not hold."""
    run: Run = import_module(f"tests.fuzz.{door}.{door}_fuzz").fuzz(frames, seed)
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
