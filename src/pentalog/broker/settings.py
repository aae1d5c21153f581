"""Topic settings by Kafka's names: what each accepts, its default, and what it means to the log.

The table holds exactly what `LogSettings` can express; the defaults are the log's own, read from
there, so they are stated once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from pentalog.broker.port import Setting
from pentalog.model.errors import InvalidConfig
from pentalog.model.settings import LogSettings, TimestampType

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
VALUE_CHARACTERS_MAX: Final = 1_000

_CLEANUP: Final = "cleanup.policy"


class Kind(Enum):
    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Definition:
    """One setting: its range or its words, and the field of `LogSettings` it fills."""

    name: str
    kind: Kind
    field: str
    documentation: str
    least: int = 0
    words: tuple[str, ...] = ()

    @property
    def accepted(self) -> str:
        if self.kind is Kind.LIST:
            return f"a list of {', '.join(self.words)}, separated by commas"
        if self.kind is Kind.STRING and not self.words:
            return f"a text of up to {VALUE_CHARACTERS_MAX} characters"
        if self.kind is Kind.STRING:
            return f"one of {', '.join(self.words)}"
        if self.kind is Kind.DOUBLE:
            return "a number from 0 to 1"
        most = INT_MAX if self.kind is Kind.INT else LONG_MAX
        return f"a whole number from {self.least} to {most}"

    def parse(self, text: str) -> str | int | float | tuple[str, ...]:
        text = text.strip()
        if len(text) > VALUE_CHARACTERS_MAX:
            raise self._refusal(text[:40] + "...")
        if self.kind is Kind.LIST:
            chosen = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
            if any(word not in self.words for word in chosen):
                raise self._refusal(text)
            return chosen
        if self.kind is Kind.STRING:
            if self.words and text not in self.words:
                raise self._refusal(text)
            return text
        return self._parse_number(text)

    def _parse_number(self, text: str) -> int | float:
        if not text.isascii() or "_" in text:
            raise self._refusal(text)
        try:
            number = float(text) if self.kind is Kind.DOUBLE else int(text)
        except ValueError:
            raise self._refusal(text) from None
        most = {Kind.INT: INT_MAX, Kind.LONG: LONG_MAX, Kind.DOUBLE: 1}[self.kind]
        if not self.least <= number <= most:
            raise self._refusal(text)
        return number

    def _refusal(self, text: str) -> InvalidConfig:
        return InvalidConfig(f"{self.name} cannot be {text!r}: give {self.accepted}")


_ALL: Final = (
    Definition(
        _CLEANUP,
        Kind.LIST,
        "",
        "What happens to old records: delete drops them by age and size, compact keeps the newest "
        "record of each key, both do both; an empty list keeps everything.",
        words=("delete", "compact"),
    ),
    Definition(
        "compression.type",
        Kind.STRING,
        "compression",
        "How batches are compressed on disk; producer keeps what the producer sent.",
        words=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    Definition(
        "delete.retention.ms",
        Kind.LONG,
        "delete_retention_ms",
        "How long a compacted topic keeps the mark that a key was deleted.",
    ),
    Definition(
        "derived.from",
        Kind.STRING,
        "derived_from",
        "The topic whose records this one holds, as a SmartModule gives them back; empty: none.",
    ),
    Definition(
        "derived.parameters",
        Kind.STRING,
        "derived_parameters",
        "What that SmartModule is told when it starts: NAME=VALUE, separated by commas.",
    ),
    Definition(
        "derived.smartmodule",
        Kind.STRING,
        "derived_smart_module",
        "The stored SmartModule through which the records of derived.from pass.",
    ),
    Definition(
        "file.delete.delay.ms",
        Kind.LONG,
        "file_delete_delay_ms",
        "How long the files of a deleted segment stay on disk, for readers still on them.",
    ),
    Definition(
        "flush.messages",
        Kind.LONG,
        "flush_messages",
        "Sync the partition to disk after this many records, whatever producers asked for.",
        least=1,
    ),
    Definition(
        "flush.ms",
        Kind.LONG,
        "flush_ms",
        "Longest time a record may wait for a sync to disk, whatever producers asked for.",
    ),
    Definition(
        "index.interval.bytes",
        Kind.INT,
        "index_interval_bytes",
        "Bytes of records between two entries of the offset index.",
    ),
    Definition(
        "max.compaction.lag.ms",
        Kind.LONG,
        "compaction_lag_ms_max",
        "A record is compacted at the latest when it is this old.",
        least=1,
    ),
    Definition(
        "max.message.bytes",
        Kind.INT,
        "message_bytes_max",
        "Largest batch accepted, as it arrives, framing included.",
    ),
    Definition(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        "timestamp_after_ms_max",
        "How far a record's timestamp may lie in the future; not used with LogAppendTime.",
    ),
    Definition(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        "timestamp_before_ms_max",
        "How far a record's timestamp may lie in the past; not used with LogAppendTime.",
    ),
    Definition(
        "message.timestamp.type",
        Kind.STRING,
        "timestamp_type",
        "Whether timestamps are the producer's (CreateTime) or the broker's (LogAppendTime).",
        words=("CreateTime", "LogAppendTime"),
    ),
    Definition(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        "cleanable_dirty_ratio_min",
        "Share of a partition that must be uncompacted before it is compacted again.",
    ),
    Definition(
        "min.compaction.lag.ms",
        Kind.LONG,
        "compaction_lag_ms_min",
        "A record stays uncompacted for at least this long.",
    ),
    Definition(
        "min.insync.replicas",
        Kind.INT,
        "insync_replicas_min",
        "Copies a write with acks=all must reach; this broker is one copy, so more than 1 "
        "refuses such writes.",
        least=1,
    ),
    Definition(
        "retention.bytes",
        Kind.LONG,
        "retention_bytes",
        "Largest size of a partition before its oldest segments are deleted; -1: no limit.",
        least=-1,
    ),
    Definition(
        "retention.ms",
        Kind.LONG,
        "retention_ms",
        "How long records are kept before their segment is deleted; -1: no limit.",
        least=-1,
    ),
    Definition(
        "segment.bytes",
        Kind.INT,
        "segment_bytes",
        "Size at which a segment is finished and a new one begun.",
        # Kafka 4 asks for 1 MiB; its older releases, and the tools written for them, took less.
        least=1024,
    ),
    Definition(
        "segment.index.bytes",
        Kind.INT,
        "segment_index_bytes",
        "Largest size of a segment's offset index; a full index finishes its segment.",
        least=4,
    ),
    Definition(
        "segment.jitter.ms",
        Kind.LONG,
        "segment_jitter_ms",
        "Up to this much is taken off segment.ms at random, so segments do not end together.",
    ),
    Definition(
        "segment.ms",
        Kind.LONG,
        "segment_ms",
        "Age at which a segment is finished even if it is not full.",
        least=1,
    ),
    Definition(
        "subscription.attempts.max",
        Kind.INT,
        "delivery_attempts_max",
        "Deliveries of a record to a subscription without an acknowledgement, before it goes to "
        "the topic's dead letters; -1: no limit.",
        least=-1,
    ),
    Definition(
        "subscription.backlog.max",
        Kind.LONG,
        "delivery_backlog_max",
        "Records a subscription may have before it, delivered or not; the oldest beyond that go "
        "to the topic's dead letters; -1: no limit.",
        least=-1,
    ),
    Definition(
        "subscription.lease.ms",
        Kind.INT,
        "delivery_lease_ms",
        "How long the first delivery of a record waits for its acknowledgement; the time doubles "
        "with each further delivery.",
        least=1,
    ),
    Definition(
        "subscription.ttl.ms",
        Kind.LONG,
        "delivery_ttl_ms",
        "Age at which a record that was not yet delivered to a subscription goes to the topic's "
        "dead letters; -1: no limit.",
        least=-1,
    ),
)

DEFINITIONS: Final[Mapping[str, Definition]] = {each.name: each for each in _ALL}


def log_settings(defaults: Mapping[str, str], overrides: Mapping[str, str]) -> LogSettings:
    """What a topic's overrides over the broker's defaults mean; raises `InvalidConfig`."""
    fields: dict[str, Any] = {}
    for name, text in {**defaults, **overrides}.items():
        value = definition(name).parse(text)
        if name == _CLEANUP:
            assert isinstance(value, tuple)
            fields["cleanup_delete"] = "delete" in value
            fields["cleanup_compact"] = "compact" in value
        else:
            fields[DEFINITIONS[name].field] = (
                TimestampType(value) if name == "message.timestamp.type" else value
            )
    settings = replace(LogSettings(), **fields)
    if settings.compaction_lag_ms_min > settings.compaction_lag_ms_max:
        raise InvalidConfig(
            f"min.compaction.lag.ms ({settings.compaction_lag_ms_min}) cannot be larger than "
            f"max.compaction.lag.ms ({settings.compaction_lag_ms_max}): lower the one or raise "
            "the other"
        )
    return settings


def definition(name: str) -> Definition:
    found = DEFINITIONS.get(name)
    if found is None:
        raise InvalidConfig(
            f"there is no topic setting {name[:100]!r}: the settings are {', '.join(DEFINITIONS)}"
        )
    return found


def tidy(overrides: Mapping[str, str]) -> dict[str, str]:
    """The same overrides as they are kept and listed: trimmed, in the order of the table."""
    for name in overrides:
        definition(name)
    return {
        name: _spell(DEFINITIONS[name], overrides[name])
        for name in DEFINITIONS
        if name in overrides
    }


def listing(defaults: Mapping[str, str], overrides: Mapping[str, str]) -> tuple[Setting, ...]:
    """Every setting of a topic, in the order of the table."""
    return tuple(
        Setting(
            name=name,
            value=overrides.get(name, _default(each, defaults)),
            default=_default(each, defaults),
            overridden=name in overrides,
            kind=each.kind.value,
            documentation=each.documentation,
        )
        for name, each in DEFINITIONS.items()
    )


def default_text(name: str) -> str:
    """What a setting is where nobody says anything else."""
    return _default(DEFINITIONS[name], {})


def _default(each: Definition, defaults: Mapping[str, str]) -> str:
    if each.name in defaults:
        return _spell(each, defaults[each.name])
    if each.name == _CLEANUP:
        return "delete"
    value = getattr(LogSettings(), each.field)
    return str(value.value if isinstance(value, TimestampType) else value)


def _spell(each: Definition, text: str) -> str:
    return (
        ",".join(part.strip() for part in text.split(","))
        if each.kind is Kind.LIST
        else text.strip()
    )
