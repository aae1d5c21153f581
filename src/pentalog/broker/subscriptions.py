"""Subscriptions: leases on the log that outlive connections and restarts.

Nothing is copied.  What was delivered and is not settled is a byte an offset (`windows.py`); it is
written to the state file in groups, so after a crash a record may be delivered again, but none
that was not acknowledged is left out.  Records of quality 0 are not delivered again
(`reservations.py`).  Only what is durable and stable is delivered.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pentalog.broker import subscription_rows as rows
from pentalog.broker.dead_letters import DeadLetters
from pentalog.broker.deliveries import (
    Search,
    Searching,
    Subscription,
    SubscriptionView,
)
from pentalog.broker.local_subscription import LocalSubscription
from pentalog.broker.needs import Appendable, NamedTopics, Rows
from pentalog.broker.port import Topic
from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.broker.reservations import Reservations
from pentalog.broker.subscription_rows import SubscriptionRow
from pentalog.broker.subscription_upkeep import Upkeep
from pentalog.broker.windows import (
    WINDOW_OFFSETS_MAX,
    WINDOW_OFFSETS_MIN,
    Window,
)
from pentalog.config import Config
from pentalog.metrics import Metrics
from pentalog.model.errors import BrokerError, TopicNotFound
from pentalog.model.later import Later, all_of
from pentalog.model.types import Partition
from pentalog.runtime import Runtime, Slices

_log: Final = logging.getLogger(__name__)

_WINDOWS_PER_SUBSCRIPTION: Final = 50
"""Partitions of all subscriptions together, for each that `subscriptions_max` allows."""
_WINDOWS_PER_STEP: Final = 16
_STATES_MAX: Final = 256 << 20
"""States of all subscriptions together: a byte for each offset of their windows."""
OPENINGS_MAX: Final = 128
"""Opened batches kept, of all subscriptions together."""


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
        slices: Slices | None = None,
    ) -> None:
        self.log = log
        self.topics = topics
        self.runtime = runtime
        self.metrics = metrics
        self._slices = slices or Slices(runtime)
        self.dead_letters = DeadLetters(log, topics, runtime, self._slices, metrics, self.changed)
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
        self._states = PrincipalLimits(
            "states of deliveries", _STATES_MAX, share_percent=config.principal_share_percent
        )
        self._all: dict[int, LocalSubscription] = {}
        self._next_id = 0
        self._openings: OrderedDict[Window, None] = OrderedDict()
        self._upkeep = Upkeep(
            state,
            runtime,
            self._slices,
            self.reservations,
            self._all,
            self._abandoned,
            self.weigh,
            config,
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
                if window.repeats:
                    subscription.repeating[entry.partition] = None
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
        for window in subscription.windows:
            self.weigh(subscription, window)

    def discharge(self, subscription: LocalSubscription) -> None:
        """Count it no longer."""
        self._count.release(subscription.charged)
        self._windows.release(subscription.charged, len(subscription.windows))
        for window in subscription.windows:
            self._states.add(subscription.charged, -window.weight)
            window.weight = 0

    def weigh(self, subscription: LocalSubscription, window: Window) -> None:
        """Count the states of a window, of which there may be more or fewer than before."""
        grown = len(window.states) - window.weight
        if grown and not subscription.closed:
            window.weight += grown
            self._states.add(subscription.charged, grown)

    def states_max(self, subscription: LocalSubscription) -> int:
        """Return how many states a window may have before deliveries wait for answers."""
        if self._states.fits(subscription.charged):
            return WINDOW_OFFSETS_MAX
        return WINDOW_OFFSETS_MIN

    def continue_later(self, subscription: LocalSubscription, search: Search) -> Searching:
        """Continue a search when other clients have been served."""
        later = Searching(search)

        def fill() -> Iterator[None]:
            later.fill(None)
            yield

        def filled(error: Exception | None) -> None:
            if error is not None:
                raise error

        def run() -> None:
            self._slices.run(fill(), filled, subscription.charged)

        self.runtime.soon(run)
        return later

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
        if subscription is not None:
            subscription.closed = True
            self._forget(subscription)

    def _forget(self, subscription: LocalSubscription) -> None:
        """Drop what is kept for one that has been closed."""
        self.discharge(subscription)
        self._upkeep.forget(subscription)
        for window in subscription.windows:
            self._openings.pop(window, None)
        rows.delete(self._state, subscription.subscription_id)

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
        closed = [each for each in self._all.values() if each.topic == topic.name]
        for subscription in closed:
            subscription.closed = True
            del self._all[subscription.subscription_id]

        def forget() -> Iterator[None]:
            # After a crash `restore` does this: its topic is gone, or has another id.
            for subscription in closed:
                self._forget(subscription)
                yield

        def forgotten(error: Exception | None) -> None:
            if error is not None:
                raise error

        self._slices.run(forget(), forgotten)

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
