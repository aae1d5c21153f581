"""What a topic's settings let into its log.

Batches pass untouched and unopened unless a setting makes that impossible: keys must be looked
at in a compacted topic, records recompressed where the topic names a codec, old timestamps
searched for where there is a limit to their age.
"""

from __future__ import annotations

from typing import Final

from pentalog import kernels
from pentalog.kernels import Facts
from pentalog.model import batch as batches_of
from pentalog.model.compression import CODECS, GZIP, LZ4
from pentalog.model.errors import (
    BatchCorrupt,
    BrokerError,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    UnsupportedFormat,
)
from pentalog.model.settings import LogSettings, TimestampType

OPENED_BYTES_MAX: Final = 256 << 20
"""A batch that unpacks to more than this is refused, whatever its compressed size."""

_NO_LIMIT: Final = (1 << 63) - 1
_CONTROL: Final = 0x20
_GZIP_CHOOSES: Final = -1
_LZ4_QUICKEST: Final = 9

_FLAWS: Final[dict[int, tuple[type[BrokerError], str]]] = {
    kernels.FLAW_SHORT: (BatchCorrupt, "ends inside a batch"),
    kernels.FLAW_LENGTH: (BatchCorrupt, "has a batch length no batch can have"),
    kernels.FLAW_MAGIC: (UnsupportedFormat, "is not in record batch format 2"),
    kernels.FLAW_CHECKSUM: (BatchCorrupt, "does not match its checksum"),
    kernels.FLAW_COUNT: (BatchCorrupt, "has a record count that cannot be right"),
    kernels.FLAW_CODEC: (UnsupportedFormat, "names an unknown compression codec"),
}


def admit(
    batches: memoryview, facts: Facts, settings: LogSettings, *, now_ms: int, at: str
) -> tuple[memoryview, Facts]:
    """The batches as they are to be written; raises if the topic does not take them."""
    if facts.flaw:
        kind, text = _FLAWS.get(facts.flaw, (BatchCorrupt, "cannot be read"))
        raise kind(f"data for {at} {text} (at byte {facts.flaw_position})")
    if facts.attributes_any & _CONTROL:
        # The broker's own: a refused marker would leave its transaction open for good.
        return batches, facts
    if facts.batch_bytes_max > settings.message_bytes_max:
        raise RecordTooLarge(
            f"batch of {facts.batch_bytes_max} bytes for {at}; "
            f"max.message.bytes accepts {settings.message_bytes_max}"
        )
    if settings.timestamp_type is TimestampType.CREATE:
        newest = now_ms + settings.timestamp_after_ms_max
        if facts.timestamp_max > newest:
            raise InvalidTimestamp(
                f"timestamp {facts.timestamp_max} for {at} is in the future; "
                f"accepted up to {newest} (message.timestamp.after.max.ms)"
            )
    if _must_open(facts, settings):
        batches, facts = _open(batches, settings, now_ms=now_ms, at=at)
    if settings.timestamp_type is TimestampType.APPEND:
        kernels.stamp_append_time(batches, 0, len(batches), now_ms)
        facts = facts._replace(timestamp_max=now_ms)
    return batches, facts


def _must_open(facts: Facts, settings: LogSettings) -> bool:
    if settings.cleanup_compact:
        return True
    if settings.compression != "producer" and facts.codecs != 1 << CODECS.index(
        settings.compression
    ):
        return True
    return (
        settings.timestamp_before_ms_max != _NO_LIMIT
        and settings.timestamp_type is TimestampType.CREATE
    )


def _open(
    batches: memoryview, settings: LogSettings, *, now_ms: int, at: str
) -> tuple[memoryview, Facts]:
    kept = bytearray()
    position = 0
    while position < len(batches):
        payload, header = batches_of.payload_of(batches, position, bytes_max=OPENED_BYTES_MAX)
        flaw, null_keys, _, _ = kernels.check_records(payload, 0, len(payload), header.records)
        if flaw:
            raise BatchCorrupt(f"records for {at} cannot be read")
        if null_keys and settings.cleanup_compact:
            raise InvalidRecord(f"{null_keys} records without a key for {at}, which is compacted")
        _check_age(payload, header, settings, now_ms=now_ms, at=at)
        codec = header.attributes & 7
        wanted = codec if settings.compression == "producer" else CODECS.index(settings.compression)
        if wanted == codec:
            kept += batches[position : position + header.size]
        else:
            kept += batches_of.rebuild(
                header, payload, count=header.records, codec=wanted, level=_level(wanted, settings)
            )
        position += header.size
    return memoryview(kept), kernels.check_batches(kept, 0, len(kept))


def _level(codec: int, settings: LogSettings) -> int | None:
    if codec == GZIP:
        return None if settings.gzip_level == _GZIP_CHOOSES else settings.gzip_level
    if codec == LZ4:
        # Kafka's clients and brokers take their default for the quickest way, and only the
        # other levels at their word.
        return None if settings.lz4_level == _LZ4_QUICKEST else settings.lz4_level
    return settings.zstd_level


def _check_age(
    payload: kernels.Buffer,
    header: kernels.BatchHeader,
    settings: LogSettings,
    *,
    now_ms: int,
    at: str,
) -> None:
    if (
        settings.timestamp_before_ms_max == _NO_LIMIT
        or settings.timestamp_type is TimestampType.APPEND
    ):
        return
    records = kernels.decode_records(
        payload, 0, len(payload), header.records, 0, header.base_timestamp, -1
    )
    oldest = min(record[1] for record in records)
    accepted = now_ms - settings.timestamp_before_ms_max
    if oldest < accepted:
        raise InvalidTimestamp(
            f"timestamp {oldest} for {at} is too old; accepted from {accepted} on "
            f"(message.timestamp.before.max.ms)"
        )
