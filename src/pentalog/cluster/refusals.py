"""What goes wrong between this engine and its cluster, and what doors are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pentalog.model import errors
from pentalog.model.errors import BrokerError
from pentalog.model.kio_schemas import ErrorCode


class Trouble(BrokerError):
    """Never leaves this package: `told` makes of it what doors know."""

    retriable = True


class Lost(Trouble):
    """No connection, or none any more; whether the other side has acted is not known."""


class Refused(Trouble):
    """A node's refusal of one request, or of a part of it."""

    def __init__(self, doing: str, code: ErrorCode, text: str | None = None) -> None:
        name, why = code.name.upper(), text or _LIKELY.get(code)
        super().__init__(f"{doing}: the cluster says {f'{name}: {why}' if why else name}")
        self.code = code
        self.retriable = bool(code.retriable)


_LIKELY: Final = {
    ErrorCode.invalid_record: "a compacted topic takes no record without a key",
}
"""Why nodes refuse, where they do not say it themselves."""
_TOLD: Final[Mapping[ErrorCode, type[BrokerError]]] = {
    ErrorCode.corrupt_message: errors.BatchCorrupt,
    ErrorCode.unknown_topic_or_partition: errors.TopicNotFound,
    ErrorCode.unknown_topic_id: errors.TopicNotFound,
    ErrorCode.message_too_large: errors.RecordTooLarge,
    ErrorCode.record_list_too_large: errors.RecordTooLarge,
    ErrorCode.invalid_topic_exception: errors.InvalidTopic,
    ErrorCode.not_enough_replicas: errors.NotEnoughReplicas,
    ErrorCode.not_enough_replicas_after_append: errors.NotEnoughReplicas,
    ErrorCode.topic_authorization_failed: errors.Unauthorized,
    ErrorCode.group_authorization_failed: errors.Unauthorized,
    ErrorCode.cluster_authorization_failed: errors.Unauthorized,
    ErrorCode.topic_already_exists: errors.TopicExists,
    ErrorCode.invalid_partitions: errors.InvalidPartitions,
    ErrorCode.invalid_replication_factor: errors.NotEnoughReplicas,
    ErrorCode.invalid_config: errors.InvalidConfig,
    ErrorCode.policy_violation: errors.InvalidConfig,
    ErrorCode.invalid_timestamp: errors.InvalidTimestamp,
    ErrorCode.invalid_record: errors.InvalidRecord,
    ErrorCode.unsupported_for_message_format: errors.UnsupportedFormat,
    ErrorCode.unsupported_compression_type: errors.UnsupportedFormat,
    ErrorCode.kafka_storage_error: errors.StorageFailed,
    ErrorCode.out_of_order_sequence_number: errors.OutOfSequence,
    ErrorCode.unknown_producer_id: errors.UnknownProducer,
    ErrorCode.invalid_producer_epoch: errors.ProducerFenced,
    ErrorCode.producer_fenced: errors.ProducerFenced,
    ErrorCode.invalid_group_id: errors.InvalidGroup,
    ErrorCode.group_id_not_found: errors.GroupNotFound,
    ErrorCode.non_empty_group: errors.GroupNotEmpty,
    ErrorCode.unknown_member_id: errors.UnknownMember,
    ErrorCode.illegal_generation: errors.StaleGeneration,
    ErrorCode.rebalance_in_progress: errors.Rebalancing,
    ErrorCode.unstable_offset_commit: errors.OffsetsUnstable,
    ErrorCode.group_subscribed_to_topic: errors.GroupSubscribed,
    ErrorCode.group_max_size_reached: errors.GroupFull,
    ErrorCode.fenced_member_epoch: errors.MemberEpochFenced,
    ErrorCode.stale_member_epoch: errors.MemberEpochStale,
    ErrorCode.duplicate_sequence_number: errors.OutOfSequence,
    ErrorCode.inconsistent_group_protocol: errors.GroupInconsistent,
    ErrorCode.unsupported_assignor: errors.UnsupportedAssignor,
    ErrorCode.invalid_txn_state: errors.TransactionState,
    ErrorCode.invalid_producer_id_mapping: errors.TransactionUnknown,
    ErrorCode.transactional_id_not_found: errors.TransactionUnknown,
    ErrorCode.invalid_transaction_timeout: errors.InvalidTransactionTimeout,
    ErrorCode.concurrent_transactions: errors.TransactionBusy,
    ErrorCode.transactional_id_authorization_failed: errors.Unauthorized,
}


def told(refusal: BrokerError) -> BrokerError:
    """The refusal as doors know it."""
    if isinstance(refusal, Refused):
        return _TOLD.get(refusal.code, errors.Overloaded)(str(refusal))
    if isinstance(refusal, Trouble):
        return errors.Overloaded(f"{refusal}; try again when the cluster is back")
    return refusal


def check(doing: str, code: ErrorCode, text: str | None = None) -> None:
    """Raise what a node refused."""
    if code:
        raise Refused(doing, code, text)
