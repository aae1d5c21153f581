"""What all Cursus connections of one broker share: where topics are, streams, transactions."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pentalog.broker.port import Broker, Topic
from pentalog.broker.principal_limits import FairKeys
from pentalog.broker.security import Access
from pentalog.kernels import fnv1a_64
from pentalog.metrics import Metrics
from pentalog.model.errors import TopicNotFound
from pentalog.model.types import Appended, Offset, Partition
from pentalog.protocols.cursus import compression
from pentalog.protocols.cursus.errors import Refused, shown
from pentalog.protocols.cursus.gaps import Gaps
from pentalog.protocols.cursus.matching import Matches
from pentalog.protocols.cursus.options import Options, is_name, options_of
from pentalog.protocols.cursus.workroom import Workroom
from pentalog.session import Context

if TYPE_CHECKING:
    from pentalog.protocols.cursus.session import CursusSession
    from pentalog.protocols.cursus.streams import Stream

_log: Final = logging.getLogger(__name__)

_SKIPS_TOLD_INTERVAL_S: Final = 10.0
_ROUTES_MAX: Final = 65_536
_BATCH_BYTES_MAX: Final = 1 << 20
"""A frame becomes record batches of at most about this size, so that readers get small pieces."""
_EVENTS_BYTES_MAX: Final = 64 << 10
"""The same where batches are indexed record by record."""
TRANSACTIONS_MAX: Final = 10_000
"""Transactions that something is remembered of besides what the broker does."""
_STAGED_MAX: Final = 100
"""Messages of a transaction whose repetition is noticed: clients send one at a time."""
_KNOWN_MAX: Final = 1_000
"""Lookups of a transaction that are remembered; clients choose what they name."""


class Route(NamedTuple):
    at: Partition
    topic: Topic
    options: Options
    batch_bytes_max: int


MessageKey: TypeAlias = tuple[str, int, int]
"""A message of a transaction as its client asked: topic, partition or -1, sequence number."""


class OpenTransaction:
    """What is told of a transaction while it is open; its records and offsets are the broker's."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.begun = False
        self.offsets = 0
        self.ended = ""
        """`committed` or `aborted`."""
        self.counts: dict[Partition, int] = {}
        """Messages by partition."""
        self.staged: dict[MessageKey, Appended] = {}
        """The newest messages, whose repetition is noticed, and where they are."""
        self.followed = False
        """All messages of the transaction were written by this process."""
        self.known: set[tuple[str, int]] = set()
        """Topics and partitions (or -1) whose newest messages were looked up."""
        self.user: weakref.ref[CursusSession] | None = None
        """The connection that used it last."""
        self.binding: tuple[str, str, str, int] | None = None
        """Topic, group, member and generation of its offsets: all share one."""

    @property
    def messages(self) -> int:
        return sum(self.counts.values())

    def knows(self, message: MessageKey) -> bool:
        """Return whether a message that is not in `staged` cannot be in the transaction."""
        topic, asked, _ = message
        return (
            self.followed
            or message in self.staged
            or (topic, asked) in self.known
            or (topic, -1) in self.known
        )

    def note(self, message: MessageKey, appended: Appended) -> None:
        """Remember where a message is; only the newest are kept."""
        self.staged[message] = appended
        if len(self.staged) > _STAGED_MAX:
            del self.staged[next(iter(self.staged))]

    def note_lookup(self, topic: str, asked: int) -> None:
        """Remember that the newest messages of a partition, or of all (-1), are in `staged`."""
        if len(self.known) >= _KNOWN_MAX:
            self.known.clear()
        self.known.add((topic, asked))

    def forget(self) -> None:
        """Search the log again: another gateway may have written messages, or a write failed."""
        self.followed = False
        self.known.clear()


