"""Planted faults: small patches that make the broker wrong; the simulator must find each."""

from __future__ import annotations


def main(seeds: int, jobs: int, only: str | None) -> int:
    raise SystemExit("none yet")
