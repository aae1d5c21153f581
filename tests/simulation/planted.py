"""Planted faults: small patches that make the broker wrong; the simulator must find each.

A fault counts as found by a seed that breaks a rule with the patch and none without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager

from tests.simulation import planted_log, planted_pipelines, planted_protocols
from tests.simulation.planting import Planted
from tests.simulation.runner import run_seed

PLANTED = (*planted_log.PLANTED, *planted_protocols.PLANTED, *planted_pipelines.PLANTED)


@contextmanager
def planted(name: str) -> Iterator[Planted]:
    """Make the broker wrong in one way."""
    found = next(entry for entry in PLANTED if entry.name == name)
    with ExitStack() as stack:
        found.plant(stack)
        yield found


def find(name: str, seeds_max: int, first: int = 0) -> tuple[int, str]:
    """How many seeds it takes to find a planted fault, and by which rule; 0 if it is not found."""
    for seed in range(first, first + seeds_max):
        with planted(name):
            result = run_seed(seed)
        if result.rule and not run_seed(seed).rule:
            return seed - first + 1, result.rule
    return 0, ""


def main(seeds_max: int, jobs: int, only: str | None) -> int:
    """Print the table for docs/durability.md."""
    entries = [entry for entry in PLANTED if only in (None, entry.name)]
    missed = 0
    print("| Planted fault | Seeds until found | By the rule |\n|---|---|---|")
    with ProcessPoolExecutor(jobs) as pool:
        outcomes = pool.map(find, [e.name for e in entries], [seeds_max] * len(entries))
        for entry, (count, rule) in zip(entries, outcomes, strict=True):
            missed += not count
            print(f"| {entry.text} | {count or 'not found'} | {rule} |", flush=True)
    return 1 if missed else 0