class Door:
    def __init__(
        self, broker: Broker, metrics: Metrics, monotonic: Callable[[], float], share_percent: int
    ) -> None:
        self._metrics = metrics
        self._monotonic = monotonic
        self._skipped = 0
        self._skips_told_s = 0.0
        self.registry = compression.REGISTRY
        self.streams: dict[tuple[Partition, str], Stream] = {}
        self.gaps = Gaps(share_percent)
        self.workroom = Workroom()
        self.transactions: dict[str, OpenTransaction] = {}
        self._by_owner: FairKeys[str] = FairKeys(TRANSACTIONS_MAX, share_percent=share_percent)
        """Their names by the client that used each first."""
        self._topics = broker.topics
        self._options = broker.sourcing.options
        # An engine that has to ask others takes one batch at a time.
        self._cuts = broker.knowledge.current
        self._version = self._topics.version
        self._routes: dict[tuple[bytes, int], Route] = {}
        self._turns: dict[str, int] = {}
        self._names: str | None = None
        self.matches = Matches()

    def route(self, topic: bytes, index: int) -> Route:
        """The partition of a topic named on the wire; raises refusals."""
        if self._version != self._topics.version:
            self.forget()
        route = self._routes.get((topic, index))
        if route is None:
            route = self._look_up(topic, index)
            if len(self._routes) >= _ROUTES_MAX:
                self._routes.clear()
            self._routes[topic, index] = route
        return route

    @property
    def version(self) -> int:
        """Of the topics, as `names` has them."""
        return self._version

    @property
    def names(self) -> str:
        """The names of all topics that patterns may mean, one in a line."""
        if self._version != self._topics.version:
            self.forget()
        if self._names is None:
            every = (topic.name for topic in self._topics.all())
            self._names = "\n".join(name for name in every if is_name(name))
        return self._names

    def forget(self) -> None:
        """Some topic or its options have changed."""
        self._version = self._topics.version
        self._routes.clear()
        self._turns.clear()
        self._names = None

    def choose(self, topic: Topic, key: bytes, *, by_key: bool) -> int:
        """The partition for a record that names none."""
        index = self.chosen(topic, key, by_key=by_key)
        if not key or not by_key:
            self._turns[topic.name] = index + 1
        return index

    def chosen(self, topic: Topic, key: bytes, *, by_key: bool) -> int:
        """The same, for those who only want to know."""
        if key and by_key:
            return fnv1a_64(key) % topic.partitions
        return self._turns.get(topic.name, 0) % topic.partitions

    def transaction(self, name: str, epoch: int, access: Access) -> OpenTransaction:
        """What is told of this transaction, from now on if it is new."""
        found = self.transactions.get(name)
        if found is not None and found.epoch == epoch:
            self._by_owner.touch(name)
            return found
        found = self.transactions[name] = OpenTransaction(epoch)
        owner = access.owner
        self._by_owner.use(name, owner)
        oldest = self._by_owner.excess(owner)
        if oldest is not None:
            self._by_owner.discard(oldest)
            del self.transactions[oldest]
        return found

    def note_skipped(self, at: Partition, offset: Offset) -> None:
        """Report a record that no Cursus message can hold: its readers go on behind it."""
        self._metrics.unshown_records += 1
        self._skipped += 1
        now_s = self._monotonic()
        if now_s < self._skips_told_s:
            return
        self._skips_told_s = now_s + _SKIPS_TOLD_INTERVAL_S
        _log.warning(
            "%s: Cursus readers do not get the record at offset %d: its key, its headers or all of "
            "it are too long for a message; read it through another protocol "
            "(%d records were skipped since the last such line)",
            at,
            offset,
            self._skipped,
        )
        self._skipped = 0

    def _look_up(self, topic: bytes, index: int) -> Route:
        name = topic.decode("utf-8", "surrogateescape")
        try:
            found = self._topics.get(name)
        except TopicNotFound:
            raise Refused(f"topic_not_found topic={shown(name)}") from None
        if not 0 <= index < found.partitions:
            raise Refused(f"partition_not_found partition={index}")
        most = found.settings.message_bytes_max
        options = options_of(self._options.get(name))
        if self._cuts:
            cut = _EVENTS_BYTES_MAX if options.event_sourcing else _BATCH_BYTES_MAX
            most = min(cut, most)
        return Route(Partition(name, index), found, options, most)


def open_door(context: Context) -> Door:
    """Return the one door of a broker, made when its first connection opens."""
    broker = context.broker
    share_percent = context.config.principal_share_percent
    return broker.share(
        "cursus",
        lambda: Door(broker, context.totals, context.runtime.monotonic, share_percent),
    )


def door_of(broker: Broker) -> Door:
    """Return the door that some connection of the broker has opened."""
    return broker.share("cursus", _unopened)


def _unopened() -> Door:
    raise AssertionError("no connection has opened the door")
