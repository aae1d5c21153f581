"""Lets the crossing use what the doors' own tests have written."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
for _folder in (
    _TESTS.parent / "benchmarks",
    _TESTS / "conformance",
    _TESTS / "unit" / "protocols" / "fluvio",
):
    sys.path.insert(0, str(_folder))
