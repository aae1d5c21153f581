"""The port's part for records that are delivered on lease: given out, and answered for one by one.

A subscription is a cursor and a table of what was delivered and not yet acknowledged; the records
stay in the log.  A protocol takes a `Stretch`, makes its answers from it with a kernel of its own
and says how far it came, in one turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from pentalog.kernels import Buffer, Delivered
from pentalog.model.errors import TopicNotFound
from pentalog.model.later import Later
from pentalog.model.types import Offset, Partition

OPEN_BYTES: Final = 256 << 10
"""Opened at a time for one partition of a subscription."""


class Stretch(NamedTuple):
    """Opened batches of one partition that deliveries may be made of, now."""

    at: Partition
    batches: Buffer
    batch: int
    record: int
    """Where `offset` is: the batch and the record inside it, or earlier."""
    offset: Offset
    stop: Offset
    """Nothing from here on."""
    tag_shift: int
    """A delivery's tag is its offset and this."""
    timestamp_min: int
    """Older records are set aside instead."""
    again: int = 0
    """Not 0: only records with this state are to be delivered, a further time."""
    states: bytearray | None = None
    floor: Offset = 0
    """States for that, and the offset of the first."""
    doubtful_end: Offset = 0
    """Records of quality 0 before this may have been delivered before a crash: pass over them."""
    zero_end: Offset = 0
    """Records of quality 0 from here on must not be delivered yet: end before the first."""


class Search(NamedTuple):
    """How far one look for something to deliver has come, of a topic with many partitions."""

    again: Sequence[int]
    """Partitions with something that may have to be delivered again."""
    turn: int
    """The partition that new records are looked for in first."""
    partitions: int
    step: int = 0
    reserving: Later[None] | None = None
    """The first of the reservations that deliveries must wait for."""
    underway: Mapping[Partition, Offset] = {}
    """See `Subscription.underway`; of the partitions looked at so far."""


class Searching(Later[None]):
    """Filled when a search may continue: other clients are served between its steps."""

    __slots__ = ("search",)

    def __init__(self, search: Search) -> None:
        super().__init__()
        self.search = search


class Subscription(Protocol):
    @property
    def subscription_id(self) -> int: ...
    @property
    def topic(self) -> str: ...
    @property
    def owner(self) -> str | None:
        """The principal that opened it; None: nobody is known to, the next one adopts it."""

    def adopt(self, owner: str) -> None:
        """Give one without an owner to a principal."""

    @property
    def leased(self) -> bool:
        """Are deliveries acknowledged?  If not, each is made once."""

    def stretch(self, search: Search | None = None) -> Stretch | Later[None] | None:
        """What the next deliveries are made of; None if there is nothing.

        Later: it must come from a slow disk; ask again when that is ready.  With the `search` of a
        `Searching`, continue where that stopped.
        """

    def took(self, stretch: Stretch, delivered: Delivered) -> None:
        """Deliveries were made of a stretch, in the turn it was given."""

    def acknowledge(self, tags: Buffer) -> bytes:
        """Settle these deliveries (tags of 8 bytes, big-endian); returns those not on lease."""

    def underway(self) -> Mapping[Partition, Offset]:
        """Ends of partitions whose newest records cannot be delivered until they are durable.

        As they were found by the last `stretch` that returned None.
        """

    def unread(self) -> Mapping[Partition, Offset]:
        """Where it would go on, if nothing is known to be there; empty if something is."""


class SubscriptionView(NamedTuple):
    """A subscription, for those who list them."""

    subscription_id: int
    topic: str
    leased: bool
    unsettled: int
    """Records delivered and not acknowledged, or waiting to be set aside."""
    behind: int
    """Offsets not yet delivered."""
    used_ms: int


class Subscriptions(Protocol):
    """They outlive connections and restarts, and are closed when nobody uses them any more."""

    @property
    def here(self) -> bool:
        """Does this broker keep them, now?  If not, the owner of the council's state does."""

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        """Call `run` whenever another may keep them, until the function returned is called."""

    def open(self, topic: str, *, leased: bool, owner: str, charged: str = "") -> Later[int]:
        """Make one that begins at the topic's end; its id, once it is on the disk.

        It counts for `charged`, the client, while the broker runs; if that is empty and after a
        restart, for `owner`.  Raises `Overloaded` if that has too many, or all together have.
        """

    def get(self, subscription_id: int) -> Subscription | None: ...

    def close(self, subscription_id: int) -> None:
        """Forget it; nothing happens if there is none."""

    def all(self) -> Sequence[SubscriptionView]: ...


class Unsubscribed:
    """Implements `Subscriptions` for a broker that delivers nothing."""

    here = True

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def open(self, topic: str, *, leased: bool, owner: str, charged: str = "") -> Later[int]:
        raise TopicNotFound(f"no subscription to {topic!r}: this broker keeps none")

    def get(self, subscription_id: int) -> Subscription | None:
        return None

    def close(self, subscription_id: int) -> None: ...

    def all(self) -> Sequence[SubscriptionView]:
        return ()


UNSUBSCRIBED: Final = Unsubscribed()
