"""Names of the steps of a commit after which a crash must leave tables and topics correct."""

from __future__ import annotations


def reached(step: str) -> None:
    """Mark a step, `NAME` or `NAME:LAYER`; does nothing.  Tests of crashes replace this module."""
