"""Subscriptions: leases on the log that outlive connections and restarts.

Nothing is copied.  What was delivered and is not settled is a byte an offset (`windows.py`); it is
written to the state file in groups, so after a crash a record may be delivered again, but none
that was not acknowledged is left out.  Records of quality 0 are not delivered again
(`reservations.py`).  Only what is durable and stable is delivered.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pentalog import kernels
from pentalog.broker import subscription_rows as rows
from pentalog.broker.dead_letters import SUFFIX, DeadLetters
from pentalog.broker.deliveries import OPEN_BYTES, Stretch, Subscription, SubscriptionView
from pentalog.broker.needs import Appendable, NamedTopics, Rows
from pentalog.broker.port import Opened, Topic
from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.broker.reservations import Reservations
from pentalog.broker.subscription_rows import SubscriptionRow
from pentalog.broker.subscription_upkeep import Upkeep
from pentalog.broker.topics import name_flaw
from pentalog.broker.windows import (
    TAG_PARTITION_SHIFT,
    WINDOW_OFFSETS_MAX,
    Opening,
    Repeat,
    Window,
)
from pentalog.config import Config
from pentalog.kernels import DEAD_OVERFLOW, Delivered
from pentalog.metrics import Metrics
from pentalog.model.errors import BrokerError, OffsetOutOfRange, TopicNotFound
from pentalog.model.later import Later, all_of
from pentalog.model.settings import LogSettings
from pentalog.model.types import Horizon, Marks, Offset, Partition
from pentalog.runtime import Runtime, Slices

_log: Final = logging.getLogger(__name__)

_WINDOWS_PER_SUBSCRIPTION: Final = 50
"""Partitions of all subscriptions together, for each that `subscriptions_max` allows."""
_WINDOWS_PER_STEP: Final = 16
OPENINGS_MAX: Final = 128
"""Opened batches kept, of all subscriptions together."""
_NO_LIMIT: Final = -(1 << 63)
_TAG: Final = struct.Struct(">Q")


class LocalSubscription:
    """Implements `deliveries.Subscription`."""

    def __init__(self, owner: LocalSubscriptions, row: SubscriptionRow, charged: str = "") -> None:
        self.row = row
        self.charged = charged or row.owner or ""
        """Whose share it takes."""
        self.windows: list[Window] = []
        self.used_ms = row.used_ms
        now_ms, now_s = owner.runtime.now_ms(), owner.runtime.monotonic()
        self.used_s = now_s - max(0, now_ms - row.used_ms) / 1000
        """The same moment by the monotonic clock: while the broker runs, idle time follows it."""
        self.closed = False
        self._owner = owner
        self._turn = 0
        self._version = -1
        self._topic: Topic | None = None
        bearable = not row.topic.endswith(SUFFIX) and name_flaw(row.topic + SUFFIX) is None
        self.sets_aside: Final = bearable
        """Dead letters that die stay where they are."""

    @property
    def subscription_id(self) -> int:
        return self.row.subscription_id

    @property
    def topic(self) -> str:
        return self.row.topic

    @property
    def owner(self) -> str | None:
        return self.row.owner

    def adopt(self, owner: str) -> None:
        assert self.row.owner is None, "it has an owner"
        self.row = self.row._replace(owner=owner)
        self._owner.discharge(self)
        self.charged = owner
        self._owner.charge(self)
        self._owner.changed(self)

    @property
    def leased(self) -> bool:
        return self.row.leased

    @property
    def settings(self) -> LogSettings:
        """The topic's settings as they are now; also sees new partitions."""
        topics = self._owner.topics
        if self._version != topics.version or self._topic is None:
            found = topics.get(self.row.topic)
            if found.topic_id != self.row.topic_id:
                # Deleted and made anew where this broker could not see it: in a cluster.
                self._owner.close(self.subscription_id)
                raise TopicNotFound(f"the topic {found.name!r} is another one by now")
            self._topic = found
            self._version = topics.version
            while len(self.windows) < self._topic.partitions:
                at = Partition(self.row.topic, len(self.windows))
                self.windows.append(Window(at, 0, 0, bytearray()))
                self.windows[-1].changed = True
                self._owner.grown(self)
        return self._topic.settings

    def stretch(self) -> Stretch | Later[None] | None:
        if self.closed:
            return None
        now_ms = self._use()
        try:
            settings = self.settings
            if settings.delivery_backlog_max >= 0 and self.sets_aside:
                self._overflow(settings.delivery_backlog_max)
            timestamp_min = _NO_LIMIT
            if settings.delivery_ttl_ms >= 0 and self.sets_aside:
                timestamp_min = now_ms - settings.delivery_ttl_ms
            return self._choose(timestamp_min)
        except TopicNotFound:
            return None

    def _use(self) -> int:
        """Note that the subscription is in use; returns the time of the wall clock."""
        runtime = self._owner.runtime
        self.used_ms, self.used_s = runtime.now_ms(), runtime.monotonic()
        return self.used_ms

    def took(self, stretch: Stretch, delivered: Delivered) -> None:
        owner = self._owner
        window = self.windows[stretch.at.index]
        settings, now_ms = self.settings, owner.monotonic_ms()
        base_ms = settings.delivery_lease_ms
        owner.metrics.deliveries += delivered.polls
        if stretch.again:
            owner.metrics.redeliveries += delivered.polls
            window.took_again(stretch, delivered, now_ms, base_ms)
        else:
            window.took_first(stretch, delivered, now_ms, base_ms)
            if window.short:
                owner.reservations.extend(self.subscription_id, window)
            if window.opening is None:
                self._turn = (stretch.at.index + 1) % len(self.windows)
        if delivered.unreadable:
            _log.warning(
                "subscription %d passes over %d batches of %s near offset %d that cannot be read",
                self.subscription_id,
                delivered.unreadable,
                stretch.at,
                stretch.offset,
            )
        window.trim()
        owner.changed(self)
        if window.dead:
            owner.dead_letters.begin(self, window)

    def acknowledge(self, tags: kernels.Buffer) -> bytes:
        if self.closed:
            return bytes(tags)
        self._use()
        settled, unknown = kernels.acknowledge(
            tags,
            [
                (window.first, window.floor, window.states) if window.states else None
                for window in self.windows
            ],
        )
        if unknown and any(window.inherited > window.floor for window in self.windows):
            tags, unknown = unknown, self._settle_inherited(unknown)
            settled += (len(tags) - len(unknown)) // _TAG.size
        if settled:
            self._owner.metrics.acknowledgements += settled
            for window in self.windows:
                if window.states:
                    window.changed = True
                    window.trim()
            self._owner.changed(self)
        return unknown

    def _settle_inherited(self, tags: bytes) -> bytes:
        """Those that a keeper before this one has not delivered either."""
        unknown = bytearray()
        for (tag,) in _TAG.iter_unpack(tags):
            index, place = divmod(tag, 1 << TAG_PARTITION_SHIFT)
            window = self.windows[index] if index < len(self.windows) else None
            if window is None or not window.settle_inherited(window.first + place - 1):
                unknown += _TAG.pack(tag)
        return bytes(unknown)

    def underway(self) -> Mapping[Partition, Offset]:
        found: dict[Partition, Offset] = {}
        for window, marks in self._marked():
            if marks.end > marks.durable:
                found[window.at] = marks.end
        return found

    def unread(self) -> Mapping[Partition, Offset]:
        found: dict[Partition, Offset] = {}
        for window, marks in self._marked():
            if window.cursor < marks.stable or window.next_repeat() is not None:
                return {}
            found[window.at] = window.cursor
        return found

    def _marked(self) -> Sequence[tuple[Window, Marks]]:
        """The windows with how far their partitions go; none if the topic is gone."""
        try:
            return [(window, self._owner.log.marks(window.at)) for window in self.windows]
        except TopicNotFound:
            return ()

    def expire(self, now_ms: int) -> Iterator[None]:
        """Take back leases that have run out, some at a time."""
        try:
            attempts_max = self.settings.delivery_attempts_max if self.sets_aside else -1
        except TopicNotFound:
            return
        for window, marks in self._marked():
            while window.leases and window.is_due(now_ms):
                if window.expire(now_ms, marks.end, attempts_max):
                    self._owner.changed(self)
                    if window.dead:
                        self._owner.dead_letters.begin(self, window)
                yield

    def view(self) -> SubscriptionView:
        behind = sum(max(0, marks.end - window.cursor) for window, marks in self._marked())
        unsettled = sum(window.unsettled for window in self.windows)
        return SubscriptionView(
            self.subscription_id, self.topic, self.leased, unsettled, behind, self.used_ms
        )

    def _choose(self, timestamp_min: int) -> Stretch | Later[None] | None:
        windows, marks_of = self.windows, self._owner.log.marks
        reserving: Later[None] | None = None
        for window in windows:
            repeat = window.next_repeat()
            if repeat is None:
                continue
            marks = marks_of(window.at)
            if window.cursor >= min(repeat.behind, marks.stable):
                found = self._repeat(window, repeat, marks)
                if found is not None:
                    return found
        for step in range(len(windows)):
            window = windows[(self._turn + step) % len(windows)]
            marks = marks_of(window.at)
            if window.cursor >= marks.stable or len(window.states) >= WINDOW_OFFSETS_MAX:
                continue
            if window.blocked:
                self._owner.reservations.extend(self.subscription_id, window)
            if window.blocked:
                reserving = reserving or window.reserving
                continue
            opening = self._open(window, marks)
            if isinstance(opening, Later):
                return opening
            if opening is not None:
                stop = min(opening.end, window.floor + WINDOW_OFFSETS_MAX)
                repeat = window.next_repeat()
                if repeat is not None and window.cursor < repeat.behind:
                    stop = min(stop, repeat.behind)
                return window.first_time(timestamp_min, stop)
        if reserving is not None:
            return reserving  # what is to be delivered again stands behind what waits for this
        for window in windows:
            repeat = window.next_repeat()
            if repeat is not None:
                return self._repeat(window, repeat, marks_of(window.at))
        return None

    def _open(self, window: Window, marks: Marks) -> Opening | Later[None] | None:
        if window.cursor < marks.start:
            self._lost(window, marks.start)
        opening = window.opening
        if opening is not None and opening.begin <= window.cursor < opening.end:
            self._owner.keep(window)
            return opening
        opened = self._ask(window, window.cursor)
        if isinstance(opened, Later):
            return opened
        if opened is None or opened.next_offset <= window.cursor:
            return None
        window.opening = Opening(window.cursor, opened.next_offset, opened.batches)
        self._owner.keep(window)
        return window.opening

    def _repeat(self, window: Window, repeat: Repeat, marks: Marks) -> Stretch | Later[None] | None:
        if window.floor < marks.start:
            self._lost(window, marks.start)
            found = window.next_repeat()
            if found is None:
                return None
            repeat = found
        reread = window.reread
        if reread is None or not reread.begin <= repeat.start < reread.end:
            opened = self._ask(window, repeat.start)
            if isinstance(opened, Later):
                return opened
            if opened is None or opened.next_offset <= repeat.start:
                return None
            window.reread = reread = Opening(repeat.start, opened.next_offset, opened.batches)
            self._owner.keep(window)
        return window.again(repeat, reread)

    def _ask(self, window: Window, offset: Offset) -> Opened | Later[None] | None:
        try:
            later = self._owner.log.open(
                window.at, offset, bytes_max=OPEN_BYTES, horizon=Horizon.STABLE
            )
            if later.ready:
                return later.value
        except OffsetOutOfRange as refusal:
            if offset < refusal.start:
                self._lost(window, refusal.start)
            return None
        warmed: Later[None] = Later()
        later.then(lambda _: warmed.fill(None))
        return warmed

    def _lost(self, window: Window, start: Offset) -> None:
        lost = window.lose(start)
        if lost:
            _log.warning(
                "subscription %d: the log of %s begins at %d by now, %d records were not delivered",
                self.subscription_id,
                window.at,
                start,
                lost,
            )
        self._owner.changed(self)

    def _overflow(self, limit: int) -> None:
        """Beyond the limit the oldest that were not delivered are set aside."""
        marks = [self._owner.log.marks(window.at) for window in self.windows]
        over = -limit
        for window, mark in zip(self.windows, marks, strict=True):
            over += window.alive + max(0, mark.end - window.cursor)
        for window, mark in zip(self.windows, marks, strict=True):
            if over <= 0:
                return
            room = WINDOW_OFFSETS_MAX - len(window.states)
            count = min(over, max(0, mark.stable - window.cursor), room)
            if count > 0:
                window.skip(window.cursor + count, DEAD_OVERFLOW)
                window.opening = None
                over -= count
                self._owner.changed(self)
                self._owner.dead_letters.begin(self, window)


