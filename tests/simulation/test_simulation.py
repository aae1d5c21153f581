"""A fixed set of seeds, the simulator's own promises, and the faults it must find."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulation import sizes
from tests.simulation.plan import format_numbers, parse_numbers, plan
from tests.simulation.planted import PLANTED, find, planted
from tests.simulation.runner import run_plan, run_seed, shrink, story

from pentalog.broker.local import LocalBroker
from pentalog.broker.module_engine import Instance

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 400
CHUNKS = 4
PLANTED_SEEDS_MAX = 60
SHOWN = (
    "no_directory_sync",
    "acks_all_is_written",
    "no_idempotence",
    "seal_off_by_one",
    "rustlog_answers_early",
    "fluvio_undecided",
    "derived_place_forgotten",
)
"""Planted faults that every run of the tests finds; `--planted` finds all of them."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_rule_is_broken(chunk: int) -> None:
    size = SEEDS // CHUNKS
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(size), "--jobs", "1"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [*command, "--first", str(chunk * size)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"{size} seeds" in done.stdout


def test_the_same_seed_tells_the_same_story() -> None:
    for seed in (3, 4, 6):
        first, second = run_seed(seed), run_seed(seed)
        assert first.trace
        assert first.fingerprint == second.fingerprint
        assert first.counts == second.counts


def test_the_same_seed_tells_the_same_story_in_another_process() -> None:
    code = "from tests.simulation.runner import run_seed; print(run_seed(5).fingerprint)"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    }
    assert len(found) == 1


@pytest.mark.parametrize("name", SHOWN)
def test_planted_faults_are_found(name: str) -> None:
    seeds, rule = find(name, PLANTED_SEEDS_MAX)
    assert seeds, f"{name} was not found in {PLANTED_SEEDS_MAX} seeds"
    assert rule


def test_planted_faults_fit_the_code() -> None:
    for entry in PLANTED:
        with planted(entry.name):
            assert entry.text


def test_constants_that_worlds_change_are_where_they_are_looked_for() -> None:
    missing = [
        f"{owner.__name__}.{name}"
        for owner, name, _ in (*sizes.READS, *sizes.LANES)
        if not hasattr(owner, name)
    ]
    assert not missing


def test_planted_faults_have_names_and_texts_of_their_own() -> None:
    assert len({entry.name for entry in PLANTED}) == len(PLANTED)
    assert len({entry.text for entry in PLANTED}) == len(PLANTED)


def test_a_failing_seed_is_shrunk_and_its_story_says_how_to_repeat_it() -> None:
    # Shrinking runs a plan hundreds of times, so the shortest that fails is taken.
    shortest_first = sorted(range(100), key=lambda seed: len(plan(seed).steps))
    with planted("acks_all_is_written"):
        seed = next(seed for seed in shortest_first if run_seed(seed).rule)
        whole = plan(seed)
        rule = run_plan(whole).rule
        small = shrink(whole, rule)
        result = run_plan(small)
        told = story(result, small)
        assert result.rule == rule
        assert len(small.steps) < len(whole.steps)
        # What the command line makes of the arguments that the story names is the same plan.
        words = small.arguments.split()
        lives, steps = words[words.index("--lives") + 1], words[words.index("--keep") + 1]
        again = plan(seed).keep_lives(parse_numbers(lives)).keep(parse_numbers(steps))
        assert again == small
    assert f"--seed {seed}" in told
    assert "VIOLATION" in told


def test_stopped_brokers_and_smart_modules_are_freed() -> None:
    """Test processes start many brokers; each must be garbage once it has stopped."""

    def alive() -> int:
        gc.collect()
        return sum(isinstance(found, LocalBroker | Instance) for found in gc.get_objects())

    before = alive()
    for seed in range(100_002, 100_004):
        assert run_seed(seed).counts["lives"]
    assert alive() <= before


def test_numbers_are_written_as_ranges() -> None:
    for numbers in ([], [3], [1, 2, 3, 9], [0, 2, 4, 5]):
        assert parse_numbers(format_numbers(numbers)) == set(numbers)
    assert format_numbers([1, 2, 3, 9]) == "1-3,9"
