"""Several requests in one write: what the clients of all protocols have in common."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Final

from tests.simulation.judge import Being, Sent, TopicLife
from tests.simulation.violation import Violation
from tests.simulation.wire import Connection

if TYPE_CHECKING:
    from tests.simulation.world import World

MESSAGE_BYTES_MAX: Final = 48_000
"""The default of max.message.bytes: more than clients send in one batch, but for those below."""
_OVERSIZED_BYTES: Final = 50_000


def oversized(random: Random, identity: bytes) -> bytes:
    """A value that a topic with that default refuses."""
    return random.randbytes(_OVERSIZED_BYTES) + identity


def accept_oversized(world: World, sent: Sent) -> None:
    """An oversized batch is acknowledged: another topic of its name may have another limit."""
    if is_current(world, sent.topic) and not (sent.loose or world.judge.ever_lossy):
        raise Violation("wrong answer", f"{sent} is over the size limit, and acknowledged")


def send_cut(connection: Connection, data: bytes, random: Random) -> None:
    """Send frames in one write; their delivery may end at any byte, several times."""
    count = random.choice((0, 0, 0, 1, 2, 5))
    places = {random.randrange(1, len(data)) for _ in range(count)} if len(data) > 1 else set()
    connection.send_bytes(data, sorted(places))


def is_current(world: World, life: TopicLife) -> bool:
    return life.being is Being.ALIVE and world.judge.current(life.name) is life


def check_order(sents: Iterable[Sent]) -> None:
    """Check the offsets that batches of one connection were acknowledged with."""
    last: dict[tuple[TopicLife, int], Sent] = {}
    for sent in sents:
        if sent.offset is None or sent.loose or not sent.acked:
            continue
        before = last.get((sent.topic, sent.index))
        if before is not None and before.next_offset > sent.offset:
            raise Violation("overtaken", f"{sent} was sent after {before}")
        last[sent.topic, sent.index] = sent


def check_number(expected: int, found: int) -> None:
    if expected != found:
        raise Violation("wrong answer", f"{found} instead of the answer to request {expected}")
