"""What the simulator raises when the broker breaks a rule."""

from __future__ import annotations


class Violation(Exception):
    """The broker broke a rule."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
