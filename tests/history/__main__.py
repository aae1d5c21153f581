"""Many runs of the history checker; the first anomaly ends them and its history is kept."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.history.checker import Fate
from tests.history.run import Outcome, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first run")
    parser.add_argument("--duration", type=float, default=4.0, help="seconds of trouble in a run")
    parser.add_argument("--on", action="store_true", help="go on after an anomaly")
    arguments = parser.parse_args()
    bad = 0
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        directory = Path(tempfile.mkdtemp(prefix="pentalog-history-"))
        outcome = run(directory, seed, duration_s=arguments.duration)
        print(f"seed {seed}: {outcome}", flush=True)
        if not outcome.anomalies:
            shutil.rmtree(directory)
            continue
        bad += 1
        _keep(directory, outcome)
        if not arguments.on:
            break
    print(f"{bad} runs with anomalies")
    return 1 if bad else 0


def _keep(directory: Path, outcome: Outcome) -> None:
    for anomaly in outcome.anomalies[:20]:
        print(f"  {anomaly}")
    place = directory / "history.json"
    text = json.dumps(
        dataclasses.asdict(outcome.history),
        indent=1,
        default=lambda value: value.value if isinstance(value, Fate) else str(value),
    )
    place.write_text(text)
    print(f"  {len(outcome.anomalies)} anomalies; the whole history is in {place}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
