"""Records a subscription gives up go to the topic's dead letters, with the reason in headers.

A record is settled only when its copy is durable: after a crash it may be set aside twice, but is
never lost between the two topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from pentalog.broker.needs import Appendable, NamedTopics
from pentalog.broker.port import Opened, TopicSpec
from pentalog.kernels import (
    DEAD_ATTEMPTS,
    DEAD_EXPIRED,
    DEAD_OVERFLOW,
    DEAD_TOO_LARGE,
    batch_header,
)
from pentalog.metrics import Metrics
from pentalog.model import batch
from pentalog.model.errors import BatchCorrupt, BrokerError, OffsetOutOfRange, TopicNotFound
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Horizon, Offset, Partition, Record
from pentalog.runtime import Runtime, Slices

if TYPE_CHECKING:
    from pentalog.broker.local_subscription import LocalSubscription
    from pentalog.broker.windows import Window

_log: Final = logging.getLogger(__name__)

SUFFIX: Final = ".dlq"
RETRY_MS: Final = 1_000
OPEN_BYTES: Final = 256 << 10
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Room for a record the source topic took, and for its headers."""
_REASONS: Final = {
    DEAD_ATTEMPTS: b"attempts",
    DEAD_EXPIRED: b"expired",
    DEAD_OVERFLOW: b"overflow",
    DEAD_TOO_LARGE: b"too large",
}


