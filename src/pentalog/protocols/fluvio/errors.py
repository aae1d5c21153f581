"""Fluvio's error codes with what travels behind some of them, and the code of each refusal.

A code is not a bare number: 2, 7, 71, 72, 3003, 6001 to 6008, 8001, 8003, 10001, 12001 and 12002
carry fields, and a client that misses them misreads all that follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from pentalog.model import errors
from pentalog.protocols.fluvio.codec import Writer

UNKNOWN: Final = -1
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
OTHER: Final = 2
NOT_LEADER: Final = 6
TIMED_OUT: Final = 7
TOO_LARGE: Final = 10
PERMISSION_DENIED: Final = 13
STORAGE: Final = 56
OFFSET_EVICTED: Final = 71
TOPIC_ERROR: Final = 2000
TOPIC_NOT_FOUND: Final = 2001
TOPIC_EXISTS: Final = 2002
TOPIC_INVALID_CONFIG: Final = 2004
TOPIC_INVALID_NAME: Final = 2006
TOPIC_DELETED: Final = 2007
TOPIC_INVALID_REPLICAS: Final = 2008
PARTITION_NOT_LEADER: Final = 3001
SESSION_NOT_FOUND: Final = 3002
FLUSH_FAILED: Final = 3003
MODULE_ERROR: Final = 6000
MODULE_NOT_FOUND: Final = 6001
MODULE_INVALID: Final = 6002
MODULE_RUNTIME: Final = 6004
MODULE_CHAIN: Final = 6005
COMPRESSION: Final = 9000
SYSTEM_DELETION: Final = 12001
SYSTEM_UPDATE: Final = 12002

ERROR_CODES: Final[Mapping[type[errors.BrokerError], int]] = {
    errors.TopicNotFound: TOPIC_NOT_FOUND,
    errors.PartitionNotFound: NOT_LEADER,
    errors.TopicExists: TOPIC_EXISTS,
    errors.InvalidTopic: TOPIC_INVALID_NAME,
    errors.InvalidPartitions: TOPIC_ERROR,
    errors.InvalidConfig: TOPIC_INVALID_CONFIG,
    errors.OffsetOutOfRange: OFFSET_OUT_OF_RANGE,
    errors.RecordTooLarge: TOO_LARGE,
    errors.BatchCorrupt: OTHER,
    errors.InvalidRecord: OTHER,
    errors.InvalidTimestamp: OTHER,
    errors.UnsupportedFormat: COMPRESSION,
    errors.StorageFailed: STORAGE,
    errors.StorageFull: STORAGE,
    errors.NotEnoughReplicas: OTHER,
    errors.ProducerFenced: OTHER,
    errors.OutOfSequence: OTHER,
    errors.UnknownProducer: OTHER,
    errors.TransactionState: OTHER,
    errors.TransactionUnknown: OTHER,
    errors.TransactionBusy: OTHER,
    errors.InvalidTransactionTimeout: OTHER,
    errors.Unauthorized: PERMISSION_DENIED,
    errors.Overloaded: OTHER,
    errors.InvalidGroup: OTHER,
    errors.GroupNotFound: OTHER,
    errors.GroupNotEmpty: OTHER,
    errors.GroupFull: OTHER,
    errors.OffsetsFull: OTHER,
    errors.GroupInconsistent: OTHER,
    errors.GroupSubscribed: OTHER,
    errors.MemberIdRequired: OTHER,
    errors.UnknownMember: OTHER,
    errors.StaleGeneration: OTHER,
    errors.Rebalancing: OTHER,
    errors.InstanceFenced: OTHER,
    errors.InvalidSessionTimeout: OTHER,
    errors.Stopping: OTHER,
    errors.OffsetsUnstable: OTHER,
    errors.MemberEpochFenced: OTHER,
    errors.MemberEpochStale: OTHER,
    errors.InstanceUnreleased: OTHER,
    errors.UnsupportedAssignor: OTHER,
    errors.UnsupportedVersion: OTHER,
    errors.InvalidPattern: OTHER,
    errors.UserNotFound: OTHER,
    errors.SmartModuleNotFound: MODULE_NOT_FOUND,
    errors.SmartModuleInvalid: MODULE_CHAIN,
}
"""What has no word of its own here is `OTHER`, which carries the refusal's text."""


class WireError(NamedTuple):
    """A code and, encoded, what travels behind it."""

    code: int
    fields: bytes = b""

    @property
    def bare(self) -> WireError:
        """The same for a client that knows numbers only."""
        return WireError(UNKNOWN) if self.fields else self

    def write(self, writer: Writer) -> None:
        writer.i16(self.code).raw(self.fields)


FINE: Final = WireError(NONE)


def other(text: str) -> WireError:
    return WireError(OTHER, bytes(Writer(0).text(text).out))


def texts(code: int, *values: str) -> WireError:
    """A code followed by texts."""
    writer = Writer(0)
    for value in values:
        writer.text(value)
    return WireError(code, bytes(writer.out))


def timed_out(timeout_ms: int) -> WireError:
    return WireError(TIMED_OUT, bytes(Writer(0).u64(timeout_ms).u8(0).out))


def evicted(offset: int, next_available: int) -> WireError:
    return WireError(OFFSET_EVICTED, bytes(Writer(0).i64(offset).i64(next_available).out))


def module_invalid(text: str, name: str | None) -> WireError:
    return WireError(MODULE_INVALID, bytes(Writer(0).text(text).option_text(name).out))


def error_of(refusal: errors.BrokerError) -> WireError:
    """What a refusal of the core becomes."""
    code = _CODES.get(type(refusal), OTHER)
    if code == OTHER:
        return other(str(refusal))
    if code in (MODULE_NOT_FOUND, MODULE_CHAIN):
        return texts(code, str(refusal))
    return WireError(code)


_CODES: Final[Mapping[type, int]] = dict(ERROR_CODES)
