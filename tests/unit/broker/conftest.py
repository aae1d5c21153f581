"""What the broker's tests share: a runtime in steps, a state file that can be opened again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from step_runtime import StepRuntime

from pentalog.broker.state import FILE_NAME, State


@pytest.fixture
def runtime() -> StepRuntime:
    return StepRuntime()


@pytest.fixture
def open_state(tmp_path: Path, runtime: StepRuntime) -> Iterator[Callable[[], State]]:
    """Opens the state file, as often as a test likes; a life that is not closed is a crash."""
    opened: list[State] = []

    def open_one() -> State:
        state = State(tmp_path / FILE_NAME, runtime)
        state.open()
        opened.append(state)
        return state

    yield open_one
    runtime.lanes_blocked = False
    for state in opened:
        state.close()
        runtime.run()