class DeadLetters:
    """Works through the ranges of windows, one step of each at a time."""

    def __init__(
        self,
        log: Appendable,
        topics: NamedTopics,
        runtime: Runtime,
        slices: Slices,
        metrics: Metrics,
        changed: Callable[[LocalSubscription], None],
    ) -> None:
        self._log = log
        self._topics = topics
        self._runtime = runtime
        self._slices = slices
        self._metrics = metrics
        self._changed = changed
        self._busy: set[Window] = set()
        self._stopped = False

    def begin(self, subscription: LocalSubscription, window: Window) -> None:
        """See to it that everything dead in this window is set aside."""
        if window not in self._busy and not self._stopped:
            self._busy.add(window)
            self._again(subscription, window, 0)

    def stop(self) -> None:
        self._stopped = True

    def _step(self, subscription: LocalSubscription, window: Window) -> None:
        if self._stopped or subscription.closed:
            self._busy.discard(window)
            return
        while window.dead:
            start, end = window.dead[0]
            first = _first_dead(window, start, end)
            if first >= 0:
                break
            window.dead.popleft()
        else:
            self._busy.discard(window)
            return
        try:
            opened = self._log.open(window.at, first, bytes_max=OPEN_BYTES, horizon=Horizon.STABLE)
        except OffsetOutOfRange as refusal:
            self._gone(window, first, min(end, max(refusal.start, first + 1)))
            self._again(subscription, window, 0)
            return
        except BrokerError as refusal:
            self._refused(subscription, window, refusal)
            return
        opened.then(lambda later: self._opened(subscription, window, first, end, later))

    def _opened(
        self,
        subscription: LocalSubscription,
        window: Window,
        first: Offset,
        end: Offset,
        opened: Later[Opened],
    ) -> None:
        try:
            found = opened.value
            if found.next_offset <= first:
                raise OffsetOutOfRange("nothing is there", start=first, end=first)
            stop = min(end, found.next_offset)
            letters = self._letters(subscription, window, first, stop, found)
            if not letters:
                self._gone(window, first, stop)
                self._again(subscription, window, 0)
                return
            settled = self._append(subscription.topic, letters)
        except BrokerError as refusal:
            self._refused(subscription, window, refusal)
            return
        settled.then(lambda later: self._settled(subscription, window, first, stop, later))

    def _settled(
        self,
        subscription: LocalSubscription,
        window: Window,
        first: Offset,
        stop: Offset,
        settled: Later[Appended],
    ) -> None:
        try:
            appended = settled.value
        except BrokerError as refusal:
            self._refused(subscription, window, refusal)
            return
        count = appended.next_offset - appended.base_offset
        self._metrics.dead_letters += count
        _log.info(
            "subscription %d set %d records of %s aside in %s",
            subscription.subscription_id,
            count,
            window.at,
            appended.at,
        )
        self._gone(window, first, stop)
        self._changed(subscription)
        self._again(subscription, window, 0)

    def _letters(
        self,
        subscription: LocalSubscription,
        window: Window,
        first: Offset,
        stop: Offset,
        found: Opened,
    ) -> list[Record]:
        letters: list[Record] = []
        position = 0
        attempts_max = str(subscription.settings.delivery_attempts_max).encode()
        while position < len(found.batches):
            header = batch_header(found.batches, position)
            try:
                records = batch.records_of(found.batches, position, bytes_max=MESSAGE_BYTES_MAX)
            except BatchCorrupt as flaw:
                _log.warning("%s near offset %d: %s", window.at, header.base_offset, flaw)
                records = []
            for offset, record in records:
                place = offset - window.floor
                if not first <= offset < stop or not 0 <= place < len(window.states):
                    continue
                reason = _REASONS.get(window.states[place])
                if reason is None:
                    continue
                attempts = attempts_max if reason == b"attempts" else b"0"
                letters.append(_letter(subscription, window.at, offset, record, reason, attempts))
            position += header.size
        return letters

    def _append(self, topic: str, letters: list[Record]) -> Later[Appended]:
        name = topic + SUFFIX
        try:
            self._topics.get(name)
        except TopicNotFound:
            settings = {"max.message.bytes": str(MESSAGE_BYTES_MAX)}
            self._topics.create(TopicSpec(name=name, partitions=1, settings=settings))
        built = batch.build(letters, timestamp_ms=self._runtime.now_ms())
        appended = self._log.append(Partition(name, 0), memoryview(built), relayed=True)
        return self._log.settle(appended, Ack.DURABLE)

    def _gone(self, window: Window, start: Offset, stop: Offset) -> None:
        for state in _REASONS:
            window.change(start, stop, state, 0)
        window.trim()

    def _again(self, subscription: LocalSubscription, window: Window, delay_ms: int) -> None:
        """Do the next step of a window, in slices with those of all other windows."""
        if self._stopped:
            return

        def step() -> Iterator[None]:
            self._step(subscription, window)
            yield

        def run() -> None:
            self._slices.run(step(), _raise, subscription.charged)

        if delay_ms:
            self._runtime.after(delay_ms, run)
        else:
            self._runtime.soon(run)

    def _refused(
        self, subscription: LocalSubscription, window: Window, refusal: BrokerError
    ) -> None:
        if isinstance(refusal, TopicNotFound):
            self._busy.discard(window)
            return
        _log.warning(
            "subscription %d cannot set records of %s aside, tried again: %s",
            subscription.subscription_id,
            window.at,
            refusal,
        )
        self._again(subscription, window, RETRY_MS)


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def _first_dead(window: Window, start: Offset, end: Offset) -> Offset:
    low, high = max(start - window.floor, 0), max(end - window.floor, 0)
    part = window.states[low:high]
    found = [place for state in _REASONS if (place := part.find(state)) >= 0]
    return window.floor + low + min(found) if found else -1


def _letter(
    subscription: LocalSubscription,
    at: Partition,
    offset: Offset,
    record: Record,
    reason: bytes,
    attempts: bytes,
) -> Record:
    headers = (
        *record.headers,
        ("dead.reason", reason),
        ("dead.attempts", attempts),
        ("dead.topic", at.topic.encode()),
        ("dead.partition", b"%d" % at.index),
        ("dead.offset", b"%d" % offset),
        ("dead.subscription", b"%d" % subscription.subscription_id),
    )
    return Record(record.value, record.key, headers, record.timestamp_ms)
