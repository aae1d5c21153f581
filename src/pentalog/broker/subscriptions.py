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
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pentalog import kernels
from pentalog.broker import subscription_rows as rows
from pentalog.broker.dead_letters import SUFFIX, DeadLetters
from pentalog.broker.deliveries import OPEN_BYTES, Stretch, Subscription, SubscriptionView
from pentalog.broker.needs import Appendable, NamedTopics, Rows
from pentalog.broker.port import Opened, Topic
from pentalog.broker.reservations import Reservations
from pentalog.broker.subscription_rows import SubscriptionRow, WindowRow
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
from pentalog.model.errors import BrokerError, OffsetOutOfRange, Overloaded, TopicNotFound
from pentalog.model.later import Later, all_of
from pentalog.model.settings import LogSettings
from pentalog.model.types import Horizon, Marks, Offset, Partition
from pentalog.runtime import Runtime, Timer

_log: Final = logging.getLogger(__name__)

OPENINGS_MAX: Final = 128
"""Opened batches kept, of all subscriptions together."""
EXPIRE_MS: Final = 200
"""How often leases are looked at, as in the original."""
SAVE_MS: Final = 100
"""How long a change may wait to be written."""
IDLE_LOOK_MS: Final = 60_000
_NO_LIMIT: Final = -(1 << 63)
_TAG: Final = struct.Struct(">Q")


