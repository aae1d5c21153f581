"""Subscriptions in the state file: one row each, and one for each of their partitions."""

from __future__ import annotations

import logging
import zlib
from typing import Final, NamedTuple
from uuid import UUID

from pentalog.broker.needs import Rows
from pentalog.broker.windows import WINDOW_OFFSETS_MAX, Window
from pentalog.model.errors import StorageFailed
from pentalog.model.types import Offset, Partition

_log: Final = logging.getLogger(__name__)

FIRST_ID: Final = 2
"""The original's self-test has taken 1 when its first client subscribes."""
_LEVEL: Final = 1


class SubscriptionRow(NamedTuple):
    subscription_id: int
    topic: str
    topic_id: UUID
    leased: bool
    used_ms: int
    owner: str | None = None
    """The principal that opened it; None: it was opened before owners were kept."""


class WindowRow(NamedTuple):
    subscription_id: int
    partition: int
    first: int
    floor: int
    states: bytearray
    reserved: int
    """Everything before this may have been delivered, whatever the states say."""


def read(state: Rows) -> tuple[int, list[SubscriptionRow], list[WindowRow]]:
    """(the next id, subscriptions, windows)."""
    found = state.rows("SELECT next_id FROM subscription_ids WHERE lane = 0")
    subscriptions = [
        SubscriptionRow(number, topic, UUID(bytes=topic_id), bool(leased), used_ms, owner)
        for number, topic, topic_id, leased, used_ms, owner in state.rows(
            "SELECT subscription_id, topic, topic_id, leased, used_ms, owner FROM subscriptions"
        )
    ]
    windows = [
        WindowRow(number, partition, first, floor, _unpack(number, packed), reserved)
        for number, partition, first, floor, packed, reserved in state.rows(
            "SELECT subscription_id, partition, first_offset, floor_offset, states,"
            " reserved_offset FROM subscription_windows ORDER BY subscription_id, partition"
        )
    ]
    return (found[0][0] if found else FIRST_ID), subscriptions, windows


def write_next_id(state: Rows, next_id: int) -> None:
    state.write("INSERT OR REPLACE INTO subscription_ids VALUES (0, ?)", next_id)


def write(state: Rows, row: SubscriptionRow) -> None:
    number, topic, topic_id, leased, used_ms, owner = row
    state.write(
        "INSERT OR REPLACE INTO subscriptions VALUES (?, ?, ?, ?, ?, ?)",
        number,
        topic,
        topic_id.bytes,
        int(leased),
        used_ms,
        owner,
    )


def write_window(state: Rows, row: WindowRow) -> None:
    packed = zlib.compress(row.states, _LEVEL) if row.states else b""
    state.write(
        "INSERT OR REPLACE INTO subscription_windows VALUES (?, ?, ?, ?, ?, ?)",
        row.subscription_id,
        row.partition,
        row.first,
        row.floor,
        packed,
        row.reserved,
    )


def restore_window(state: Rows, at: Partition, row: WindowRow, end: Offset) -> Window:
    """A window as an earlier life left it, of a partition that ends at `end`."""
    # The window may start after records that a power cut removed.  New records reuse their
    # offsets, so the row is corrected too: after another crash it would skip the new ones.
    first, floor = min(row.first, end), min(row.floor, end)
    states = row.states[: max(0, end - row.floor)]
    if (first, floor, states) != (row.first, row.floor, row.states):
        row = row._replace(first=first, floor=floor, states=states)
        write_window(state, row)
    window = Window(at, first, floor, states)
    window.restore()
    window.inherited = min(window.cursor, end)
    window.reserved = window.reserved_end = row.reserved
    window.reserved_at = window.cursor
    window.doubtful_end = min(row.reserved, end)
    if window.doubtful_end > window.cursor:
        _log.info(
            "subscription %d: of %d records of %s from offset %d on, those of quality 0 may "
            "have been delivered before the crash and are passed over",
            row.subscription_id,
            window.doubtful_end - window.cursor,
            at,
            window.cursor,
        )
    return window


def delete(state: Rows, subscription_id: int) -> None:
    state.write("DELETE FROM subscriptions WHERE subscription_id = ?", subscription_id)
    state.write("DELETE FROM subscription_windows WHERE subscription_id = ?", subscription_id)


def _unpack(number: int, packed: bytes) -> bytearray:
    if not packed:
        return bytearray()
    reader = zlib.decompressobj()
    try:
        return bytearray(reader.decompress(packed, 2 * WINDOW_OFFSETS_MAX))
    except zlib.error as error:
        raise StorageFailed(
            f"the states of subscription {number} cannot be read: {error}; restore the state file"
        ) from error
