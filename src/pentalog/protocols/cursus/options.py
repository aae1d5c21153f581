"""The options of a topic that only Cursus has, and what CREATE says of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pentalog.broker.port import Topic
from pentalog.broker.security import ANONYMOUS, ANY, Principal
from pentalog.protocols.cursus.errors import Refused, quoted
from pentalog.protocols.cursus.messages import Command, truth, whole_number

PARTITIONS_DEFAULT: Final = 4
PARTITIONS_MAX: Final = 65_535
"""With more, the two dialects of a batch could not be told apart."""
MESSAGE_BYTES_MAX: Final = 16 << 20
"""`max.message.bytes` of topics made here: what still fits the largest frame that is sent."""

_NAME: Final = re.compile(r"[A-Za-z0-9._=-]{1,249}")
_HOUR_MS: Final = 3_600_000
_CLEANUP: Final = ("delete", "compact", "delete,compact")
_PARTITIONERS: Final = ("hash_key", "round_robin")
_POLICIES: Final = ("open", "deny_write", "deny_read", "acl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    idempotent: bool = False
    event_sourcing: bool = False
    stream_partitions: int = 0
    """Over how many partitions event streams are spread; 0: all that the topic has.

    A topic that grows keeps its streams where they are.
    """
    partitioner: str = "hash_key"
    auth_policy: str = "open"
    read_acl: str = ""
    write_acl: str = ""

    def writable(self, who: Principal) -> bool:
        """Where no rules are asked, this door keeps to the topic's own policy."""
        return self.auth_policy in ("open", "deny_read") or self._lists(self.write_acl, who)

    def readable(self, who: Principal) -> bool:
        return self.auth_policy in ("open", "deny_write") or self._lists(self.read_acl, who)

    def _lists(self, names: str, who: Principal) -> bool:
        listed = names.split(",")
        return self.auth_policy == "acl" and (
            who.name in listed or (ANY in listed and who != ANONYMOUS)
        )


def options_of(kept: Mapping[str, str]) -> Options:
    return Options(
        idempotent=kept.get("idempotent") == "true",
        event_sourcing=kept.get("event_sourcing") == "true",
        stream_partitions=int(kept.get("stream_partitions", 0)),
        partitioner=kept.get("partitioner", "hash_key"),
        auth_policy=kept.get("auth_policy", "open"),
        read_acl=kept.get("read_acl", ""),
        write_acl=kept.get("write_acl", ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a CREATE asks for; None where it says nothing."""

    topic: str
    partitions: int | None
    settings: Mapping[str, str | None]
    """Of the log, by its names; None: back to the default."""
    kept: Mapping[str, str]
    """Options to remember."""
    idempotent: bool
    event_sourcing: bool


def is_name(topic: str) -> bool:
    """Can a command name it, and a list?"""
    return _NAME.fullmatch(topic) is not None and topic not in (".", "..")


def check_name(topic: str) -> None:
    if not is_name(topic):
        reason = f'topic name "{topic[:260]}" contains unsupported characters'
        if len(topic) > 249:
            reason = "topic name is longer than 249 bytes"
        raise Refused(f"invalid_topic_name topic={quoted(topic[:260])} reason={quoted(reason)}")


def wish_of(command: Command) -> Wish:
    """Read a CREATE; raises refusals."""
    topic = command.get("topic")
    if not topic:
        raise Refused('missing_topic expected="CREATE topic=<name> [partitions=<N>]"')
    check_name(topic)
    partitions = None
    if "partitions" in command.parameters:
        partitions = whole_number(command.get("partitions"))
        if partitions is None or partitions <= 0:
            raise Refused('invalid_partitions reason="must be a positive integer"')
        if partitions > PARTITIONS_MAX:
            raise Refused(f'invalid_partitions reason="at most {PARTITIONS_MAX} are accepted"')
    copies = whole_number(command.get("replication_factor", "1"))
    if copies is None or copies <= 0:
        raise Refused('invalid_replication_factor reason="must be a positive integer"')
    event_sourcing = _flag(command, "event_sourcing")
    settings = _log_settings(command, event_sourcing=event_sourcing)
    kept = {
        name: _word(command, name, words, what)
        for name, words, what in (
            ("partitioner", _PARTITIONERS, "partitioner"),
            ("auth_policy", _POLICIES, "auth policy"),
        )
        if name in command.parameters
    }
    for name in ("read_acl", "write_acl"):
        if name in command.parameters:
            kept[name] = command.get(name)[:10_000]
    return Wish(
        topic=topic,
        partitions=partitions,
        settings=settings,
        kept=kept,
        idempotent=_flag(command, "idempotent"),
        event_sourcing=event_sourcing,
    )


def _flag(command: Command, name: str) -> bool:
    found = truth(command.get(name, "false"))
    if found is None:
        raise Refused(f"invalid_{name} value={command.get(name)}")
    return found


def _word(command: Command, name: str, words: tuple[str, ...], what: str) -> str:
    value = command.get(name)
    if value not in words:
        reason = f'invalid {what} "{value[:100]}"'
        raise Refused(f"invalid_topic_policy reason={quoted(reason)}")
    return value


def _log_settings(command: Command, *, event_sourcing: bool) -> dict[str, str | None]:
    settings: dict[str, str | None] = {}
    if "cleanup_policy" in command.parameters:
        policy = _word(command, "cleanup_policy", _CLEANUP, "cleanup policy")
        if event_sourcing and "compact" in policy:
            raise Refused(
                "invalid_topic_policy field=cleanup_policy "
                'reason="compaction is not supported for event-sourcing topics"'
            )
        settings["cleanup.policy"] = policy
    for name, setting, unit in (
        ("retention_hours", "retention.ms", _HOUR_MS),
        ("retention_bytes", "retention.bytes", 1),
    ):
        if name not in command.parameters:
            continue
        value = whole_number(command.get(name))
        if value is None or value * unit >= 1 << 63:
            raise Refused(f"invalid_{name} value={command.get(name)}")
        if value < 0:
            raise Refused(f'invalid_topic_policy reason="{name} must be >= 0"')
        settings[setting] = str(value * unit) if value else None
    return settings


def policy_words(topic: Topic, options: Options) -> dict[str, str]:
    """A topic's policy by Cursus' names, in the order they are told."""
    settings = topic.settings
    cleanup = [
        word
        for word, on in (("delete", settings.cleanup_delete), ("compact", settings.cleanup_compact))
        if on
    ]
    overrides = topic.overrides
    hours = settings.retention_ms // _HOUR_MS if "retention.ms" in overrides else 0
    size = settings.retention_bytes if "retention.bytes" in overrides else 0
    return {
        "cleanup_policy": ",".join(cleanup),
        "partitioner": options.partitioner,
        "auth_policy": options.auth_policy,
        "read_acl": options.read_acl,
        "write_acl": options.write_acl,
        "retention_hours": str(max(0, hours)),
        "retention_bytes": str(max(0, size)),
    }