class LocalSubscription:
    """Implements `deliveries.Subscription`."""

    def __init__(self, owner: LocalSubscriptions, row: SubscriptionRow) -> None:
        self.row = row
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

    def expire(self, now_ms: int) -> None:
        """Take back leases that have run out."""
        try:
            attempts_max = self.settings.delivery_attempts_max if self.sets_aside else -1
        except TopicNotFound:
            return
        for window, marks in self._marked():
            if window.leases and window.expire(now_ms, marks.end, attempts_max):
                self._owner.changed(self)
                if window.dead:
                    self._owner.dead_letters.begin(self, window)

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
        self._subscriptions_max = config.subscriptions_max
        self._idle_ms_max = config.subscription_idle_ms_max
        self._all: dict[int, LocalSubscription] = {}
        self._next_id = 0
        self._dirty: dict[LocalSubscription, None] = {}
        self._leasing: dict[LocalSubscription, None] = {}
        self._openings: OrderedDict[Window, None] = OrderedDict()
        self._save_timer: Timer | None = None
        self._expire_timer: Timer | None = None
        self._idle_timer: Timer | None = None
        self._closed = False

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
        for entry in windows:
            subscription = self._all.get(entry.subscription_id)
            if subscription is not None and len(subscription.windows) == entry.partition:
                subscription.windows.append(self._restored(subscription, entry))
        for subscription in self._all.values():
            for window in subscription.windows:
                if window.dead:
                    self.dead_letters.begin(subscription, window)
        self._idle_timer = self.runtime.after(self._idle_look_ms, self._look_for_idle)

    def _restored(self, subscription: LocalSubscription, entry: WindowRow) -> Window:
        at = Partition(subscription.topic, entry.partition)
        # The window may start after records that a power cut removed.  New records reuse their
        # offsets, so the row is corrected too: after another crash it would skip the new ones.
        end = self.log.marks(at).end
        first, floor = min(entry.first, end), min(entry.floor, end)
        states = entry.states[: max(0, end - entry.floor)]
        if (first, floor, states) != (entry.first, entry.floor, entry.states):
            entry = entry._replace(first=first, floor=floor, states=states)
            rows.write_window(self._state, entry)
        window = Window(at, first, floor, states)
        window.restore()
        window.inherited = min(window.cursor, end)
        window.reserved = window.reserved_end = entry.reserved
        window.reserved_at = window.cursor
        window.doubtful_end = min(entry.reserved, end)
        if window.doubtful_end > window.cursor:
            _log.info(
                "subscription %d: of %d records of %s from offset %d on, those of quality 0 may "
                "have been delivered before the crash and are passed over",
                subscription.subscription_id,
                window.doubtful_end - window.cursor,
                at,
                window.cursor,
            )
        return window

    def open(self, topic: str, *, leased: bool) -> Later[int]:
        if len(self._all) >= self._subscriptions_max:
            raise Overloaded(
                f"{len(self._all)} subscriptions are open, subscriptions_max allows no more: "
                "poll an old one, or raise the setting"
            )
        found = self.topics.get(topic)
        self._state.check()
        number, self._next_id = self._next_id, self._next_id + 1
        row = SubscriptionRow(number, found.name, found.topic_id, leased, self.runtime.now_ms())
        subscription = self._all[number] = LocalSubscription(self, row)
        rows.write_next_id(self._state, self._next_id)
        rows.write(self._state, row)
        for index in range(found.partitions):
            at = Partition(found.name, index)
            end = self.log.marks(at).end
            window = Window(at, end, end, bytearray())
            subscription.windows.append(window)
        self.reservations.write(number, subscription.windows)
        # A power cut must not remove records before its start: others would get their offsets.
        ends = self.log.ends([window.at for window in subscription.windows])
        self.metrics.subscriptions_opened += 1
        later: Later[int] = Later()

        def settled(outcome: Later[None]) -> None:
            try:
                _ = outcome.value
                later.fill(number)
            except BrokerError as refusal:
                later.refuse(refusal)

        all_of([self._state.settle(), ends]).then(settled)
        return later

    def get(self, subscription_id: int) -> Subscription | None:
        return self._all.get(subscription_id)

    def close(self, subscription_id: int) -> None:
        subscription = self._all.pop(subscription_id, None)
        if subscription is None:
            return
        subscription.closed = True
        self._dirty.pop(subscription, None)
        self._leasing.pop(subscription, None)
        for window in subscription.windows:
            self._openings.pop(window, None)
        rows.delete(self._state, subscription_id)

    def all(self) -> Sequence[SubscriptionView]:
        return [subscription.view() for subscription in self._all.values()]

    def topic_deleted(self, topic: Topic) -> None:
        """Called in the turn a topic is deleted."""
        for subscription in list(self._all.values()):
            if subscription.topic == topic.name:
                self.close(subscription.subscription_id)

    def stop(self) -> None:
        """Write what has changed; nothing happens by itself any more."""
        self._closed = True
        self.reservations.close()
        for timer in (self._save_timer, self._expire_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self.dead_letters.stop()
        self._dirty = {each: None for each in self._all.values() if not each.closed}
        self._save()

    def abandon(self) -> None:
        """Stop, and write nothing more: they are kept elsewhere by now."""
        for subscription in self._all.values():
            subscription.closed = True
        self._dirty.clear()
        self.stop()

    def changed(self, subscription: LocalSubscription) -> None:
        """Its states are to be written, and its leases to be watched."""
        if subscription.closed or self._closed:
            return
        self._dirty[subscription] = None
        if self._save_timer is None:
            self._save_timer = self.runtime.after(SAVE_MS, self._save_in_time)
        if any(window.leases for window in subscription.windows):
            self._leasing[subscription] = None
            if self._expire_timer is None:
                self._expire_timer = self.runtime.after(EXPIRE_MS, self._expire)

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

    def _expire(self) -> None:
        self._expire_timer = None
        now_ms = self.monotonic_ms()
        for subscription in list(self._leasing):
            subscription.expire(now_ms)
            if not any(window.leases for window in subscription.windows):
                self._leasing.pop(subscription, None)
        if self._leasing and self._expire_timer is None:
            self._expire_timer = self.runtime.after(EXPIRE_MS, self._expire)

    def _save_in_time(self) -> None:
        self._save_timer = None
        self._save()

    def _save(self) -> None:
        try:
            self._state.check()
        except BrokerError:
            if not self._closed:
                self._save_timer = self.runtime.after(10 * SAVE_MS, self._save_in_time)
            return
        dirty, self._dirty = self._dirty, {}
        for subscription in dirty:
            subscription.row = subscription.row._replace(used_ms=subscription.used_ms)
            rows.write(self._state, subscription.row)
            self._write_windows(subscription)

    def _write_windows(self, subscription: LocalSubscription) -> None:
        windows = subscription.windows
        if self._closed:
            # Nothing is delivered from here on: what was reserved and not used is given back.
            left = [each for each in windows if each.changed or each.reserved_end > each.cursor]
            self.reservations.write(subscription.subscription_id, left, ahead=False)
            return
        unwritten = [window for window in windows if window.unwritten]
        self.reservations.write(subscription.subscription_id, unwritten)
        if any(window.unwritten for window in unwritten):
            self.changed(subscription)

    @property
    def _idle_look_ms(self) -> int:
        return max(1, min(IDLE_LOOK_MS, self._idle_ms_max // 2))

    def _look_for_idle(self) -> None:
        now_s = self.runtime.monotonic()
        for subscription in list(self._all.values()):
            idle_ms = int((now_s - subscription.used_s) * 1000)
            if idle_ms >= self._idle_ms_max:
                _log.info(
                    "subscription %d to %s is closed: nobody has used it for %d s "
                    "(subscription_idle_ms_max)",
                    subscription.subscription_id,
                    subscription.topic,
                    idle_ms // 1000,
                )
                self.metrics.subscriptions_expired += 1
                self.close(subscription.subscription_id)
            elif abs(subscription.used_ms - subscription.row.used_ms) > self._idle_ms_max // 10:
                self.changed(subscription)
        self._idle_timer = self.runtime.after(self._idle_look_ms, self._look_for_idle)
