"""Fluvio producers that send several requests in one write, often with the same keys.

Answers carry the number of their request, and may arrive in any order; the batches must not.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation import expectations, fluvio_wire, pipelining
from tests.simulation.judge import Sent, TopicLife
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.fluvio import Entries, FluvioClients

_TIMEOUTS_MS = (0, 1, 1_500, 30_000, 30_000, 30_000, 30_000)


class Request:
    def __init__(
        self, entries: Entries, *, oversized: bool, durable: bool, timeout_ms: int
    ) -> None:
        self.entries = entries
        self.oversized = oversized
        """It must be refused."""
        self.durable = durable
        self.timeout_ms = timeout_ms

    @property
    def sents(self) -> list[Sent]:
        return [sent for _, sents in self.entries for sent, _ in sents]


def start(clients: FluvioClients, client: str, random: Random) -> Any:
    alive = clients.world.judge.alive()
    if not alive:
        return None
    compacted = [life for life in alive if life.compact]
    life = random.choice(compacted if compacted and random.random() < 0.5 else alive)
    index = random.randrange(life.partitions)
    durable = random.random() < 0.5
    requests = []
    for _ in range(random.choice((2, 3, 4, 6))):
        at = random.randrange(life.partitions) if random.random() < 0.2 else index
        timeout_ms = random.choice(_TIMEOUTS_MS)
        oversized = life.limited and random.random() < 0.1
        batch = clients.batch(life, at, durable, random, oversized=oversized)
        requests.append(
            Request([(at, [batch])], oversized=oversized, durable=durable, timeout_ms=timeout_ms)
        )
    expectations.chain([sent for request in requests for sent in request.sents])
    numbers = ", ".join(str(sent.number) for request in requests for sent in request.sents)
    return (
        f"pipeline {numbers} to {life.label}-{index}, {'durable' if durable else 'written'}",
        _send(clients, client, life, requests, random),
    )


async def _send(
    clients: FluvioClients, client: str, life: TopicLife, requests: list[Request], random: Random
) -> None:
    connection = clients.connection(client)
    asked: dict[int, Request] = {}
    data = b""
    for request in requests:
        sets = [(at, b"".join(each for _, each in sents)) for at, sents in request.entries]
        body = fluvio_wire.produce(
            life.name, sets, durable=request.durable, timeout_ms=request.timeout_ms
        )
        number = clients.next_number()
        asked[number] = request
        frame = fluvio_wire.request(fluvio_wire.PRODUCE, body, fluvio_wire.SPU_VERSION, number)
        data += len(frame).to_bytes(4, "big") + frame
    replies = [connection.next_frame() for _ in requests]
    pipelining.send_cut(connection, data, random)
    if random.random() < 0.15:
        await clients.world.kafka.admin.replace_topic(life, random)
    for reply in replies:
        frame = await reply
        found = asked.pop(fluvio_wire.answer_number(frame), None)
        if found is None:
            raise Violation("wrong answer", "a Produce is answered that was not sent, or twice")
        written = fluvio_wire.produced(frame)
        (sent,) = found.sents
        if found.oversized and written[0].error.code == fluvio_wire.TOO_LARGE:
            clients.world.tell(f"batch {sent.number} is too large")
            expectations.refuse(sent)
            continue
        clients.written(life, found.entries, written, found.timeout_ms)
        if found.oversized and not written[0].error.code:
            pipelining.accept_oversized(clients.world, sent)
    pipelining.check_order(sent for request in requests for sent in request.sents)
    clients.crash_sometimes(random)
