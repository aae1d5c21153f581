"""Which code of BlipMQ each refusal of the core becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pentalog.model import errors

UNKNOWN_TAG: Final = "unknown subscription or delivery tag"
UNAUTHENTICATED: Final = "unauthenticated"

ERROR_CODES: Final[Mapping[type[errors.BrokerError], int]] = {
    errors.TopicNotFound: 404,
    errors.PartitionNotFound: 404,
    errors.TopicExists: 400,
    errors.InvalidTopic: 400,
    errors.InvalidPartitions: 400,
    errors.InvalidConfig: 400,
    errors.OffsetOutOfRange: 400,
    errors.RecordTooLarge: 500,
    errors.BatchCorrupt: 400,
    errors.InvalidRecord: 400,
    errors.InvalidTimestamp: 400,
    errors.UnsupportedFormat: 400,
    errors.StorageFailed: 500,
    errors.StorageFull: 500,
    errors.NotEnoughReplicas: 500,
    errors.ProducerFenced: 500,
    errors.OutOfSequence: 400,
    errors.UnknownProducer: 404,
    errors.TransactionState: 500,
    errors.TransactionUnknown: 404,
    errors.TransactionBusy: 500,
    errors.InvalidTransactionTimeout: 400,
    errors.Unauthorized: 401,
    errors.UserNotFound: 500,
    errors.Overloaded: 500,
    errors.InvalidGroup: 400,
    errors.GroupNotFound: 404,
    errors.GroupNotEmpty: 500,
    errors.GroupFull: 500,
    errors.OffsetsFull: 500,
    errors.GroupInconsistent: 500,
    errors.GroupSubscribed: 500,
    errors.MemberIdRequired: 500,
    errors.UnknownMember: 404,
    errors.StaleGeneration: 500,
    errors.Rebalancing: 500,
    errors.InstanceFenced: 500,
    errors.InvalidSessionTimeout: 400,
    errors.Stopping: 500,
    errors.OffsetsUnstable: 500,
    errors.MemberEpochFenced: 500,
    errors.MemberEpochStale: 500,
    errors.InstanceUnreleased: 500,
    errors.UnsupportedAssignor: 400,
    errors.UnsupportedVersion: 426,
    errors.InvalidPattern: 400,
    errors.SmartModuleNotFound: 500,
    errors.SmartModuleInvalid: 500,
}


def code_of(refusal: errors.BrokerError) -> int:
    return ERROR_CODES.get(type(refusal), 500)


def publish_failed(refusal: errors.BrokerError, qos: int) -> str:
    """The text of a NACK for a message that was not taken; `durable` speaks of the disk only."""
    durable = qos and code_of(refusal) == 500
    return f"{'durable ' if durable else ''}publish failed: {refusal}"
