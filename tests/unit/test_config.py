"""Settings: every source, their order, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pentalog.config import SETTINGS, Config, ConfigError, Listen, load, plain


def test_nothing_given_means_defaults() -> None:
    loaded = load()
    assert loaded.config == Config()
    assert set(loaded.sources.values()) == {"default"}
    assert set(loaded.sources) == set(SETTINGS)


def test_every_setting_says_what_it_is_for() -> None:
    for setting in SETTINGS.values():
        assert setting.metadata["text"].endswith(".")


def test_later_sources_win() -> None:
    loaded = load(
        toml="flush_interval_ms = 1\nnode_id = 1\njournal_bytes = 2097152\n",
        toml_name="broker.toml",
        environment={"PENTALOG_FLUSH_INTERVAL_MS": "2", "PENTALOG_NODE_ID": "2"},
        flags={"flush_interval_ms": "3"},
    )
    config = loaded.config
    assert (config.flush_interval_ms, config.node_id, config.journal_bytes) == (3, 2, 2 << 20)
    assert loaded.sources["flush_interval_ms"] == "--flush-interval-ms"
    assert loaded.sources["node_id"] == "PENTALOG_NODE_ID"
    assert loaded.sources["journal_bytes"] == "broker.toml"
    assert loaded.sources["data"] == "default"


@pytest.mark.parametrize(
    ("toml", "variable", "flag", "name", "expected"),
    [
        ('data = "/x"', "/x", "/x", "data", Path("/x")),
        ("auto_create_topics = false", "no", "false", "auto_create_topics", False),
        ("auto_create_topics = true", "on", "TRUE", "auto_create_topics", True),
        ("connections_max = 7", "7", "7", "connections_max", 7),
        (
            'listen = ["kafka=0.0.0.0:1", "b=[::1]:0"]',
            "kafka=0.0.0.0:1, b=[::1]:0",
            ["kafka=0.0.0.0:1", "b=[::1]:0"],
            "listen",
            (Listen("kafka", "0.0.0.0", 1), Listen("b", "::1", 0)),
        ),
        (
            'advertise = ["kafka=example.org:9092"]',
            "kafka=example.org:9092",
            ["kafka=example.org:9092"],
            "advertise",
            {"kafka": Listen("kafka", "example.org", 9092)},
        ),
        (
            '[topic_defaults]\n"retention.ms" = 1000\ncleanup.policy = "compact,delete"',
            "retention.ms=1000,cleanup.policy=compact,delete",
            ["retention.ms=1000", "cleanup.policy=compact,delete"],
            "topic_defaults",
            {"retention.ms": "1000", "cleanup.policy": "compact,delete"},
        ),
    ],
)
def test_a_value_means_the_same_in_every_source(
    toml: str, variable: str, flag: object, name: str, expected: object
) -> None:
    assert getattr(load(toml=toml).config, name) == expected
    assert (
        getattr(load(environment={f"PENTALOG_{name.upper()}": variable}).config, name) == expected
    )
    assert getattr(load(flags={name: flag}).config, name) == expected


def test_python_values_are_taken_as_flags() -> None:
    config = load(
        flags={"listen": (Listen("kafka", "::1", 0),), "topic_defaults": {"preallocate": True}}
    ).config
    assert config.listen == (Listen("kafka", "::1", 0),)
    assert config.topic_defaults == {"preallocate": "true"}


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({"toml": "flush_interval_ms = -1"}, ["flush_interval_ms", "-1", "from 0 to"]),
        ({"toml": 'node_id = "x"'}, ["node_id", "'x'", "whole number"]),
        ({"toml": "node_id = true"}, ["node_id", "whole number"]),
        ({"toml": "node_id = 1.5"}, ["node_id", "whole number"]),
        ({"toml": "node_id = "}, ["the configuration file is not TOML"]),
        (
            {"toml": "flush_intervall_ms = 1"},
            ["flush_intervall_ms", "did you mean flush_interval_ms"],
        ),
        ({"toml": "colour = 1"}, ["colour", "known are data, listen"]),
        ({"toml": "auto_create_topics = 1"}, ["auto_create_topics", "true or false"]),
        (
            {"environment": {"PENTALOG_AUTO_CREATE_TOPICS": "maybe"}},
            ["PENTALOG_AUTO_CREATE_TOPICS", "'maybe'", "true or false"],
        ),
        (
            {"environment": {"PENTALOG_FLUSH_INTERVAL": "1"}},
            ["PENTALOG_FLUSH_INTERVAL ", "did you mean PENTALOG_FLUSH_INTERVAL_MS?"],
        ),
        ({"flags": {"default_partitions": "0"}}, ["--default-partitions", "from 1 to 10000"]),
        ({"flags": {"data": ""}}, ["data", "directory"]),
        ({"flags": {"listen": ["kafka"]}}, ["listen", "NAME=HOST:PORT"]),
        ({"flags": {"listen": ["kafka=::1:9092"]}}, ["listen", "NAME=HOST:PORT"]),
        ({"flags": {"listen": ["kafka=localhost:65536"]}}, ["listen", "NAME=HOST:PORT"]),
        ({"flags": {"listen": ["kafka=localhost:"]}}, ["listen", "NAME=HOST:PORT"]),
        ({"flags": {"listen": [7]}}, ["listen", "NAME=HOST:PORT"]),
        ({"flags": {"listen": ["kafka=a:1", "kafka=b:2"]}}, ["kafka twice"]),
        ({"flags": {"advertise": ["kafka=:9092"]}}, ["advertise", "host"]),
        ({"flags": {"topic_defaults": ["retention.ms"]}}, ["topic_defaults", "retention.ms=1000"]),
        ({"toml": "topic_defaults = [1]"}, ["topic_defaults"]),
        ({"toml": "[topic_defaults]\nx = [1]"}, ["topic_defaults"]),
        ({"flags": {"receive_bytes_max": 2_000_000}}, ["receive_bytes_max", "frame_bytes_max"]),
        ({"flags": {"journal_bytes": 1 << 20, "journal_batch_bytes_max": 1 << 20}}, ["half"]),
        ({"flags": {"colour": 1}}, ["unknown setting 'colour'"]),
    ],
)
def test_what_is_refused_is_named_with_what_would_be_accepted(
    sources: Mapping[str, object], said: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(**sources)  # type: ignore[arg-type]
    text = str(refusal.value)
    assert "\n" not in text
    for part in said:
        assert part in text


def test_variables_of_others_are_left_alone() -> None:
    environment = {"PENTALOG_SERVICE_HOST": "10.0.0.1", "PENTALOG_PORT": "tcp://x", "HOME": "/"}
    assert load(environment=environment).config == Config()


def test_plain_values_are_json() -> None:
    import json

    config = load(
        flags={"listen": "kafka=[::1]:1", "advertise": "kafka=h:2", "topic_defaults": "a=b"}
    ).config
    values = {name: plain(getattr(config, name)) for name in SETTINGS}
    assert json.loads(json.dumps(values)) == values
    assert values["listen"] == ["kafka=[::1]:1"]
    assert values["advertise"] == {"kafka": "kafka=h:2"}
