"""The closed set of refusals of the core.

Each protocol maps every class here to a code of its own in one table; a test demands that
the table is complete.  The text names what was refused, what would have been accepted and,
where there is one, the next step.
"""

from __future__ import annotations

from collections.abc import Sequence


class BrokerError(Exception):
    """The core refuses.  Never raised for our own mistakes: those are assertions."""


class TopicNotFound(BrokerError): ...


class PartitionNotFound(BrokerError): ...


class TopicExists(BrokerError): ...


class InvalidTopic(BrokerError): ...


class InvalidPartitions(BrokerError): ...


class InvalidConfig(BrokerError): ...


class OffsetOutOfRange(BrokerError):
    """The offset lies outside the partition; `start` and `end` say what would be accepted."""

    def __init__(self, text: str, *, start: int, end: int) -> None:
        super().__init__(text)
        self.start = start
        self.end = end


class RecordTooLarge(BrokerError): ...


class BatchCorrupt(BrokerError): ...


class RecordsRefused(Exception):
    """The part of a refusal that names records by their index in the batch, each with a reason."""

    def __init__(self, text: str, *, records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(text)
        self.records = records


class InvalidRecord(RecordsRefused, BrokerError):
    """The bytes are whole but the topic's rules refuse them (no key in a compacted topic, ...)."""


class InvalidTimestamp(RecordsRefused, BrokerError): ...


class UnsupportedFormat(BrokerError):
    """An old message format, or a compression this broker cannot open."""


class StorageFailed(BrokerError):
    """The disk failed; the partition takes no writes until the broker is restarted."""


class StorageFull(StorageFailed):
    """No space left; writes are taken again as soon as there is."""


class NotEnoughReplicas(BrokerError):
    """The topic asks for more copies than one broker has."""


class ProducerFenced(BrokerError):
    """A newer life of the same producer has been seen."""


class OutOfSequence(BrokerError):
    """Batches of this producer are missing before this one."""


class UnknownProducer(BrokerError): ...


class TransactionState(BrokerError):
    """The transaction is not in the state this asks for."""


class TransactionUnknown(BrokerError):
    """There is no transactional id, or it belongs to another producer."""


class TransactionBusy(BrokerError):
    """The transaction is ending: ask again in a moment."""


class InvalidTransactionTimeout(BrokerError): ...


class Unauthorized(BrokerError): ...


class UserNotFound(BrokerError): ...


class Overloaded(BrokerError): ...


class InvalidGroup(BrokerError):
    """No group can have this name."""


class GroupNotFound(BrokerError): ...


class GroupNotEmpty(BrokerError): ...


class GroupFull(BrokerError): ...


class GroupInconsistent(BrokerError):
    """The member knows no way of sharing partitions that all others know."""


class OffsetsFull(BrokerError):
    """No more committed offsets, or retention leases, are kept for this client."""


class GroupSubscribed(BrokerError):
    """Members of the group read this topic."""


class MemberIdRequired(BrokerError):
    """A new member shall join again with the id it is given here."""

    def __init__(self, text: str, *, member_id: str) -> None:
        super().__init__(text)
        self.member_id = member_id


class UnknownMember(BrokerError): ...


class StaleGeneration(BrokerError):
    def __init__(self, text: str, current: int | None = None) -> None:
        """`current` is the generation that the group is at, where that is known."""
        super().__init__(text)
        self.current = current


class Rebalancing(BrokerError):
    """The group is making its next generation: join again."""


class InstanceFenced(BrokerError):
    """Another process has taken over this static member."""


class InvalidSessionTimeout(BrokerError): ...


class Stopping(BrokerError):
    """The broker stops, and what would have to be waited for is no longer begun."""


class OffsetsUnstable(BrokerError):
    """An open transaction may change these offsets."""


class MemberEpochFenced(BrokerError):
    """The member is not where the broker knows it to be: it gives up everything and joins again."""


class MemberEpochStale(BrokerError):
    """The member has been at a newer epoch since."""


class InstanceUnreleased(BrokerError):
    """Another member has this static member's name and has not left."""


class UnsupportedAssignor(BrokerError): ...


class UnsupportedVersion(BrokerError):
    """The request is too old for what it asks."""


class InvalidPattern(BrokerError):
    """A regular expression that cannot be understood, or that asks for too much."""


class SmartModuleNotFound(BrokerError): ...


class SmartModuleInvalid(BrokerError):
    """A program that cannot be run here, or that does not want to start."""
