"""Tables of the state file, and the steps that bring an older file to the newest version."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final


def _create_first_tables(database: sqlite3.Connection) -> None:
    for sql in (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE topics (name TEXT PRIMARY KEY, topic_id BLOB NOT NULL,"
        " partitions INTEGER NOT NULL, created_ms INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE topic_settings (topic TEXT NOT NULL, name TEXT NOT NULL,"
        " value TEXT NOT NULL, PRIMARY KEY (topic, name)) WITHOUT ROWID",
        "CREATE TABLE deleted_topics (topic_id BLOB PRIMARY KEY,"
        " deleted_ms INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE producer_id_blocks (lane INTEGER PRIMARY KEY, next_id INTEGER NOT NULL)",
    ):
        database.execute(sql)


def _create_group_tables(database: sqlite3.Connection) -> None:
    place = "grp TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL"
    value = (
        "next_offset INTEGER NOT NULL, leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL,"
        " committed_ms INTEGER NOT NULL, expire_ms INTEGER NOT NULL"
    )
    for sql in (
        f"CREATE TABLE offsets ({place}, {value}, PRIMARY KEY (grp, topic, partition))"
        " WITHOUT ROWID",
        f"CREATE TABLE staged_offsets (producer_id INTEGER NOT NULL, {place}, {value},"
        " PRIMARY KEY (producer_id, grp, topic, partition)) WITHOUT ROWID",
        "CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL,"
        " protocol_type TEXT NOT NULL, protocol TEXT, leader TEXT,"
        " changed_ms INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE group_members (grp TEXT NOT NULL, member_id TEXT NOT NULL,"
        " instance_id TEXT, client_id TEXT NOT NULL, client_host TEXT NOT NULL,"
        " session_timeout_ms INTEGER NOT NULL, rebalance_timeout_ms INTEGER NOT NULL,"
        " metadata BLOB NOT NULL, topics TEXT, assignment BLOB NOT NULL,"
        " PRIMARY KEY (grp, member_id)) WITHOUT ROWID",
    ):
        database.execute(sql)


def _create_operation_tables(database: sqlite3.Connection) -> None:
    for sql in (
        "CREATE TABLE quotas (owner TEXT NOT NULL, name TEXT NOT NULL, value REAL NOT NULL,"
        " PRIMARY KEY (owner, name)) WITHOUT ROWID",
        "CREATE TABLE broker_settings (layer TEXT NOT NULL, name TEXT NOT NULL,"
        " value TEXT NOT NULL, PRIMARY KEY (layer, name)) WITHOUT ROWID",
    ):
        database.execute(sql)


def _create_transactions(database: sqlite3.Connection) -> None:
    database.execute(
        "CREATE TABLE transactions (name TEXT PRIMARY KEY, producer_id INTEGER NOT NULL,"
        " epoch INTEGER NOT NULL, previous_id INTEGER NOT NULL, last_epoch INTEGER NOT NULL,"
        " next_id INTEGER NOT NULL, timeout_ms INTEGER NOT NULL, phase TEXT NOT NULL,"
        " bumps INTEGER NOT NULL, participants TEXT NOT NULL, updated_ms INTEGER NOT NULL)"
        " WITHOUT ROWID"
    )


def _create_consumer_tables(database: sqlite3.Connection) -> None:
    for sql in (
        "CREATE TABLE consumer_groups (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL,"
        " plan_epoch INTEGER NOT NULL, plan TEXT NOT NULL, sizes TEXT NOT NULL,"
        " changed_ms INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE consumer_members (grp TEXT NOT NULL, member_id TEXT NOT NULL,"
        " fields TEXT NOT NULL, PRIMARY KEY (grp, member_id)) WITHOUT ROWID",
    ):
        database.execute(sql)


def _create_rules(database: sqlite3.Connection) -> None:
    database.execute(
        "CREATE TABLE rules (kind TEXT NOT NULL, name TEXT NOT NULL, prefixed INTEGER NOT NULL,"
        " principal TEXT NOT NULL, host TEXT NOT NULL, operation TEXT NOT NULL,"
        " allowed INTEGER NOT NULL,"
        " PRIMARY KEY (kind, name, prefixed, principal, host, operation, allowed)) WITHOUT ROWID"
    )


def _create_users(database: sqlite3.Connection) -> None:
    for sql in (
        "CREATE TABLE verifiers (name TEXT NOT NULL, mechanism TEXT NOT NULL, salt BLOB NOT NULL,"
        " stored_key BLOB NOT NULL, server_key BLOB NOT NULL, iterations INTEGER NOT NULL,"
        " PRIMARY KEY (name, mechanism)) WITHOUT ROWID",
        "CREATE TABLE keys (digest TEXT PRIMARY KEY, name TEXT NOT NULL, label TEXT NOT NULL,"
        " created_ms INTEGER NOT NULL) WITHOUT ROWID",
    ):
        database.execute(sql)


def _create_subscriptions(database: sqlite3.Connection) -> None:
    for sql in (
        "CREATE TABLE subscription_ids (lane INTEGER PRIMARY KEY, next_id INTEGER NOT NULL)",
        "CREATE TABLE subscriptions (subscription_id INTEGER PRIMARY KEY, topic TEXT NOT NULL,"
        " topic_id BLOB NOT NULL, leased INTEGER NOT NULL, used_ms INTEGER NOT NULL)",
        "CREATE TABLE subscription_windows (subscription_id INTEGER NOT NULL,"
        " partition INTEGER NOT NULL, first_offset INTEGER NOT NULL,"
        " floor_offset INTEGER NOT NULL, states BLOB NOT NULL,"
        " PRIMARY KEY (subscription_id, partition)) WITHOUT ROWID",
    ):
        database.execute(sql)


def _create_sourcing_tables(database: sqlite3.Connection) -> None:
    for sql in (
        "CREATE TABLE named_producers (name BLOB PRIMARY KEY, epoch INTEGER NOT NULL,"
        " number INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE shared_rosters (grp TEXT NOT NULL, topic TEXT NOT NULL,"
        " generation INTEGER NOT NULL, changed_ms INTEGER NOT NULL,"
        " PRIMARY KEY (grp, topic)) WITHOUT ROWID",
        "CREATE TABLE topic_options (topic TEXT NOT NULL, name TEXT NOT NULL,"
        " value TEXT NOT NULL, PRIMARY KEY (topic, name)) WITHOUT ROWID",
        "CREATE TABLE aggregates (topic TEXT NOT NULL, partition INTEGER NOT NULL,"
        " key BLOB NOT NULL, version INTEGER NOT NULL, first_offset INTEGER NOT NULL,"
        " next_offset INTEGER NOT NULL, PRIMARY KEY (topic, partition, key)) WITHOUT ROWID",
        "CREATE TABLE aggregate_marks (topic TEXT NOT NULL, partition INTEGER NOT NULL,"
        " next_offset INTEGER NOT NULL, PRIMARY KEY (topic, partition)) WITHOUT ROWID",
        "CREATE TABLE snapshots (topic TEXT NOT NULL, key BLOB NOT NULL,"
        " version INTEGER NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (topic, key))"
        " WITHOUT ROWID",
    ):
        database.execute(sql)


def _create_smart_modules(database: sqlite3.Connection) -> None:
    database.execute(
        "CREATE TABLE smart_modules (name TEXT PRIMARY KEY, wasm BLOB NOT NULL,"
        " package BLOB NOT NULL) WITHOUT ROWID"
    )


def _create_group_settings(database: sqlite3.Connection) -> None:
    database.execute(
        "CREATE TABLE group_settings (grp TEXT NOT NULL, name TEXT NOT NULL,"
        " value INTEGER NOT NULL, PRIMARY KEY (grp, name)) WITHOUT ROWID"
    )


def _create_tokens(database: sqlite3.Connection) -> None:
    database.execute(
        "CREATE TABLE tokens (token_id TEXT PRIMARY KEY, owner TEXT NOT NULL,"
        " requester TEXT NOT NULL, renewers TEXT NOT NULL, issued_ms INTEGER NOT NULL,"
        " expires_ms INTEGER NOT NULL, expires_ms_max INTEGER NOT NULL) WITHOUT ROWID"
    )


def _number_offsets(database: sqlite3.Connection) -> None:
    """Number commits in their order; rows written so far have only their times to go by."""
    older = {
        "offsets": "other.committed_ms < offsets.committed_ms",
        "staged_offsets": "(other.committed_ms, other.producer_id)"
        " <= (staged_offsets.committed_ms, staged_offsets.producer_id)",
    }
    for table, before in older.items():
        database.execute(f"ALTER TABLE {table} ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0")
        database.execute(
            f"UPDATE {table} SET sequence = (SELECT count(*) FROM staged_offsets AS other"
            f" WHERE other.grp = {table}.grp AND other.topic = {table}.topic"
            f" AND other.partition = {table}.partition AND {before})"
        )


def _reserve_deliveries(database: sqlite3.Connection) -> None:
    database.execute(
        "ALTER TABLE subscription_windows ADD COLUMN reserved_offset INTEGER NOT NULL DEFAULT 0"
    )


def _create_enlisted(database: sqlite3.Connection) -> None:
    database.execute(
        "CREATE TABLE enlisted (name TEXT NOT NULL, number INTEGER NOT NULL,"
        " participants TEXT NOT NULL, PRIMARY KEY (name, number)) WITHOUT ROWID"
    )


def _own_subscriptions(database: sqlite3.Connection) -> None:
    database.execute("ALTER TABLE subscriptions ADD COLUMN owner TEXT")


def _own_producer_names(database: sqlite3.Connection) -> None:
    """Names written so far belong to no principal: the next that uses one gets it."""
    database.execute("ALTER TABLE named_producers ADD COLUMN owner TEXT NOT NULL DEFAULT ''")


MIGRATIONS: Final[tuple[Callable[[sqlite3.Connection], None], ...]] = (
    _create_first_tables,
    _create_group_tables,
    _create_operation_tables,
    _create_transactions,
    _create_consumer_tables,
    _create_rules,
    _create_users,
    _create_subscriptions,
    _create_sourcing_tables,
    _create_smart_modules,
    _create_group_settings,
    _create_tokens,
    _number_offsets,
    _reserve_deliveries,
    _create_enlisted,
    _own_subscriptions,
    _own_producer_names,
)
"""Step n brings a file from version n to n + 1.  Steps are never changed once released."""
