"""Run seeds: one, or many on all cores; tell the story of a failing one; shrink it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tests.simulation.judge import Violation
from tests.simulation.plan import Plan, plan
from tests.simulation.world import World


@dataclass
class Result:
    seed: int
    rule: str
    """Empty if no rule was broken."""
    text: str
    counts: Counter[str]
    trace: list[str]
    fingerprint: str


def run_plan(planned: Plan, *, ignore: Iterable[str] = ()) -> Result:
    world = World(planned, ignore=frozenset(ignore))
    rule = text = ""
    try:
        world.run()
    except Violation as violation:
        rule, text = violation.rule, str(violation)
    return Result(planned.seed, rule, text, world.counts, world.trace, world.fingerprint)


def run_seed(seed: int, *, ignore: Iterable[str] = ()) -> Result:
    return run_plan(plan(seed), ignore=ignore)


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
