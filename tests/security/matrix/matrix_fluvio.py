"""Fluvio's requests, on both of its ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from tests.security.guarded_world import GuardedBroker, Wire
from tests.security.matrix.matrix_cells import EDGE, GROUP, STATES, TOPIC, Asked
from tests.unit.protocols.fluvio.fluvio_world import (
    create_topic,
    produce,
    request,
    stream_fetch,
    their_batch,
    wrapped,
)

from pentalog.broker import rights
from pentalog.broker.rights import Need
from pentalog.broker.security import Kind, Operation
from pentalog.protocols.fluvio.codec import Reader, Writer
from pentalog.protocols.fluvio.sc import ScSession
from pentalog.protocols.fluvio.spu import SpuSession

REGISTRY = {
    *(f"SC {api.name}" for api in ScSession.apis.values()),
    *(f"SPU {api.name}" for api in SpuSession.apis.values()),
}
_DENIED = 13
_SC_VERSION = 19
_SPU_VERSION = 24
_READ = (rights.read_topic(TOPIC),)
_CONSUME = (rights.read_topic(TOPIC), rights.read_group(GROUP))
_DESCRIBE = (rights.describe_topic(TOPIC),)
_ADMINISTER = (Need(Operation.ALTER, Kind.CLUSTER),)


class Pair:
    """A client has a connection to each port."""

    def __init__(self, controller: Wire, spu: Wire) -> None:
        self._controller = controller
        self._spu = spu
        self._numbers = count(1)

    def ask_controller(self, key: int, body: bytes) -> Reader:
        return self._ask(self._controller, key, body, _SC_VERSION)

    def ask(self, key: int, body: bytes, version: int = _SPU_VERSION) -> Reader:
        return self._ask(self._spu, key, body, version)

    def close(self) -> None:
        self._controller.close()
        self._spu.close()

    def _ask(self, wire: Wire, key: int, body: bytes, version: int) -> Reader:
        number = next(self._numbers)
        wire.send(request(key, body, version, number)[4:])
        while True:
            answer = wire.receive()
            if int.from_bytes(answer[:4], "big") == number:
                return Reader(memoryview(answer), 4, len(answer), version)


def connect(broker: GuardedBroker, *wires: Wire) -> Pair:
    """A pair with a stream of a consumer that was allowed to open it."""
    broker.set_rules(STATES["allowed"].rules((*_CONSUME, rights.write_topic(TOPIC)), EDGE))
    pair = Pair(*wires)
    assert _produce(pair)
    assert _stream(pair)
    return pair


def operations() -> Iterator[Asked]:
    yield from _controller_operations()
    yield Asked("SPU Produce", (rights.write_topic(TOPIC),), _produce)
    yield Asked("SPU Fetch", _READ, _fetch)
    yield Asked("SPU FetchOffsets", _DESCRIBE, _fetch_offsets)
    yield Asked("SPU StreamFetch", _CONSUME, _stream)
    yield Asked("SPU UpdateOffsets", (), _update_offsets)
    yield Asked("SPU UpdateConsumerOffset", _CONSUME, _update_consumer)
    yield Asked(
        "SPU FetchConsumerOffsets",
        (rights.describe_group(GROUP), rights.describe_topic(TOPIC)),
        _fetch_consumer,
    )
    yield Asked(
        "SPU DeleteConsumerOffset",
        (Need(Operation.DELETE, Kind.GROUP, GROUP), rights.read_topic(TOPIC)),
        _delete_consumer,
    )


def _controller_operations() -> Iterator[Asked]:
    made, doomed, growing = "m-made", "m-doomed", "m-growing"
    yield Asked(
        "SC Create: a topic",
        (rights.create_topic(made),),
        _status(1001, create_topic(made)),
        gone=made,
    )
    module = Writer(_SC_VERSION).text("m-module").boolean(True).u8(0).u8(0).u8(0).u8(0)
    yield Asked(
        "SC Create: a SmartModule",
        _ADMINISTER,
        _status(1001, wrapped("SmartModule", bytes(module.bytes_(b"\0asm").out))),
    )
    named = {name: bytes(Writer(_SC_VERSION).text(name).u8(0).out) for name in (doomed, "m-module")}
    yield Asked(
        "SC Delete: a topic",
        (rights.delete_topic(doomed),),
        _status(1002, wrapped("Topic", named[doomed])),
        there=doomed,
    )
    yield Asked(
        "SC Delete: a SmartModule",
        _ADMINISTER,
        _status(1002, wrapped("SmartModule", named["m-module"])),
    )
    every = bytes(Writer(_SC_VERSION).u32(0).u8(0).u8(0).out)
    for label in ("Topic", "Partition"):
        yield Asked(f"SC List: {label}", _DESCRIBE, _listing(1003, wrapped(label, every)))
        watch = bytes(Writer(_SC_VERSION).i64(-1).u8(0).out)
        yield Asked(f"SC Watch: {label}", _DESCRIBE, _listing(1004, wrapped(label, watch)))
    grow = Writer(_SC_VERSION).text(growing).u8(0).u32(1)
    yield Asked(
        "SC Update",
        (rights.alter_topic(growing),),
        _status(1006, wrapped("Topic", bytes(grow.out))),
        there=growing,
    )


def _status(key: int, body: bytes) -> Callable[[Pair], bool]:
    def ask(pair: Pair) -> bool:
        reader = pair.ask_controller(key, body)
        reader.text()
        return reader.i16() != _DENIED

    return ask


def _listing(key: int, body: bytes) -> Callable[[Pair], bool]:
    def ask(pair: Pair) -> bool:
        reader = pair.ask_controller(key, body)
        return TOPIC.encode() in bytes(reader.data[reader.at : reader.end])

    return ask


def _produce(pair: Pair) -> bool:
    reader = pair.ask(0, produce(TOPIC, their_batch(b"x")))
    assert (reader.u32(), reader.text(), reader.u32(), reader.u32()) == (1, TOPIC, 1, 0)
    return _fine(reader.i16())


def _fetch(pair: Pair) -> bool:
    body = Writer(_SPU_VERSION).i32(0).i32(1).i32(1000).u8(0).u32(1).text(TOPIC).u32(1)
    body.u32(0).i32(-1).i64(0).i64(0).i32(1000).u32(0)
    reader = pair.ask(1, bytes(body.out))
    reader.i32(), reader.i16(), reader.i32()
    assert (reader.u32(), reader.text(), reader.u32(), reader.u32()) == (1, TOPIC, 1, 0)
    return _fine(reader.i16())


def _fetch_offsets(pair: Pair) -> bool:
    reader = pair.ask(1002, bytes(Writer(_SPU_VERSION).u32(1).text(TOPIC).u32(1).u32(0).out))
    assert (reader.u32(), reader.text(), reader.u32()) == (1, TOPIC, 1)
    return _fine(reader.i16())


def _stream(pair: Pair) -> bool:
    reader = pair.ask(1003, stream_fetch(TOPIC, consumer_id=GROUP))
    reader.text(), reader.u32(), reader.u32()
    return _fine(reader.i16())


def _update_offsets(pair: Pair) -> bool:
    pair.ask(1005, bytes(Writer(0).u32(1).i64(0).u32(77_777).out), version=0)
    return True


def _update_consumer(pair: Pair) -> bool:
    reader = pair.ask(1006, bytes(Writer(_SPU_VERSION).i64(0).u32(1).out))
    reader.i64()
    return _fine(reader.i16())


def _fetch_consumer(pair: Pair) -> bool:
    reader = pair.ask(1008, bytes(Writer(_SPU_VERSION).u8(0).out))
    assert reader.i16() == 0
    return GROUP.encode() in bytes(reader.data[reader.at : reader.end])


def _delete_consumer(pair: Pair) -> bool:
    body = Writer(_SPU_VERSION).text("m-orders").u32(7).text(GROUP)
    return _fine(pair.ask(1007, bytes(body.out)).i16())


def _fine(code: int) -> bool:
    assert code in (0, _DENIED), code
    return code == 0
