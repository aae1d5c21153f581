"""Poll every BlipMQ subscription after a restart, and compare with what is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation import kafka_wire
from tests.simulation.blipmq_judge import Given, Subscription
from tests.simulation.judge import Being
from tests.simulation.kafka_audit import DEAD_LETTERS
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.blipmq import BlipmqClients
    from tests.simulation.world import World

_CLIENT: Final = "audit"
_POLLS: Final = 64
_ROUNDS_MAX: Final = 20
_PIECE_BYTES: Final = 1 << 20


def audit(clients: BlipmqClients, *, restart: bool) -> None:
    """Check subscriptions; nothing may be under way, and Kafka's audit has been made."""
    if not restart:
        clients.subscriptions.settled()
        return
    for subscription in list(clients.subscriptions.open.values()):
        if subscription.topic.being is not Being.ALIVE:
            continue
        clients.world.call(f"poll {subscription} to its end", _audit(clients, subscription))


async def _audit(clients: BlipmqClients, subscription: Subscription) -> None:
    world = clients.world
    for _ in range(_ROUNDS_MAX):
        if await clients.poll(_CLIENT, subscription, _POLLS) < _POLLS:
            break
    else:
        return  # leases run out faster than it is polled
    missing = clients.subscriptions.undelivered_again(subscription)
    if missing:
        await _find_dead_letters(world, subscription, missing)
    held = [given for given in subscription.given.values() if _is_held(given, world)]
    if held and world.random.random() < 0.5:
        await clients.acknowledge(_CLIENT, subscription, held)


def _is_held(given: Given, world: World) -> bool:
    return bool(given.quality) and given.life == world.counts["lives"]


async def _find_dead_letters(
    world: World, subscription: Subscription, missing: list[Given]
) -> None:
    """What is delivered no more must be among the dead letters."""
    letters = await _dead_letters(world, subscription)
    if not all(given.sent.items[given.number].value in letters for given in missing):
        await world.wait(5_000)
        letters = await _dead_letters(world, subscription)
    for given in missing:
        if given.sent.items[given.number].value not in letters:
            raise Violation("not delivered", f"{subscription} does not deliver {given} again")
        given.dead = True


async def _dead_letters(world: World, subscription: Subscription) -> set[bytes | None]:
    """Values of the records that a subscription has set aside."""
    name = subscription.topic.name + DEAD_LETTERS
    number = b"%d" % subscription.number
    found: set[bytes | None] = set()
    offset = 0
    while True:
        frame = kafka_wire.fetch(name, 0, offset, committed=False, bytes_max=_PIECE_BYTES)
        answer = kafka_wire.fetched(await world.kafka.connection(_CLIENT).ask(frame), offset)
        if answer.code or answer.next_offset == offset:
            return found
        offset = answer.next_offset
        for read in answer.records:
            headers = {_text(header): value for header, value in read.record.headers}
            if headers.get("dead.subscription") == number:
                found.add(read.record.value)


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()
