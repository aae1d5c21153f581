"""The closed set of refusals of the core.

Each protocol maps every class here to a code of its own in one table; a test demands that
the table is complete.  The text names what was refused, what would have been accepted and,
where there is one, the next step.
"""

from __future__ import annotations


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


class InvalidRecord(BrokerError):
    """The bytes are whole but the topic's rules refuse them (no key in a compacted topic, ...)."""


class InvalidTimestamp(BrokerError): ...


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


class TransactionState(BrokerError): ...


class Unauthorized(BrokerError): ...


class Overloaded(BrokerError): ...
