"""Short runs of the history checker; `python -m tests.history` makes many."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.history.run import RECORDS_MIN, run

pytestmark = [pytest.mark.clients, pytest.mark.crash]


@pytest.mark.parametrize("seed", range(3))
def test_clients_are_never_told_anything_untrue(tmp_path: Path, seed: int) -> None:
    outcome = run(tmp_path, seed)
    assert list(outcome.anomalies) == []
    # A run in which nothing happened would prove nothing; `run` goes on until enough has.
    assert outcome.counts["committed"] > 0, str(outcome)
    assert outcome.counts["records"] >= RECORDS_MIN, str(outcome)
    assert outcome.trouble, str(outcome)
