"""What the broker's tests share: a runtime in steps, a state file that can be opened again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from step_runtime import StepRuntime
from topic_lives import Life, OpenLife

from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.topics import LocalTopics
from pentalog.config import Config
from pentalog.log.files import RealFiles
from pentalog.log.store import Store
from pentalog.metrics import Metrics


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


@pytest.fixture
def live(tmp_path: Path, runtime: StepRuntime) -> Iterator[OpenLife]:
    """Starts a life on the same directory; the life before it ends first, in order or not."""
    lives: list[Life] = []

    def end(life: Life) -> None:
        life.state.close()
        runtime.run()
        life.store.close()
        runtime.run()

    def start(
        *,
        defaults: Mapping[str, str] | None = None,
        partitions: int = 1,
        files: RealFiles | None = None,
    ) -> Life:
        while lives:
            end(lives.pop())
        config = Config(data=tmp_path, topic_defaults=defaults or {}, default_partitions=partitions)
        store = Store(tmp_path, files or RealFiles(), runtime, Metrics(), config)
        store.open()
        state = State(tmp_path / FILE_NAME, runtime)
        state.open()
        life = Life(store, state, LocalTopics(store, state, runtime, config))
        lives.append(life)
        life.topics.open()
        return life

    yield start
    while lives:
        end(lives.pop())
