"""A short run of the fuzzer; `run.py` beside this does long ones."""

from __future__ import annotations

import logging

import pytest
from fluvio_fuzz import fuzz


@pytest.mark.parametrize("seed", [1, 2])
def test_any_fluvio_bytes_are_answered_or_end_the_connection(seed: int) -> None:
    logging.disable(logging.WARNING)
    try:
        run = fuzz(1500, seed)
    finally:
        logging.disable(logging.NOTSET)
    # A run that only hangs up, or never does, has not tested much.
    assert run.answers > 300
    assert run.hang_ups > 30
