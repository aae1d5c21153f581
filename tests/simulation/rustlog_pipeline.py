"""RustLog producers that send several requests in one write, and something wrong behind them.

Replies have no correlation id: their order alone says what was accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulation import expectations, pipelining
from tests.simulation.judge import Item, Sent, TopicLife
from tests.simulation.violation import Violation
from tests.simulation.wire import Lost

from pentalog.clients.rustlog.calls import DIALECTS, Call, RustLogError

if TYPE_CHECKING:
    from tests.simulation.rustlog import RustLogClients

_ABSENT: Final = "absent"
"""A topic that no client creates."""
_LARGE_BYTES: Final = 700
"""Enough for a lane where batches are opened on lanes."""
_ENDING: Final = {"json": (b"\0\0\0\3{x}", bytes(4)), "binary": (bytes(4),)}
"""Frames that are refused, and close the connection."""


class Request(NamedTuple):
    call: Call[Any]
    sent: Sent | None
    """None if its topic does not exist."""
    oversized: bool = False
    """It must be refused."""


def start(clients: RustLogClients, client: str, random: Random) -> Any:
    life = clients.topic(random, plain=True)
    if life is None:
        return None
    index = random.randrange(life.partitions)
    name = random.choice(("json", "json", "binary"))
    calls = DIALECTS[name]
    requests: list[Request] = []
    for _ in range(random.choice((2, 3, 4, 6))):
        at = random.randrange(life.partitions) if random.random() < 0.2 else index
        oversized = life.limited and random.random() < 0.25
        if oversized:
            sent = _single(clients, life, at, partial(pipelining.oversized, random))
        elif random.random() < 0.5:
            filler = random.randbytes(_LARGE_BYTES)
            sent = _single(clients, life, at, filler.__add__)
        else:
            sent = clients.send(life, at, random)
        values = [item.value or b"" for item in sent.items]
        requests.append(Request(calls.produce(life.name, at, values), sent, oversized))
    if random.random() < 0.2:
        requests.append(Request(calls.produce(_ABSENT, 0, [b"x"]), None))
    ending = random.choice(_ENDING[name]) if random.random() < 0.6 else b""
    sents = [request.sent for request in requests if request.sent is not None]
    expectations.chain(sents)
    numbers = ", ".join(str(sent.number) for sent in sents)
    return (
        f"pipeline {numbers} to {life.label}-{index}, {name}{', malformed' * bool(ending)}",
        _send(clients, client, life, requests, ending, random),
    )


def _single(
    clients: RustLogClients, life: TopicLife, index: int, fill: Callable[[bytes], bytes]
) -> Sent:
    """A batch of one value, made around its identity."""
    clients.last_value += 1
    value = fill(b"<r%d>" % clients.last_value)
    world = clients.world
    items = [Item(value, None, value)]
    return world.judge.send(life, index, items, acks=-1, now_ms=world.clock.now_ms())


async def _send(
    clients: RustLogClients,
    client: str,
    life: TopicLife,
    requests: list[Request],
    ending: bytes,
    random: Random,
) -> None:
    world = clients.world
    connection = clients.connection(client)
    replies = [connection.next_frame() for _ in requests]
    data = b"".join(request.call.frame for request in requests) + ending
    pipelining.send_cut(connection, data, random)
    if random.random() < 0.15:
        await world.kafka.admin.replace_topic(life, random)
    for request, reply in zip(requests, replies, strict=True):
        try:
            frame = await reply
        except Lost:
            if not world.dead:
                raise Violation("hung up", "RustLog closes a connection early") from None
            raise
        sent = request.sent
        if sent is None:
            _expect_refusal(clients, request.call, frame)
        elif request.oversized and _is_refused(request.call, frame):
            world.tell(f"batch {sent.number} is too large")
            expectations.refuse(sent)
        else:
            clients.answered(sent, request.call, frame)
            if request.oversized:
                pipelining.accept_oversized(world, sent)
    pipelining.check_order(r.sent for r in requests if r.sent is not None)
    if ending:
        _expect_refusal(clients, requests[-1].call, await connection.next_frame())
        await _expect_end(connection)
    clients.crash_sometimes(random)


def _expect_refusal(clients: RustLogClients, call: Call[Any], frame: bytes) -> None:
    if not _is_refused(call, frame):
        raise Violation("wrong answer", "a request that must be refused is acknowledged")
    clients.world.tell("refused as it must be")


def _is_refused(call: Call[Any], frame: bytes) -> bool:
    try:
        call.read(memoryview(frame))
    except RustLogError:
        return True
    return False


async def _expect_end(connection: Any) -> None:
    try:
        await connection.next_frame()
    except Lost:
        return
    raise Violation("wrong answer", "RustLog answers after a malformed frame")
