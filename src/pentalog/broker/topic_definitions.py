"""The settings a topic may have, by Kafka's names: what each accepts and what it is for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pentalog.model.errors import InvalidConfig

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
VALUE_CHARACTERS_MAX: Final = 1_000

CLEANUP: Final = "cleanup.policy"
_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")
_ONE_COPY: Final = "It concerns further copies of a partition; here there is one."
_BOTH: Final = ("true", "false")
_NOT_REMOTE: Final = "It concerns segments kept elsewhere; here there are none."


class Kind(Enum):
    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True)
class Definition:
    """One setting: its range or its words, and the field of `LogSettings` it fills.

    Without a field it means nothing to the log: it is kept and shown, as by a Kafka broker that
    has no use for it.
    """

    name: str
    kind: Kind
    field: str
    documentation: str
    least: int = 0
    most: int = LONG_MAX
    words: tuple[str, ...] = ()
    default: str = ""
    """What holds where nobody says anything else; only where there is no field."""

    @property
    def accepted(self) -> str:
        if self.kind is Kind.LIST and self.words:
            return f"a list of {', '.join(self.words)}, separated by commas"
        if self.kind is Kind.LIST:
            return "a list of PARTITION:BROKER, separated by commas, or *"
        if len(self.words) == 1:
            return self.words[0]
        if self.words:
            return f"one of {', '.join(self.words)}"
        if self.kind is Kind.STRING:
            return f"a text of up to {VALUE_CHARACTERS_MAX} characters"
        if self.kind is Kind.DOUBLE:
            return "a number from 0 to 1"
        return f"a whole number from {self.least} to {self._most}"

    @property
    def _most(self) -> int:
        return min(self.most, {Kind.INT: INT_MAX, Kind.DOUBLE: 1}.get(self.kind, LONG_MAX))

    def parse(self, text: str) -> str | int | float | tuple[str, ...]:
        text = text.strip()
        if len(text) > VALUE_CHARACTERS_MAX:
            raise self._refusal(text[:40] + "...")
        if self.kind is Kind.LIST:
            return self._parse_list(text)
        if self.words and (text.lower() if self.kind is Kind.BOOLEAN else text) not in self.words:
            raise self._refusal(text)
        if self.kind is Kind.BOOLEAN:
            return text.lower() == "true"
        return text if self.kind is Kind.STRING else self._parse_number(text)

    def _parse_list(self, text: str) -> tuple[str, ...]:
        chosen = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if self.words:
            good = all(word in self.words for word in chosen)
        else:
            good = chosen == ("*",) or all(map(_REPLICA.fullmatch, chosen))
        if not good:
            raise self._refusal(text)
        return chosen

    def _parse_number(self, text: str) -> int | float:
        if not text.isascii() or "_" in text:
            raise self._refusal(text)
        try:
            number = float(text) if self.kind is Kind.DOUBLE else int(text)
        except ValueError:
            raise self._refusal(text) from None
        if not self.least <= number <= self._most:
            raise self._refusal(text)
        return number

    def _refusal(self, text: str) -> InvalidConfig:
        return InvalidConfig(f"{self.name} cannot be {text!r}: give {self.accepted}")


TOPIC_DEFINITIONS: Final = (
    Definition(
        CLEANUP,
        Kind.LIST,
        "",
        "What happens to old records: delete drops them by age and size, compact keeps the newest "
        "record of each key, both do both; an empty list keeps everything.",
        words=("delete", "compact"),
        default="delete",
    ),
    Definition(
        "compression.gzip.level",
        Kind.INT,
        "gzip_level",
        "How hard to compress where compression.type is gzip, from 1 to 9; -1: gzip's own choice.",
        least=-1,
        words=("-1", *map(str, range(1, 10))),
    ),
    Definition(
        "compression.lz4.level",
        Kind.INT,
        "lz4_level",
        "How hard to compress where compression.type is lz4; 9, the default, is the quickest.",
        least=1,
        most=17,
    ),
    Definition(
        "compression.type",
        Kind.STRING,
        "compression",
        "How batches are compressed on disk; producer keeps what the producer sent.",
        words=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    Definition(
        "compression.zstd.level",
        Kind.INT,
        "zstd_level",
        "How hard to compress where compression.type is zstd; less than 1 is quicker than that.",
        least=-131072,
        most=22,
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
        "follower.replication.throttled.replicas",
        Kind.LIST,
        "",
        f"Copies that are fetched no faster than a limit.  {_ONE_COPY}",
    ),
    Definition(
        "index.interval.bytes",
        Kind.INT,
        "index_interval_bytes",
        "Bytes of records between two entries of the offset index.",
    ),
    Definition(
        "leader.replication.throttled.replicas",
        Kind.LIST,
        "",
        f"Copies that are given out no faster than a limit.  {_ONE_COPY}",
    ),
    Definition(
        "local.retention.bytes",
        Kind.LONG,
        "",
        f"Size of what is kept here; -2: as retention.bytes says.  {_NOT_REMOTE}",
        least=-2,
        default="-2",
    ),
    Definition(
        "local.retention.ms",
        Kind.LONG,
        "",
        f"How long it is kept here; -2: as retention.ms says.  {_NOT_REMOTE}",
        least=-2,
        default="-2",
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
        "preallocate",
        Kind.BOOLEAN,
        "",
        "Whether a new segment takes its space at once; here segments grow as they are filled.",
        words=("false",),
        default="false",
    ),
    Definition(
        "remote.log.copy.disable",
        Kind.BOOLEAN,
        "",
        f"Whether segments are no longer copied elsewhere.  {_NOT_REMOTE}",
        words=_BOTH,
        default="false",
    ),
    Definition(
        "remote.log.delete.on.disable",
        Kind.BOOLEAN,
        "",
        f"Whether those elsewhere go when remote.storage.enable is taken back.  {_NOT_REMOTE}",
        words=_BOTH,
        default="false",
    ),
    Definition(
        "remote.storage.enable",
        Kind.BOOLEAN,
        "",
        "Whether segments are kept elsewhere too; this broker keeps all of them itself.",
        words=("false",),
        default="false",
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
    Definition(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        "",
        f"Whether a copy that lacks records may become the first.  {_ONE_COPY}",
        words=_BOTH,
        default="false",
    ),
)
