"""BlipMQ publishers that mix qualities, sizes and topics in one write.

Behind the messages is a PING, or a frame of an unknown type: that closes the connection, but after
everything before it is published.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation import blipmq_wire, expectations, pipelining
from tests.simulation.blipmq_wire import NACK, PUBLISH, Frame
from tests.simulation.judge import UNPLACED, Being, Item, Sent, TopicLife
from tests.simulation.violation import Violation
from tests.simulation.wire import Lost

if TYPE_CHECKING:
    from tests.simulation.blipmq import BlipmqClients, Line

_UNKNOWN_TYPE: Final = 77
_LARGE_BYTES: Final = 3_000
_TOO_LARGE: Final = 500
_MOVED_CODES: Final = (404, 400)


def start(clients: BlipmqClients, client: str, random: Random) -> Any:
    alive = [topic for topic in clients.world.judge.alive() if not topic.compact]
    if not alive:
        return None
    main = random.choice(alive)
    data, sents = b"", {}
    oversized = set()
    for _ in range(random.choice((2, 3, 4, 6))):
        topic = random.choice(alive) if random.random() < 0.2 else main
        quality = random.choice((0, 1, 1))
        ((correlation, sent),) = clients.attempts(topic, quality, -1 if quality else 1, 1, random)
        kind = random.choices(("", "large", "oversized"), (6, 3, 1))[0]
        if kind == "large" or (kind == "oversized" and topic.limited):
            sent = _resized(clients, sent, quality, kind, random)
        if len(sent.items[0].value or b"") > pipelining.MESSAGE_BYTES_MAX:
            oversized.add(correlation)
        sents[correlation] = sent
        data += blipmq_wire.publish(correlation, quality, topic.name, sent.items[0].value or b"")
    expectations.chain(list(sents.values()))
    numbers = ", ".join(str(sent.number) for sent in sents.values())
    closes = random.random() < 0.4
    name = f"pipeline {numbers} to {main.label}{', an unknown frame' * closes}"
    return name, _send(clients, client, data, sents, oversized, closes, random)


def _resized(clients: BlipmqClients, sent: Sent, quality: int, kind: str, random: Random) -> Sent:
    """The same message with a larger value."""
    identity = b"<B%d>" % sent.number
    value = random.randbytes(_LARGE_BYTES) + identity
    if kind == "oversized":
        value = pipelining.oversized(random, identity)
    world = clients.world
    clients.subscriptions.qualities[value] = quality
    item = Item(value, None, value)
    sent.topic.model(UNPLACED).sents.remove(sent)  # it is never sent
    now_ms = world.clock.now_ms()
    return world.judge.send(sent.topic, UNPLACED, [item], acks=sent.acks, now_ms=now_ms)


async def _send(
    clients: BlipmqClients,
    client: str,
    data: bytes,
    sents: dict[int, Sent],
    oversized: set[int],
    closes: bool,
    random: Random,
) -> None:
    line = clients.line(client)
    if closes:
        pipelining.send_cut(line.connection, data + blipmq_wire.frame(_UNKNOWN_TYPE, 1), random)
        answers = await _until_closed(clients, line)
    else:
        answers = await clients.fence(line, data, random)
    refused = {each.correlation: blipmq_wire.refusal(each) for each in answers if each.kind == NACK}
    strangers = refused.keys() - sents.keys()
    if strangers or any(answer.kind == PUBLISH for answer in answers):
        raise Violation("correlation", f"{strangers} of {list(sents)} are answered")
    for correlation, sent in sents.items():
        topic: TopicLife = sent.topic
        moved = topic.being is not Being.ALIVE or sent.loose
        if correlation in refused:
            allowed = _MOVED_CODES if moved or topic.unsure else ()
            allowed += (_TOO_LARGE,) * (correlation in oversized)
            clients.check_refusal(f"batch {sent.number}", refused[correlation], *allowed)
            if correlation in oversized and not clients.world.had_fault:
                expectations.refuse(sent)
            continue
        if correlation in oversized:
            pipelining.accept_oversized(clients.world, sent)
        if not sent.loose:
            sent.acked, sent.absent = True, False
    clients.world.tell(f"{len(sents)} messages, {len(refused)} refused")


async def _until_closed(clients: BlipmqClients, line: Line) -> list[Frame]:
    """Everything that arrives before the broker closes the connection."""
    answers: list[Frame] = []
    while True:
        try:
            received = blipmq_wire.read(await line.connection.next_frame())
        except Lost:
            if clients.world.dead:
                raise
            return answers
        if received.kind == NACK:
            answers.append(received)
