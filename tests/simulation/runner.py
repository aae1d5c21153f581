"""Run seeds: one, or many on all cores; tell the story of a failing one; shrink it."""

from __future__ import annotations

import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from tests.simulation.plan import Plan, plan
from tests.simulation.violation import Violation
from tests.simulation.world import World

_CHUNK = 20
_STORY_LINES = 60
_CPU_S_MAX = 120.0
"""Hundreds of times what a seed needs."""


@dataclass
class Result:
    seed: int
    rule: str
    """Empty if no rule was broken."""
    text: str
    counts: Counter[str]
    trace: list[str]
    fingerprint: str


@dataclass
class Summary:
    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Seed to the rule that was broken and what was wrong."""

    def add(self, other: Summary) -> None:
        self.seeds += other.seeds
        self.counts += other.counts
        self.failures |= other.failures

    def __str__(self) -> str:
        order = (
            "lives", "operations", "kills", "cuts", "stops", "full disks", "disk errors",
            "clock jumps", "audits", "file calls",
        )  # fmt: skip
        counted = ", ".join(f"{self.counts[name]:,} {name}" for name in order)
        return f"{self.seeds:,} seeds: {counted}; {len(self.failures):,} violations"


def run_plan(planned: Plan, *, ignore: Iterable[str] = ()) -> Result:
    world = World(planned, ignore=frozenset(ignore))
    rule = text = ""
    try:
        with _ending():
            world.run()
    except Violation as violation:
        rule, text = violation.rule, str(violation)
    except Exception:
        # A client could not make sense of an answer, or the simulator itself is wrong.
        rule, text = "client failed", traceback.format_exc(limit=-6)
    return Result(planned.seed, rule, text, world.counts, world.trace, world.fingerprint)


@contextmanager
def _ending() -> Iterator[None]:
    """Take a broker that computes for ever in one turn for a violation."""

    def give_up(number: int, frame: FrameType | None) -> None:
        place = "".join(traceback.format_stack(frame, limit=6))
        raise Violation("endless", f"no end after {_CPU_S_MAX} seconds of CPU time:\n{place}")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_S_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run_seed(seed: int, *, ignore: Iterable[str] = ()) -> Result:
    return run_plan(plan(seed), ignore=ignore)


def run_seeds(seeds: Iterable[int], ignore: Collection[str] = ()) -> Summary:
    summary = Summary()
    for seed in seeds:
        result = run_seed(seed, ignore=ignore)
        summary.seeds += 1
        summary.counts += result.counts
        if result.rule:
            summary.failures[seed] = (result.rule, result.text)
    return summary


def run_many(
    first: int,
    count: int,
    jobs: int,
    *,
    ignore: Collection[str] = (),
    progress: Callable[[Summary, float], None] = lambda summary, rate: None,
) -> Summary:
    """Run many seeds in `jobs` processes."""
    total = Summary()
    began_s = time.monotonic()
    chunks = _chunks(first, count)
    with ProcessPoolExecutor(jobs) as pool:
        running: set[Future[Summary]] = set()
        while True:
            for chunk in chunks:
                running.add(pool.submit(run_seeds, chunk, ignore))
                if len(running) >= 2 * jobs:
                    break
            if not running:
                return total
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                total.add(future.result())
            progress(total, total.seeds / (time.monotonic() - began_s))


def _chunks(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, _CHUNK):
        yield range(start, min(start + _CHUNK, first + count))


def shrink(planned: Plan, rule: str, *, ignore: Iterable[str] = (), runs_max: int = 400) -> Plan:
    """Leave out lives and steps while the same rule is broken."""
    runs = 0

    def fails(candidate: Plan) -> bool:
        nonlocal runs
        runs += 1
        return run_plan(candidate, ignore=ignore).rule == rule

    best = planned
    for number in reversed(range(len(planned.lives))):
        candidate = best.without_life(number)
        if len(best.lives) > 1 and fails(candidate):
            best = candidate
    size = max(1, len(best.steps) // 2)
    while runs < runs_max:
        numbers = [step.number for step in best.steps]
        shorter = False
        for start in reversed(range(0, len(numbers), size)):
            kept = numbers[:start] + numbers[start + size :]
            candidate = best.keep(kept)
            if fails(candidate):
                best, numbers, shorter = candidate, kept, True
            if runs >= runs_max:
                break
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return best


def story(result: Result, planned: Plan) -> str:
    """What happened, what was wrong, and how to see it again."""
    lines = [f"seed {result.seed}: {planned.settings}"]
    if len(result.trace) > _STORY_LINES:
        lines.append(f"... {len(result.trace) - _STORY_LINES} lines before")
    lines += [line[:240] for line in result.trace[-_STORY_LINES:]]
    lines.append(f"VIOLATION  {result.text}" if result.rule else "no rule was broken")
    lines.append(f"repeat: python -m tests.simulation {planned.arguments}")
    return "\n".join(lines)