class LocalSubscriptions:
    """Implements `deliveries.Subscriptions`."""

    here = True

    def __init__(
        self,
        state: Rows,
        log: Appendable,
        topics: NamedTopics,
        runtime: Runtime,
        metrics: Metrics,
        config: Config,
    ) -> None:
        self.log = log
        self.topics = topics
        self.runtime = runtime
        self.metrics = metrics
        self.dead_letters = DeadLetters(log, topics, runtime, metrics, self.changed)
        self.reservations = Reservations(state)
        self._state = state
        self._count = PrincipalLimits(
            "subscriptions",
            config.subscriptions_max,
            share_percent=config.principal_share_percent,
            setting="subscriptions_max",
        )
        self._windows = PrincipalLimits(
            "partitions of subscriptions",
            _WINDOWS_PER_SUBSCRIPTION * config.subscriptions_max,
            share_percent=config.principal_share_percent,
            setting="subscriptions_max",
        )
        self._all: dict[int, LocalSubscription] = {}
        self._next_id = 0
        self._slices = Slices(runtime)
        self._openings: OrderedDict[Window, None] = OrderedDict()
        self._upkeep = Upkeep(
            state, runtime, self._slices, self.reservations, self._all, self._abandoned, config
        )

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def restore(self) -> None:
        """Read what an earlier life left; begins to look for abandoned ones."""
        self._next_id, found, windows = rows.read(self._state)
        for row in found:
            try:
                topic = self.topics.get(row.topic)
            except TopicNotFound:
                topic = None
            if topic is not None and topic.topic_id == row.topic_id:
                # The topic's own name: a long one is kept once, whoever subscribes.
                row = row._replace(topic=topic.name)
                self._all[row.subscription_id] = LocalSubscription(self, row)
            else:
                rows.delete(self._state, row.subscription_id)
        orphans: set[int] = set()
        for entry in windows:
            subscription = self._all.get(entry.subscription_id)
            if subscription is not None and len(subscription.windows) == entry.partition:
                at = Partition(subscription.topic, entry.partition)
                window = rows.restore_window(self._state, at, entry, self.log.marks(at).end)
                subscription.windows.append(window)
            elif subscription is None:
                orphans.add(entry.subscription_id)
        for number in orphans:
            rows.delete(self._state, number)
        for subscription in self._all.values():
            self.charge(subscription)
            for window in subscription.windows:
                if window.dead:
                    self.dead_letters.begin(subscription, window)
        self._upkeep.start()

    def open(self, topic: str, *, leased: bool, owner: str, charged: str = "") -> Later[int]:
        charged = charged or owner
        self._count.check(charged)
        found = self.topics.get(topic)
        self._windows.check(charged, found.partitions)
        self._state.check()
        number, self._next_id = self._next_id, self._next_id + 1
        rows.write_next_id(self._state, self._next_id)
        now_ms = self.runtime.now_ms()
        row = SubscriptionRow(number, found.name, found.topic_id, leased, now_ms, owner)
        subscription = LocalSubscription(self, row, charged)
        later: Later[int] = Later()
        self._count.add(charged)
        self._windows.add(charged, found.partitions)

        def opened(error: Exception | None) -> None:
            if error is None:
                self._settle(subscription, later)
                return
            self._count.release(charged)
            self._windows.release(charged, found.partitions)
            if not isinstance(error, BrokerError):
                raise error
            later.refuse(error)

        self._slices.run(self._open(subscription, found), opened)
        return later

    def charge(self, subscription: LocalSubscription) -> None:
        """Count a subscription and its partitions for the client that it is charged to."""
        self._count.add(subscription.charged)
        self._windows.add(subscription.charged, len(subscription.windows))

    def discharge(self, subscription: LocalSubscription) -> None:
        """Count it no longer."""
        self._count.release(subscription.charged)
        self._windows.release(subscription.charged, len(subscription.windows))

    def _open(self, subscription: LocalSubscription, topic: Topic) -> Iterator[None]:
        """Begin at the end of each partition, a few at a time."""
        number = subscription.subscription_id
        for start in range(0, topic.partitions, _WINDOWS_PER_STEP):
            if start:
                yield
            some: list[Window] = []
            for index in range(start, min(start + _WINDOWS_PER_STEP, topic.partitions)):
                at = Partition(topic.name, index)
                end = self.log.marks(at).end
                some.append(Window(at, end, end, bytearray()))
            self.reservations.write(number, some)
            subscription.windows += some
        if self.topics.get(topic.name).topic_id != topic.topic_id:
            raise TopicNotFound(f"the topic {topic.name!r} is another one by now")
        # The row comes last: windows without one are those of a subscription nobody has.
        rows.write(self._state, subscription.row)
        self._all[number] = subscription

    def _settle(self, subscription: LocalSubscription, later: Later[int]) -> None:
        """Confirm a subscription that is complete, once it is on the disk."""
        # A power cut must not remove records before its start: others would get their offsets.
        ends = self.log.ends([window.at for window in subscription.windows])
        self.metrics.subscriptions_opened += 1

        def settled(outcome: Later[None]) -> None:
            try:
                _ = outcome.value
                later.fill(subscription.subscription_id)
            except BrokerError as refusal:
                later.refuse(refusal)

        all_of([self._state.settle(), ends]).then(settled)

    def get(self, subscription_id: int) -> Subscription | None:
        return self._all.get(subscription_id)

    def close(self, subscription_id: int) -> None:
        subscription = self._all.pop(subscription_id, None)
        if subscription is None:
            return
        subscription.closed = True
        self.discharge(subscription)
        self._upkeep.forget(subscription)
        for window in subscription.windows:
            self._openings.pop(window, None)
        rows.delete(self._state, subscription_id)

    def _abandoned(self, subscription: LocalSubscription, idle_ms: int) -> None:
        """Nobody has used it for too long."""
        _log.info(
            "subscription %d to %s is closed: nobody has used it for %d s "
            "(subscription_idle_ms_max)",
            subscription.subscription_id,
            subscription.topic,
            idle_ms // 1000,
        )
        self.metrics.subscriptions_expired += 1
        self.close(subscription.subscription_id)

    def all(self) -> Sequence[SubscriptionView]:
        return [subscription.view() for subscription in self._all.values()]

    def topic_deleted(self, topic: Topic) -> None:
        """Called in the turn a topic is deleted."""
        for subscription in list(self._all.values()):
            if subscription.topic == topic.name:
                self.close(subscription.subscription_id)

    def stop(self) -> None:
        """Write what has changed; nothing happens by itself any more."""
        self.reservations.close()
        self.dead_letters.stop()
        self._upkeep.stop()

    def abandon(self) -> None:
        """Stop, and write nothing more: they are kept elsewhere by now."""
        for subscription in self._all.values():
            subscription.closed = True
        self.stop()

    def changed(self, subscription: LocalSubscription) -> None:
        """Its states are to be written, and its leases to be watched."""
        self._upkeep.changed(subscription)

    def grown(self, subscription: LocalSubscription) -> None:
        """A topic has another partition: so has a subscription to it."""
        self._windows.add(subscription.charged)

    def keep(self, window: Window) -> None:
        """Note that this window's opened batches are in use; the longest unused are let go."""
        openings = self._openings
        openings[window] = None
        openings.move_to_end(window)
        if len(openings) > OPENINGS_MAX:
            unused, _ = openings.popitem(last=False)
            unused.opening = unused.reread = None

    def monotonic_ms(self) -> int:
        return int(self.runtime.monotonic() * 1000)
