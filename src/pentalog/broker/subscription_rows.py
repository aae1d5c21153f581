"""Subscriptions in the state file: one row each, and one for each of their partitions."""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple
from uuid import UUID

from pentalog.broker.needs import Rows
from pentalog.broker.windows import WINDOW_OFFSETS_MAX
from pentalog.model.errors import StorageFailed

FIRST_ID: Final = 2
"""The original's self-test has taken 1 when its first client subscribes."""
_LEVEL: Final = 1


class SubscriptionRow(NamedTuple):
    subscription_id: int
    topic: str
    topic_id: UUID
    leased: bool
    used_ms: int


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
        SubscriptionRow(number, topic, UUID(bytes=topic_id), bool(leased), used_ms)
        for number, topic, topic_id, leased, used_ms in state.rows(
            "SELECT subscription_id, topic, topic_id, leased, used_ms FROM subscriptions"
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
    number, topic, topic_id, leased, used_ms = row
    state.write(
        "INSERT OR REPLACE INTO subscriptions VALUES (?, ?, ?, ?, ?)",
        number,
        topic,
        topic_id.bytes,
        int(leased),
        used_ms,
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
