"""Cursus' error codes, the class of each, and which of them each refusal of the core becomes.

An error is a line `ERROR: code field=value ...`; clients look for words in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pentalog.model import errors
from pentalog.model.later import Later

ERROR_CODES: Final[Mapping[type[errors.BrokerError], str]] = {
    errors.TopicNotFound: "topic_not_found",
    errors.PartitionNotFound: "partition_not_found",
    errors.TopicExists: "create_topic_failed",
    errors.InvalidTopic: "invalid_topic_name",
    errors.InvalidPartitions: "invalid_partitions",
    errors.InvalidConfig: "invalid_topic_policy",
    errors.OffsetOutOfRange: "OFFSET_OUT_OF_RANGE",
    errors.RecordTooLarge: "invalid_payload",
    errors.BatchCorrupt: "batch_decode_failed",
    errors.InvalidRecord: "invalid_payload",
    errors.InvalidTimestamp: "invalid_payload",
    errors.UnsupportedFormat: "batch_decode_failed",
    errors.StorageFailed: "broker_error",
    errors.StorageFull: "broker_error",
    errors.NotEnoughReplicas: "broker_error",
    errors.ProducerFenced: "producer_fenced",
    errors.OutOfSequence: "broker_error",
    errors.UnknownProducer: "broker_error",
    errors.TransactionState: "transaction_not_found",
    errors.TransactionUnknown: "transaction_not_found",
    errors.TransactionBusy: "transaction_manager_not_available",
    errors.InvalidTransactionTimeout: "invalid_transaction_timeout",
    errors.Unauthorized: "NOT_AUTHORIZED_FOR_OPERATION",
    errors.Overloaded: "broker_error",
    errors.InvalidGroup: "invalid_group",
    errors.GroupNotFound: "group_not_found",
    errors.GroupNotEmpty: "broker_error",
    errors.GroupFull: "broker_error",
    errors.GroupInconsistent: "topic_not_assigned_to_group",
    errors.OffsetsFull: "broker_error",
    errors.GroupSubscribed: "broker_error",
    errors.MemberIdRequired: "member_not_found",
    errors.UnknownMember: "member_not_found",
    errors.StaleGeneration: "GEN_MISMATCH",
    errors.Rebalancing: "GEN_MISMATCH",
    errors.InstanceFenced: "member_not_found",
    errors.InvalidSessionTimeout: "broker_error",
    errors.Stopping: "coordinator_not_available",
    errors.OffsetsUnstable: "offset_manager_not_available",
    errors.MemberEpochFenced: "GEN_MISMATCH",
    errors.MemberEpochStale: "GEN_MISMATCH",
    errors.InstanceUnreleased: "member_not_found",
    errors.UnsupportedAssignor: "broker_error",
    errors.UnsupportedVersion: "broker_error",
    errors.InvalidPattern: "invalid_topic_name",
    errors.UserNotFound: "authentication_failed",
    errors.SmartModuleNotFound: "broker_error",
    errors.SmartModuleInvalid: "broker_error",
}

_CODES: Final[Mapping[type, str]] = dict(ERROR_CODES)

_CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "routing": frozenset({"NOT_COORDINATOR", "NOT_LEADER", "NOT_PARTITION_LEADER"}),
    "availability": frozenset(
        {
            "coordinator_not_available", "offset_manager_not_available", "no_raft_leader",
            "leader_not_found", "request_cancelled", "cluster_not_available",
            "transaction_manager_not_available", "transaction_sync_failed",
            "transaction_commit_failed",
        }
    ),
    "fencing": frozenset(
        {
            "GEN_MISMATCH", "NOT_OWNER", "member_not_found", "producer_fenced",
            "stale_producer_epoch", "STALE_LEADER_EPOCH", "REBALANCE_REQUIRED",
        }
    ),
    "conflict": frozenset(
        {
            "OFFSET_OUT_OF_RANGE", "offset_regression", "version_conflict",
            "snapshot_version_exceeds_stream", "topic_not_assigned_to_group",
            "producer_reinitialization_required", "transaction_aborted",
            "transaction_already_committed", "transaction_not_abortable",
        }
    ),
    "authorization": frozenset(
        {
            "authentication_failed", "authentication_required",
            "internal_command_unauthorized", "internal_topic_write_forbidden",
            "transaction_metadata_forbidden",
        }
    ),
    "not_found": frozenset(
        {"topic_not_found", "partition_not_found", "group_not_found", "transaction_not_found"}
    ),
    "validation": frozenset(
        {
            "unknown_command", "decode_failed", "batch_decode_failed", "duplicate_partition",
            "no_valid_offsets", "event_sourcing_not_enabled", "message_too_large",
        }
    ),
}  # fmt: skip
_RETRYABLE: Final = frozenset({"routing", "availability"})
_BY_CODE: Final = {code: name for name, codes in _CLASSES.items() for code in codes}
_STARTS: Final = (
    ("NOT_AUTHORIZED_FOR_", "authorization"),
    ("missing_", "validation"),
    ("invalid_", "validation"),
    ("empty_", "validation"),
    ("malformed_", "validation"),
    ("UNSUPPORTED_", "validation"),
    ("distribution_", "validation"),
)

ERROR_CLASSES: Final = tuple(sorted({*_CLASSES, "internal"}))


class Refused(Exception):
    """A refusal in Cursus' own words: everything behind `ERROR: `."""


class Unsettled(Exception):
    """A refusal whose text names an offset: answered once that offset is durable."""

    def __init__(self, settled: Later[Any], text: Callable[[Any], str]) -> None:
        super().__init__("an offset that is not durable yet")
        self.settled = settled
        self.text = text


def class_of(code: str) -> str:
    """The class of a code, for clients that asked to be told."""
    found = _BY_CODE.get(code)
    if found is not None:
        return found
    for start, name in _STARTS:
        if code.startswith(start):
            return name
    return "internal"


def structured(text: str) -> str:
    """The same error with its class and whether to try again, right behind the code."""
    code, space, rest = text.partition(" ")
    if rest.startswith("class="):
        return text
    name = class_of(code)
    retryable = "true" if name in _RETRYABLE else "false"
    return f"{code} class={name} retryable={retryable}{space}{rest}"


def explain(refusal: Exception) -> str:
    """What stands behind `ERROR: ` for any refusal."""
    if isinstance(refusal, Refused):
        return str(refusal)
    if isinstance(refusal, errors.OffsetOutOfRange):
        return f"OFFSET_OUT_OF_RANGE earliest={refusal.start} latest={refusal.end}"
    return f"{_CODES.get(type(refusal), 'broker_error')} reason={quoted(str(refusal))}"


def quoted(text: str) -> str:
    """A value that may hold blanks."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '"'


def shown(name: str) -> str:
    """A name that was sent, as it may stand in an answer."""
    name = name[:260]
    return name if name.isprintable() and " " not in name and '"' not in name else quoted(name)


def plain(text: str) -> str:
    """An error as it may stand inside JSON: one client's reader stops at the first quote."""
    return text.replace('\\"', "'").replace('"', "'").replace("\\", "/")


REFUSALS: Final = (errors.BrokerError, Refused, Unsettled)
