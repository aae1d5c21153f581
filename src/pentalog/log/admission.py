"""What a topic lets into its log.

Uncompressed batches pass as they came: the kernel that checks their sums has walked their
records.  Compressed batches are opened, so that nothing is acknowledged that nobody can read;
so are those whose keys, times or compression the topic has rules for.  Opening is work that a
small request can make large, so it is bounded, and `open_batches` may run on any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from pentalog import kernels
from pentalog.kernels import BatchHeader, Buffer, Facts
from pentalog.model import batch as batches_of
from pentalog.model import compression
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
"""A batch on disk that unpacks to more than this cannot be read; none has been let in."""

UNLIMITED: Final = 1 << 62
"""A budget for `open_batches` that only the limits of each batch bound."""

ADMITTED_AT_ONCE_BYTES: Final = (1 << 20) + (64 << 10)
"""A budget that takes about a millisecond: what producers put into one batch by default."""

_COST: Final = {GZIP: 4}
"""Decompressing a byte takes about this many times as long as with the other codecs."""
_RECOMPRESSION_COST: Final = 32
"""And compressing it, so many times."""
_NAMED_MAX: Final = 1000
"""Records that one refusal names."""
_NO_LIMIT: Final = (1 << 63) - 1
_CONTROL: Final = 0x20
_UNCOMPRESSED: Final = 1
_GZIP_CHOOSES: Final = -1
_LZ4_QUICKEST: Final = 9

_FLAWS: Final[dict[int, tuple[type[BrokerError], str]]] = {
    kernels.FLAW_SHORT: (BatchCorrupt, "ends inside a batch"),
    kernels.FLAW_LENGTH: (BatchCorrupt, "has a batch length no batch can have"),
    kernels.FLAW_MAGIC: (UnsupportedFormat, "is not in record batch format 2"),
    kernels.FLAW_CHECKSUM: (BatchCorrupt, "does not match its checksum"),
    kernels.FLAW_COUNT: (InvalidRecord, "has another number of records than its header says"),
    kernels.FLAW_CODEC: (UnsupportedFormat, "names an unknown compression codec"),
    kernels.FLAW_RECORD: (InvalidRecord, "has a record that cannot be read"),
}


class OverBudget(Exception):
    """The batches hold more than the caller wants to open here."""


def admit(
    batches: memoryview,
    facts: Facts,
    settings: LogSettings,
    *,
    now_ms: int,
    at: str,
    opened: bool = False,
) -> tuple[memoryview, Facts]:
    """The batches as they are to be written; raises if the topic does not accept them.

    `opened`: they come from `open_batches` under these settings.
    """
    if facts.flaw:
        kind, text = _FLAWS.get(facts.flaw, (BatchCorrupt, "cannot be read"))
        raise kind(f"data for {at} {text} (at byte {facts.flaw_position})")
    if facts.attributes_any & _CONTROL:
        # The broker's own: a refused marker would leave its transaction open for good.
        return batches, facts
    if not opened:
        check_size(facts, settings, at)
        if must_open(facts, settings, now_ms):
            batches, facts = open_batches(batches, facts, settings, now_ms=now_ms, at=at)
    if settings.timestamp_type is TimestampType.APPEND:
        kernels.stamp_append_time(batches, 0, len(batches), now_ms)
        facts = facts._replace(timestamp_max=now_ms)
    elif facts.restamp:
        kernels.stamp_newest_time(batches, 0, len(batches))
    return batches, facts


def check_size(facts: Facts, settings: LogSettings, at: str) -> None:
    """Refuse batches over the topic's limit before anything is opened."""
    if facts.batch_bytes_max > settings.message_bytes_max:
        raise RecordTooLarge(
            f"batch of {facts.batch_bytes_max} bytes for {at}; "
            f"max.message.bytes accepts {settings.message_bytes_max}"
        )


def any_time(settings: LogSettings) -> LogSettings:
    """Return settings that accept records of any time."""
    return replace(settings, timestamp_before_ms_max=_NO_LIMIT, timestamp_after_ms_max=_NO_LIMIT)


def must_open(facts: Facts, settings: LogSettings, now_ms: int) -> bool:
    """Do sound batches hold what only opening them shows, or break a rule it must name?"""
    if facts.flaw or facts.attributes_any & _CONTROL:
        return False
    if facts.codecs != _UNCOMPRESSED or settings.cleanup_compact:
        return True
    if settings.compression != "producer" and settings.compression != CODECS[compression.NONE]:
        return True
    return settings.timestamp_type is TimestampType.CREATE and (
        settings.timestamp_before_ms_max != _NO_LIMIT
        or facts.timestamp_max > now_ms + settings.timestamp_after_ms_max
    )


def open_batches(
    batches: memoryview,
    facts: Facts,
    settings: LogSettings,
    *,
    now_ms: int,
    at: str,
    budget_bytes: int = UNLIMITED,
) -> tuple[memoryview, Facts]:
    """Open sound batches and check every record; raises what the topic refuses them for.

    They come back as they were, or recompressed where the topic names a codec.  Raises
    `OverBudget` before more than `budget_bytes` were opened.
    """
    kept: list[Buffer] = []
    changed = False
    position = 0
    while position < len(batches):
        header = kernels.batch_header(batches, position)
        whole = batches[position : position + header.size]
        with _payload(whole, header, at, budget_bytes) as payload:
            budget_bytes -= _cost(payload, header, settings)
            if budget_bytes < 0:
                raise OverBudget
            newest = _check_records(payload, header, settings, now_ms=now_ms, at=at)
            admitted = _admitted(whole, header, payload, newest, settings)
        changed = changed or admitted is not whole
        kept.append(admitted)
        position += header.size
    if not changed:
        return batches, facts
    made = bytearray().join(kept)
    return memoryview(made), kernels.check_batches(made, 0, len(made))


