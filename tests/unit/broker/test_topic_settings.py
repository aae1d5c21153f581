"""Topic settings: what is accepted, what it means, how it is listed."""

from __future__ import annotations

from dataclasses import fields

import pytest

from pentalog.broker.settings import DEFINITIONS, listing, log_settings, tidy
from pentalog.model.errors import InvalidConfig
from pentalog.model.settings import LogSettings, TimestampType

LONG_MAX = (1 << 63) - 1


def test_no_overrides_are_the_logs_own_defaults() -> None:
    assert log_settings({}, {}) == LogSettings()


def test_listed_defaults_mean_the_defaults() -> None:
    listed = {setting.name: setting.value for setting in listing({}, {})}
    assert set(listed) == set(DEFINITIONS)
    assert log_settings({}, listed) == LogSettings()


def test_every_field_of_the_log_can_be_set() -> None:
    reached = {each.field for each in DEFINITIONS.values()} - {""}
    reached |= {"cleanup_delete", "cleanup_compact"}
    assert reached == {field.name for field in fields(LogSettings)}


def test_listed_defaults_are_kafkas() -> None:
    listed = {setting.name: setting.value for setting in listing({}, {})}
    assert listed["cleanup.policy"] == "delete"
    assert listed["compression.type"] == "producer"
    assert listed["max.message.bytes"] == "1048588"
    assert listed["message.timestamp.type"] == "CreateTime"
    assert listed["message.timestamp.before.max.ms"] == str(LONG_MAX)
    assert listed["message.timestamp.after.max.ms"] == "3600000"
    assert listed["min.cleanable.dirty.ratio"] == "0.5"
    assert listed["min.insync.replicas"] == "1"
    assert listed["retention.bytes"] == "-1"
    assert listed["retention.ms"] == "604800000"
    assert listed["segment.bytes"] == "1073741824"
    assert listed["segment.index.bytes"] == "10485760"
    assert listed["segment.ms"] == "604800000"
    assert listed["flush.messages"] == str(LONG_MAX)
    assert listed["compression.gzip.level"] == "-1"
    assert listed["compression.lz4.level"] == "9"
    assert listed["compression.zstd.level"] == "3"
    assert listed["leader.replication.throttled.replicas"] == ""
    assert listed["local.retention.ms"] == "-2"
    assert listed["preallocate"] == "false"
    assert listed["remote.storage.enable"] == "false"
    assert listed["unclean.leader.election.enable"] == "false"


@pytest.mark.parametrize(
    ("policy", "delete", "compact"),
    [
        ("delete", True, False),
        ("compact", False, True),
        ("compact,delete", True, True),
        (" delete , compact ", True, True),
        ("delete,delete", True, False),
        ("", False, False),
    ],
)
def test_cleanup_policy(policy: str, delete: bool, compact: bool) -> None:
    settings = log_settings({}, {"cleanup.policy": policy})
    assert (settings.cleanup_delete, settings.cleanup_compact) == (delete, compact)


def test_overrides_win_over_the_brokers_defaults() -> None:
    settings = log_settings(
        {"retention.ms": "1000", "retention.bytes": "5"}, {"retention.ms": "2000"}
    )
    assert (settings.retention_ms, settings.retention_bytes) == (2000, 5)


def test_timestamp_type_becomes_its_enum() -> None:
    settings = log_settings({}, {"message.timestamp.type": "LogAppendTime"})
    assert settings.timestamp_type is TimestampType.APPEND


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "delete,keep"),
        ("cleanup.policy", "Delete"),
        ("compression.type", "brotli"),
        ("compression.type", ""),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "0"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "-131073"),
        ("compression.zstd.level", "23"),
        ("flush.messages", "0"),
        ("follower.replication.throttled.replicas", "none"),
        ("leader.replication.throttled.replicas", "0:1,*"),
        ("local.retention.bytes", "-3"),
        ("preallocate", "true"),
        ("remote.storage.enable", "true"),
        ("remote.storage.enable", "no"),
        ("unclean.leader.election.enable", "yes"),
        ("max.compaction.lag.ms", "0"),
        ("max.message.bytes", "-1"),
        ("max.message.bytes", str(1 << 31)),
        ("message.timestamp.type", "createtime"),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.insync.replicas", "0"),
        ("retention.bytes", "-2"),
        ("retention.ms", "-2"),
        ("retention.ms", "1e3"),
        ("retention.ms", "1_000"),
        ("retention.ms", "\u0663"),
        ("retention.ms", ""),
        ("retention.ms", str(1 << 63)),
        ("retention.ms", "9" * 5000),
        ("segment.bytes", "1023"),
        ("segment.bytes", "many"),
        ("segment.index.bytes", "3"),
        ("segment.ms", "0"),
    ],
)
def test_bad_values_are_refused_with_what_is_accepted(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"{name} cannot be .*: give "):
        log_settings({}, {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.bytes", "1024"),
        ("segment.bytes", str((1 << 31) - 1)),
        ("retention.ms", "-1"),
        ("retention.ms", " 5 "),
        ("retention.ms", str(LONG_MAX)),
        ("min.cleanable.dirty.ratio", "0"),
        ("min.cleanable.dirty.ratio", "1"),
        ("flush.ms", "0"),
        ("compression.gzip.level", "-1"),
        ("compression.gzip.level", "9"),
        ("compression.lz4.level", "17"),
        ("compression.zstd.level", "-131072"),
        ("compression.zstd.level", "22"),
    ],
)
def test_values_at_the_edge_are_taken(name: str, value: str) -> None:
    settings = log_settings({}, {name: value})
    assert getattr(settings, DEFINITIONS[name].field) == int(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("follower.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", "0:1,1:2"),
        ("leader.replication.throttled.replicas", ""),
        ("local.retention.ms", "5"),
        ("preallocate", "FALSE"),
        ("remote.log.copy.disable", "true"),
        ("unclean.leader.election.enable", " True "),
    ],
)
def test_what_only_a_cluster_has_a_use_for_is_kept_and_shown(name: str, value: str) -> None:
    kept = tidy({name: value})
    assert kept == {name: value.strip().lower()}
    assert log_settings({}, kept) == LogSettings()
    assert {setting.name: setting.value for setting in listing({}, kept)}[name] == kept[name]


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidConfig, match=r"no topic setting 'retention\.days'.*retention\.ms"):
        log_settings({}, {"retention.days": "7"})
    with pytest.raises(InvalidConfig):
        tidy({"retention.days": "7"})


def test_the_least_compaction_lag_cannot_exceed_the_most() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms"):
        log_settings({"max.compaction.lag.ms": "10"}, {"min.compaction.lag.ms": "11"})


def test_listing_says_what_is_overridden() -> None:
    listed = {
        setting.name: setting
        for setting in listing({"retention.ms": "7"}, {"retention.ms": "9", "flush.ms": "1"})
    }
    assert listed["retention.ms"].value == "9"
    assert listed["retention.ms"].default == "7"
    assert listed["retention.ms"].overridden
    assert listed["flush.ms"].overridden
    assert not listed["segment.ms"].overridden
    assert listed["segment.ms"].kind == "long"
    assert all(setting.documentation for setting in listed.values())


def test_tidy_trims() -> None:
    assert tidy({"retention.ms": " 5 ", "cleanup.policy": "compact , delete"}) == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "5",
    }
