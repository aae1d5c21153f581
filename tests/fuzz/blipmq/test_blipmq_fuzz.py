"""A short run of the fuzzer in every test run."""

from __future__ import annotations

import logging
import random

import pytest
from tests.fuzz.blipmq.blipmq_fuzz import fuzz


@pytest.mark.timeout(120)
def test_damaged_frames() -> None:
    logging.disable(logging.WARNING)
    try:
        run = fuzz(4_000, random.randrange(1 << 30))
    finally:
        logging.disable(logging.NOTSET)
    assert run.answers > 500
    assert run.hang_ups > 10
