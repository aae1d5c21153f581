"""Work of a request in steps: sorted, counted, each step a bounded piece."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pentalog.protocols.kafka.administration import find_repeated
from pentalog.protocols.kafka.messages import STEP_COST, Call, Steps


def call() -> Call:
    nothing: Any = None
    return Call(29, 3, 1, None, None, nothing, nothing, nothing)


def finished(steps: Steps[Any]) -> tuple[Any, int]:
    """What steps return, and how many there were."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 5_000])
def test_items_are_sorted_in_steps(size: int) -> None:
    items = [random.Random(size).randrange(100) for _ in range(size)]
    found, steps = finished(call().sort(items, lambda item: -item))
    assert found == sorted(items, key=lambda item: -item)
    assert steps >= 3 * size // STEP_COST


def test_items_with_equal_keys_keep_their_order_and_are_not_compared() -> None:
    items = [object() for _ in range(2_000)]
    found, _ = finished(call().sort(items, lambda _: 1))
    assert found == items


def test_repeated_names_are_found_in_steps() -> None:
    found, steps = finished(find_repeated(call(), ["a", *map(str, range(1_000)), "7", "a", "a"]))
    assert found == {"a", "7"}
    assert steps >= 1_000 // STEP_COST


def test_what_was_spent_adds_up_to_a_step() -> None:
    asked = call()
    steps = [finished(asked.spend(STEP_COST // 4))[1] for _ in range(8)]
    assert steps == [0, 0, 0, 1, 0, 0, 0, 1]
