"""Kafka's error codes, and which of them each refusal of the core becomes.

The codes are those of the running broker: the published table names 48 to 54 one too low.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pentalog.model import errors
from pentalog.model.kio_schemas import ErrorCode

__all__ = ["ERROR_CODES", "REFUSALS", "Denied", "ErrorCode", "Refused", "code_of"]

ERROR_CODES: Final[Mapping[type[errors.BrokerError], ErrorCode]] = {
    errors.TopicNotFound: ErrorCode.unknown_topic_or_partition,
    errors.PartitionNotFound: ErrorCode.unknown_topic_or_partition,
    errors.TopicExists: ErrorCode.topic_already_exists,
    errors.InvalidTopic: ErrorCode.invalid_topic_exception,
    errors.InvalidPartitions: ErrorCode.invalid_partitions,
    errors.InvalidConfig: ErrorCode.invalid_config,
    errors.OffsetOutOfRange: ErrorCode.offset_out_of_range,
    errors.RecordTooLarge: ErrorCode.message_too_large,
    errors.BatchCorrupt: ErrorCode.corrupt_message,
    errors.InvalidRecord: ErrorCode.invalid_record,
    errors.InvalidTimestamp: ErrorCode.invalid_timestamp,
    errors.UnsupportedFormat: ErrorCode.unsupported_for_message_format,
    errors.StorageFailed: ErrorCode.kafka_storage_error,
    errors.StorageFull: ErrorCode.kafka_storage_error,
    errors.NotEnoughReplicas: ErrorCode.not_enough_replicas,
    errors.ProducerFenced: ErrorCode.invalid_producer_epoch,
    errors.OutOfSequence: ErrorCode.out_of_order_sequence_number,
    errors.UnknownProducer: ErrorCode.unknown_producer_id,
    errors.TransactionState: ErrorCode.invalid_txn_state,
    errors.TransactionUnknown: ErrorCode.invalid_producer_id_mapping,
    errors.TransactionBusy: ErrorCode.concurrent_transactions,
    errors.InvalidTransactionTimeout: ErrorCode.invalid_transaction_timeout,
    errors.Unauthorized: ErrorCode.topic_authorization_failed,
    errors.UserNotFound: ErrorCode.resource_not_found,
    errors.Overloaded: ErrorCode.throttling_quota_exceeded,
    errors.InvalidGroup: ErrorCode.invalid_group_id,
    errors.GroupNotFound: ErrorCode.group_id_not_found,
    errors.GroupNotEmpty: ErrorCode.non_empty_group,
    errors.GroupFull: ErrorCode.group_max_size_reached,
    errors.GroupInconsistent: ErrorCode.inconsistent_group_protocol,
    errors.OffsetsFull: ErrorCode.invalid_commit_offset_size,
    errors.GroupSubscribed: ErrorCode.group_subscribed_to_topic,
    errors.MemberIdRequired: ErrorCode.member_id_required,
    errors.UnknownMember: ErrorCode.unknown_member_id,
    errors.StaleGeneration: ErrorCode.illegal_generation,
    errors.Rebalancing: ErrorCode.rebalance_in_progress,
    errors.InstanceFenced: ErrorCode.fenced_instance_id,
    errors.InvalidSessionTimeout: ErrorCode.invalid_session_timeout,
    errors.Stopping: ErrorCode.coordinator_not_available,
    errors.OffsetsUnstable: ErrorCode.unstable_offset_commit,
    errors.MemberEpochFenced: ErrorCode.fenced_member_epoch,
    errors.MemberEpochStale: ErrorCode.stale_member_epoch,
    errors.InstanceUnreleased: ErrorCode.unreleased_instance_id,
    errors.UnsupportedAssignor: ErrorCode.unsupported_assignor,
    errors.UnsupportedVersion: ErrorCode.unsupported_version,
    errors.InvalidPattern: ErrorCode.invalid_regular_expression,
    errors.SmartModuleNotFound: ErrorCode.invalid_config,
    errors.SmartModuleInvalid: ErrorCode.invalid_config,
}


class Refused(Exception):
    """A refusal only Kafka's protocol knows; the core has no word for it."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Denied(errors.Unauthorized):
    """A rule refuses; the code says what kind of thing it protects."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


REFUSALS: Final = (errors.BrokerError, Refused)
"""What may come out of serving one partition or topic, to be caught."""


def code_of(refusal: Exception) -> int:
    """The code of a refusal."""
    if isinstance(refusal, Refused | Denied):
        return int(refusal.code)
    return int(_CODES.get(type(refusal), ErrorCode.unknown_server_error))


_CODES: Final[Mapping[type, ErrorCode]] = dict(ERROR_CODES)
