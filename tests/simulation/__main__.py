"""Command line of the simulator: `python -m tests.simulation --seeds 20000 --jobs 2`."""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation import planted
from tests.simulation.plan import parse_numbers, plan
from tests.simulation.runner import Summary, run_many, run_plan, shrink, story

_shown: set[int] = set()
"""Failing seeds that have been named."""


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets depends on it, and with it what a seed means.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    arguments = _parse()
    if arguments.planted:
        return planted.main(arguments.seeds, arguments.jobs, arguments.only)
    if arguments.seed is not None:
        return _repeat(arguments)
    summary = run_many(
        arguments.first, arguments.seeds, arguments.jobs, ignore=arguments.ignore, progress=_show
    )
    print(f"\r{summary}{' ' * 20}")
    for seed, (_, text) in sorted(summary.failures.items())[:50]:
        print(f"seed {seed}: {text.splitlines()[0][:200]}")
    if summary.failures:
        arguments.seed, arguments.keep, arguments.lives = min(summary.failures), None, None
        arguments.shrink = True
        _repeat(arguments)
    return 1 if summary.failures else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, help="run one seed and tell its story")
    parser.add_argument("--shrink", action="store_true", help="leave out what is not needed")
    parser.add_argument("--keep", help="only these steps of the seed, such as 1-4,9")
    parser.add_argument("--lives", help="only these lives of the seed")
    parser.add_argument("--ignore", action="append", default=[], help="a rule not to enforce")
    parser.add_argument("--planted", action="store_true", help="find planted faults")
    parser.add_argument("--only", help="the planted fault to look for")
    return parser.parse_args()


def _repeat(arguments: argparse.Namespace) -> int:
    planned = plan(arguments.seed)
    if arguments.lives is not None:
        planned = planned.keep_lives(parse_numbers(arguments.lives))
    if arguments.keep is not None:
        planned = planned.keep(parse_numbers(arguments.keep))
    result = run_plan(planned, ignore=arguments.ignore)
    if result.rule and arguments.shrink:
        print(f"seed {arguments.seed}: {result.text.splitlines()[0][:200]}; shrinking")
        planned = shrink(planned, result.rule, ignore=arguments.ignore)
        result = run_plan(planned, ignore=arguments.ignore)
    print(story(result, planned))
    return 1 if result.rule else 0


def _show(summary: Summary, rate: float) -> None:
    for seed in [seed for seed in summary.failures if seed not in _shown]:
        _shown.add(seed)
        print(f"\nseed {seed}: {summary.failures[seed][1].splitlines()[0][:200]}", file=sys.stderr)
    print(
        f"\r{summary.seeds:,} seeds, {rate:.1f} a second, {len(summary.failures)} violations ",
        end="",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