@contextmanager
def _payload(
    whole: memoryview, header: BatchHeader, at: str, budget_bytes: int
) -> Iterator[memoryview]:
    """The records of the batch, uncompressed; not to be used after the block."""
    codec = header.attributes & batches_of.CODEC_MASK
    body = whole[batches_of.HEADER_BYTES :]
    if codec == compression.NONE:
        yield body
        return
    bytes_max = compression.opened_bytes_max(header.size)
    here_max = min(bytes_max, budget_bytes // _COST.get(codec, 1))
    with ExitStack() as opened:
        try:
            content = compression.opened(codec, body, bytes_max=here_max)
            payload = opened.enter_context(content)
        except RecordTooLarge as refusal:
            if here_max < bytes_max:
                raise OverBudget from refusal
            raise RecordTooLarge(
                f"a compressed batch of {header.size} bytes for {at} holds more than {bytes_max} "
                "bytes; send smaller batches"
            ) from refusal
        except BatchCorrupt as refusal:
            raise InvalidRecord(f"a batch for {at} cannot be decompressed") from refusal
        yield payload


def _cost(payload: memoryview, header: BatchHeader, settings: LogSettings) -> int:
    """What a batch takes of the budget, in bytes that are quick to decompress."""
    codec = header.attributes & batches_of.CODEC_MASK
    cost = _COST.get(codec, 1)
    if _wanted(codec, settings) != codec:
        cost += _RECOMPRESSION_COST
    return cost * len(payload)


def _wanted(codec: int, settings: LogSettings) -> int:
    return codec if settings.compression == "producer" else CODECS.index(settings.compression)


def _admitted(
    whole: memoryview, header: BatchHeader, payload: memoryview, newest: int, settings: LogSettings
) -> Buffer:
    """The batch as it is to be written, which is `whole` where nothing has to change."""
    codec = header.attributes & batches_of.CODEC_MASK
    wanted = _wanted(codec, settings)
    timestamp = None if header.attributes & batches_of.APPEND_TIME else newest
    if wanted != codec:
        return batches_of.rebuild(
            header,
            payload,
            count=header.records,
            codec=wanted,
            level=_level(wanted, settings),
            max_timestamp=timestamp,
        )
    if timestamp is not None and timestamp != header.max_timestamp:
        return batches_of.restamped(whole, timestamp)
    return whole


def _check_records(
    payload: Buffer, header: BatchHeader, settings: LogSettings, *, now_ms: int, at: str
) -> int:
    """Walk the records; returns the time of the newest, or raises what they are refused for."""
    flaw, null_keys, earliest, latest = kernels.check_records(
        payload, 0, len(payload), header.records
    )
    if flaw:
        kind, text = _FLAWS[flaw]
        raise kind(f"data for {at} {text}")
    low, high = -_NO_LIMIT, _NO_LIMIT
    if settings.timestamp_type is TimestampType.CREATE:
        high = min(_NO_LIMIT, now_ms + settings.timestamp_after_ms_max)
        if settings.timestamp_before_ms_max != _NO_LIMIT:
            low = now_ms - settings.timestamp_before_ms_max
    base = header.base_timestamp
    if header.attributes & batches_of.APPEND_TIME:
        earliest = latest = 0
        base = header.max_timestamp
    keyed = bool(null_keys) and settings.cleanup_compact
    if keyed or base + earliest < low or base + latest > high:
        refused = kernels.refused_records(
            payload,
            0,
            len(payload),
            header.records,
            base_timestamp=base,
            timestamp_min=low,
            timestamp_max=high,
            keyed=keyed,
            most=_NAMED_MAX,
        )
        if refused:
            raise _refusal(refused, low, high, at)
    return max(-1, base + latest)


def _refusal(refused: Sequence[tuple[int, int]], low: int, high: int, at: str) -> BrokerError:
    """Names the records at fault, as Kafka does."""
    named: list[tuple[int, str]] = []
    late = 0
    for index, timestamp in refused:
        if timestamp != -1 and not low <= timestamp <= high:
            late += 1
            named.append((index, f"timestamp {timestamp} is outside {low}..{high}"))
        else:
            named.append((index, "no key: a compacted topic accepts records with a key only"))
    if late:
        return InvalidTimestamp(
            f"{late} records for {at} with timestamps outside {low}..{high}, which "
            "message.timestamp.before.max.ms and message.timestamp.after.max.ms accept; "
            f"the first is {refused[0][1]}",
            records=named,
        )
    return InvalidRecord(
        f"{len(named)} records without a key for {at}, which is compacted; give each a key",
        records=named,
    )


def _level(codec: int, settings: LogSettings) -> int | None:
    if codec == GZIP:
        return None if settings.gzip_level == _GZIP_CHOOSES else settings.gzip_level
    if codec == LZ4:
        # Kafka's clients and brokers take their default for the quickest way, and only the
        # other levels at their word.
        return None if settings.lz4_level == _LZ4_QUICKEST else settings.lz4_level
    return settings.zstd_level
