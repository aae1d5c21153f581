"""Settings changed while the broker runs: layers, refusals, and the next life."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from step_runtime import StepRuntime

from pentalog.broker.live_settings import CHANGEABLE, LocalSettings
from pentalog.broker.operation import Layer
from pentalog.broker.state import State
from pentalog.config import SETTINGS, Config
from pentalog.model.errors import InvalidConfig

Open = Callable[[], State]


def opened(state: State, **given: object) -> LocalSettings:
    settings = LocalSettings(state, Config(**given))  # type: ignore[arg-type]
    settings.open()
    return settings


def layers(settings: LocalSettings, name: str) -> list[tuple[str, str]]:
    return [(value.layer.value, value.text) for value in settings.values(name)]


def test_every_layer_in_its_order(open_state: Open) -> None:
    settings = opened(open_state(), default_partitions=2, topic_defaults={"retention.ms": "5"})
    assert layers(settings, "default_partitions") == [("given", "2"), ("default", "1")]
    assert layers(settings, "retention.ms") == [("given", "5"), ("default", "604800000")]
    assert layers(settings, "auto_create_topics") == [("default", "true")]
    settings.change(Layer.CLUSTER, {"default_partitions": "3", "retention.ms": "6"})
    settings.change(Layer.BROKER, {"default_partitions": "4"})
    assert layers(settings, "default_partitions") == [
        ("broker", "4"), ("cluster", "3"), ("given", "2"), ("default", "1"),
    ]  # fmt: skip
    assert settings.live.default_partitions == 4
    assert settings.live.topic_defaults == {"retention.ms": "6"}
    settings.change(Layer.BROKER, {"default_partitions": None})
    assert settings.live.default_partitions == 3
    settings.change(Layer.CLUSTER, {"auto_create_topics": "false"}, replace=True)
    assert settings.live.default_partitions == 2
    assert settings.live.topic_defaults == {"retention.ms": "5"}
    assert settings.changed(Layer.CLUSTER) == {"auto_create_topics": "false"}


def test_changes_hold_in_the_next_life(open_state: Open, runtime: StepRuntime) -> None:
    settings = opened(open_state(), node_id=1)
    settings.change(Layer.CLUSTER, {"connections_max": "7"})
    settings.change(Layer.BROKER, {"cleanup.policy": "compact"})
    settled = settings.settle()
    runtime.run()
    assert settled.ready
    again = opened(open_state(), node_id=1)
    assert again.live == settings.live
    assert again.live.connections_max == 7
    # Another broker on the same directory has only what was meant for all.
    other = opened(open_state(), node_id=2)
    assert other.live.topic_defaults == {}
    assert other.live.connections_max == 7


def test_what_is_no_longer_accepted_is_left_out(
    open_state: Open, runtime: StepRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    state = open_state()
    for name, text in (("default_partitions", "0"), ("no.such", "1"), ("connections_max", "9")):
        state.write("INSERT INTO broker_settings VALUES ('cluster', ?, ?)", name, text)
    runtime.run()
    settings = opened(open_state())
    assert settings.changed(Layer.CLUSTER) == {"connections_max": "9"}
    assert settings.live == Config(connections_max=9)
    assert "default_partitions" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("default_partitions", "0", "accepted is a whole number from 1"),
        ("auto_create_topics", "maybe", "true or false"),
        ("retention.ms", "x", "retention.ms"),
        ("min.compaction.lag.ms", str((1 << 63) - 1), "cannot be larger"),
        ("data", "/tmp", "restart"),
        ("no.such", "1", "there is no broker setting"),
    ],
)
def test_changes_refused(open_state: Open, name: str, text: str, complaint: str) -> None:
    settings = opened(open_state(), topic_defaults={"max.compaction.lag.ms": "5"})
    before = settings.live
    with pytest.raises(InvalidConfig, match=complaint):
        settings.change(Layer.BROKER, {name: text})
    assert settings.live == before
    assert settings.changed(Layer.BROKER) == {}


def test_those_who_watch_are_told_and_judges_can_refuse(open_state: Open) -> None:
    settings = opened(open_state())
    told: list[int] = []

    def judge(config: Config) -> None:
        if config.default_partitions > 5:
            raise InvalidConfig("too many")

    settings.watch(lambda config: told.append(config.default_partitions), judge)
    settings.change(Layer.BROKER, {"default_partitions": "5"})
    settings.change(Layer.BROKER, {"default_partitions": "4"}, dry_run=True)
    with pytest.raises(InvalidConfig):
        settings.change(Layer.BROKER, {"default_partitions": "6"})
    assert told == [5]
    assert settings.live.default_partitions == 5


def test_what_can_be_changed_is_a_setting() -> None:
    assert set(SETTINGS) >= CHANGEABLE
