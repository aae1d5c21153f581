"""One subscription: what it delivers next, and what was acknowledged."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pentalog import kernels
from pentalog.broker.dead_letters import SUFFIX
from pentalog.broker.deliveries import OPEN_BYTES, Search, Stretch, SubscriptionView
from pentalog.broker.port import Opened, Topic
from pentalog.broker.subscription_rows import SubscriptionRow
from pentalog.broker.topics import name_flaw
from pentalog.broker.windows import TAG_PARTITION_SHIFT, Opening, Repeat, Window
from pentalog.kernels import DEAD_OVERFLOW, Delivered
from pentalog.model.errors import OffsetOutOfRange, TopicNotFound
from pentalog.model.later import Later
from pentalog.model.settings import LogSettings
from pentalog.model.types import Horizon, Marks, Offset, Partition

if TYPE_CHECKING:
    from pentalog.broker.subscriptions import LocalSubscriptions

_log: Final = logging.getLogger(__name__)

_LOOKS_PER_STEP: Final = 256
"""Partitions looked at in one turn."""
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
        self._underway: Mapping[Partition, Offset] = {}
        self.repeating: dict[int, None] = {}
        """Partitions with something that may have to be delivered again."""
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
                # Deleted and created again where this broker could not see it: in a cluster.
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

    def stretch(self, search: Search | None = None) -> Stretch | Later[None] | None:
        self._underway = {}
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
            return self._choose(timestamp_min, search)
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
        owner.weigh(self, window)
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
                    self._owner.weigh(self, window)
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
        return self._underway

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
        for window in tuple(self.windows):
            while window.leases and window.is_due(now_ms):
                try:
                    end = self._owner.log.marks(window.at).end
                except TopicNotFound:
                    return
                if window.expire(now_ms, end, attempts_max):
                    self.repeating[window.at.index] = None
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

    def _choose(self, timestamp_min: int, search: Search | None) -> Stretch | Later[None] | None:
        """Look for something to deliver, some partitions at a time.

        First for what is to be delivered again and stands behind nothing else, then for new
        records, then for all that is to be delivered again.
        """
        if search is None:
            search = Search(tuple(self.repeating), self._turn, len(self.windows))
        again, turn, count, step, reserving, seen = search
        underway = dict(seen)
        end = min(step + _LOOKS_PER_STEP, 2 * len(again) + count)
        while step < end:
            found: Stretch | Later[None] | None = None
            place = step - len(again)
            if 0 <= place < count:
                window = self.windows[(turn + place) % count]
                found = self._new_records(window, timestamp_min, underway)
                if window.blocked:
                    reserving = reserving or window.reserving
            else:
                number = step if place < 0 else place - count
                found = self._repeats(self.windows[again[number]], unconditionally=place >= 0)
            if found is not None:
                return found
            step += 1
            if place == count - 1 and reserving is not None:
                return reserving  # what is to be delivered again stands behind what waits for this
        if step < 2 * len(again) + count:
            reached = Search(again, turn, count, step, reserving, underway)
            return self._owner.continue_later(self, reached)
        self._underway = underway
        return None

    def _repeats(self, window: Window, *, unconditionally: bool) -> Stretch | Later[None] | None:
        repeat = window.next_repeat()
        if repeat is None:
            self.repeating.pop(window.at.index, None)
            return None
        marks = self._owner.log.marks(window.at)
        if unconditionally or window.cursor >= min(repeat.behind, marks.stable):
            return self._repeat(window, repeat, marks)
        return None

    def _new_records(
        self, window: Window, timestamp_min: int, underway: dict[Partition, Offset]
    ) -> Stretch | Later[None] | None:
        marks, states_max = self._owner.log.marks(window.at), self._owner.states_max(self)
        if marks.end > marks.durable:
            underway[window.at] = marks.end
        if window.cursor >= marks.stable or len(window.states) >= states_max:
            return None
        if window.blocked:
            self._owner.reservations.extend(self.subscription_id, window)
        if window.blocked:
            return None
        opening = self._open(window, marks)
        if opening is None or isinstance(opening, Later):
            return opening
        stop = min(opening.end, window.floor + states_max)
        repeat = window.next_repeat()
        if repeat is not None and window.cursor < repeat.behind:
            stop = min(stop, repeat.behind)
        return window.first_time(timestamp_min, stop)

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
            room = max(0, self._owner.states_max(self) - len(window.states))
            count = min(over, max(0, mark.stable - window.cursor), room)
            if count > 0:
                window.skip(window.cursor + count, DEAD_OVERFLOW)
                window.opening = None
                over -= count
                self._owner.weigh(self, window)
                self._owner.changed(self)
                self._owner.dead_letters.begin(self, window)
