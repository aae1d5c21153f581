"""What each refusal of the core becomes: the document's codes in JSON, the original's in binary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pentalog.model import errors

INVALID: Final = 400
TOPIC_NOT_FOUND: Final = 404
PARTITION_NOT_FOUND: Final = 405
TOO_LARGE: Final = 413
OUT_OF_RANGE: Final = 416
INTERNAL: Final = 500
STORAGE: Final = 503
FULL: Final = 507

ERROR_CODES: Final[Mapping[type[errors.BrokerError], int]] = {
    errors.TopicNotFound: TOPIC_NOT_FOUND,
    errors.PartitionNotFound: PARTITION_NOT_FOUND,
    errors.TopicExists: INVALID,
    errors.InvalidTopic: INVALID,
    errors.InvalidPartitions: INVALID,
    errors.InvalidConfig: INVALID,
    errors.OffsetOutOfRange: OUT_OF_RANGE,
    errors.RecordTooLarge: TOO_LARGE,
    errors.BatchCorrupt: STORAGE,
    errors.InvalidRecord: INVALID,
    errors.InvalidTimestamp: INVALID,
    errors.UnsupportedFormat: INVALID,
    errors.StorageFailed: STORAGE,
    errors.StorageFull: FULL,
    errors.NotEnoughReplicas: STORAGE,
    errors.ProducerFenced: INTERNAL,
    errors.OutOfSequence: INTERNAL,
    errors.UnknownProducer: INTERNAL,
    errors.TransactionState: INTERNAL,
    errors.TransactionUnknown: INTERNAL,
    errors.TransactionBusy: STORAGE,
    errors.InvalidTransactionTimeout: INTERNAL,
    errors.Unauthorized: INVALID,
    errors.Overloaded: STORAGE,
    errors.InvalidGroup: INVALID,
    errors.GroupNotFound: INTERNAL,
    errors.GroupNotEmpty: INTERNAL,
    errors.GroupFull: INTERNAL,
    errors.OffsetsFull: INTERNAL,
    errors.GroupInconsistent: INTERNAL,
    errors.GroupSubscribed: INTERNAL,
    errors.MemberIdRequired: INTERNAL,
    errors.UnknownMember: INTERNAL,
    errors.StaleGeneration: INTERNAL,
    errors.Rebalancing: INTERNAL,
    errors.InstanceFenced: INTERNAL,
    errors.InvalidSessionTimeout: INTERNAL,
    errors.Stopping: STORAGE,
    errors.OffsetsUnstable: STORAGE,
    errors.MemberEpochFenced: INTERNAL,
    errors.MemberEpochStale: INTERNAL,
    errors.InstanceUnreleased: INTERNAL,
    errors.UnsupportedAssignor: INTERNAL,
    errors.UnsupportedVersion: INTERNAL,
    errors.InvalidPattern: INTERNAL,
    errors.UserNotFound: INTERNAL,
    errors.SmartModuleNotFound: INTERNAL,
    errors.SmartModuleInvalid: INTERNAL,
}
"""The document's codes, for the JSON dialect."""

BAD_FRAME: Final = 1
UNDECODABLE: Final = 2
FETCH_FAILED: Final = 4
COMMIT_FAILED: Final = 5
NOT_THERE: Final = 10
EXISTS: Final = 11
BAD_CREATION: Final = 12
NO_TOPIC: Final = 13
NO_PARTITION: Final = 14
FAILED: Final = 500
"""These are the original's codes, for the binary dialect; which one depends on the request."""


class Invalid(Exception):
    """A request that breaks a rule of the protocol; the connection stays open."""


class NotJson(Exception):
    """A frame that cannot be read at all; the connection ends after an answer."""


def code_of(refusal: Exception) -> int:
    """The document's code of a refusal."""
    if isinstance(refusal, Invalid | NotJson):
        return INVALID
    return _CODES.get(type(refusal), INTERNAL)


_CODES: Final[Mapping[type, int]] = dict(ERROR_CODES)
