"""How each door is loaded: whole requests built once, answers looked at only as far as needed.

A request that writes carries many records and is sent again and again as it is; of an answer that
carries records only their number is taken.  So this side costs little beside the broker.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from pentalog import kernels
from pentalog.cli.advice import advised
from pentalog.cli.client import Client, parse_server
from pentalog.cli.login import client_options
from pentalog.cli.output import Refused
from pentalog.clients.blipmq import exchanges as blipmq
from pentalog.clients.kafka import connection as kafka
from pentalog.clients.kafka import fetch, messages
from pentalog.clients.kafka.errors import KafkaFailed
from pentalog.clients.reconnection import ConnectionLost
from pentalog.clients.rustlog.calls import BinaryCalls
from pentalog.model import batch
from pentalog.model.types import Partition, Record

_FETCH_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 60.0
_LENGTH: Final = struct.Struct(">I")
_PONG: Final = 8


class Plan(NamedTuple):
    """What is to be done."""

    server: str
    topic: str
    partitions: int
    batch: int
    size: int
    """Bytes of a record's value."""
    key: str = ""
    """For doors that want one."""
    controller: str = ""
    """For a door with two ports, the other one."""


class Talk(Protocol):
    """One connection's conversation."""

    def write(self) -> None:
        """Send one request of `batch` records."""

    def written(self) -> None:
        """Wait for the answer to the oldest request that has none."""

    def read(self) -> int:
        """Ask for records and wait for them; how many came."""

    def close(self) -> None: ...


class Wire:
    """Frames with their length before them; closed at the latest when nobody holds it."""

    def __init__(self, server: str) -> None:
        self.server = server
        try:
            self._socket = socket.create_connection(parse_server(server), timeout=_TIMEOUT_S)
        except OSError as error:
            raise Refused(
                f"cannot reach {server}: {error.strerror or error}; start a broker with `pentalog "
                "start` or name another one with --server HOST:PORT"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(4 << 20)

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._broke_off(error) from error

    def frame(self) -> memoryview:
        """The next frame without its length; good until the next one."""
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if size > 256 << 20:
            raise Refused(f"{self.server} announced {size} bytes: does another door listen there?")
        return self._exactly(size)

    def some(self) -> memoryview:
        """What has come, whole frames or not; good until the next call."""
        try:
            count = self._socket.recv_into(self._buffer)
            if not count:
                raise ConnectionError("the connection was closed")
        except OSError as error:
            raise self._broke_off(error) from error
        return memoryview(self._buffer)[:count]

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self.close()

    def _exactly(self, size: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        view, got = memoryview(self._buffer)[:size], 0
        try:
            while got < size:
                step = self._socket.recv_into(view[got:])
                if not step:
                    raise ConnectionError("the connection was closed")
                got += step
        except OSError as error:
            raise self._broke_off(error) from error
        return view

    def _broke_off(self, error: OSError) -> Refused:
        return Refused(f"{self.server} broke off: {error}; look at the broker's own log")


def _values(plan: Plan) -> list[bytes]:
    text = b"pentalog bench "
    value = (text * (plan.size // len(text) + 1))[: plan.size]
    return [value] * plan.batch


def _log_batch(plan: Plan) -> bytes:
    records = [Record(value) for value in _values(plan)]
    return bytes(batch.build(records, timestamp_ms=time.time_ns() // 1_000_000))


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


class Kafka:
    """Produce with acks=all, Fetch."""

    def __init__(self, plan: Plan, index: int) -> None:
        options = client_options(60_000, "pentalog-bench")
        try:
            self._connection = kafka.Connection(*parse_server(plan.server), options)
        except KafkaFailed as error:
            raise Refused(str(error)) from error
        self._at = Partition(plan.topic, index % plan.partitions)
        self._offset = 0
        self._waiting: list[int] = []
        self._version = self._connection.version(0)
        built = _log_batch(plan)
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": messages.ms(60_000),
            "topic_data": [
                {
                    "name": plan.topic,
                    "partition_data": [{"index": self._at.index, "records": built}],
                }
            ],
        }
        head = messages.head(0, self._version, 0, b"")
        self._body = messages.request(0, self._version, 0, b"", fields)[len(head) :]
        self._spare = bytearray(_FETCH_BYTES + (64 << 10))

    @staticmethod
    def prepare(plan: Plan) -> None:
        with Client(plan.server) as client:
            client.create_topic(plan.topic, plan.partitions, {})
            client.topic(plan.topic)

    def write(self) -> None:
        self._waiting.append(self._connection.send_raw(0, self._body))

    def written(self) -> None:
        data = self._connection.receive(self._waiting.pop(0))
        answer = messages.answer(0, self._version, bytes(data))
        (part,) = answer.responses[0].partition_responses
        kafka.checked(f"writing to {self._at}", part.error_code)

    def read(self) -> int:
        body = fetch.request_body(self._at, self._offset, _FETCH_BYTES, 500)
        asked = self._connection.send_raw(1, body)
        found = fetch.read_answer(self._connection.receive(asked, self._spare))
        kafka.checked(f"reading {self._at}", found.code)
        _, behind = kernels.fit_batches(found.data, 0, len(found.data), 1 << 40, 1 << 62)
        count = max(0, behind - self._offset)
        self._offset += count
        return count

    def close(self) -> None:
        self._connection.close()


class RustLog:
    """Produce and Fetch of the binary dialect."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._wire = Wire(plan.server)
        self._calls = BinaryCalls()
        self._topic, self._partition = plan.topic, index % plan.partitions
        self._call = self._calls.produce(plan.topic, self._partition, _values(plan))
        self._offset = 0

    @staticmethod
    def prepare(plan: Plan) -> None:
        wire = Wire(plan.server)
        call = BinaryCalls().create_topic(plan.topic, plan.partitions)
        wire.send(call.frame)
        call.read(wire.frame())
        wire.close()

    def write(self) -> None:
        self._wire.send(self._call.frame)

    def written(self) -> None:
        self._call.read(self._wire.frame())

    def read(self) -> int:
        asked = self._calls.fetch(self._topic, self._partition, self._offset, _FETCH_BYTES, "")
        self._wire.send(asked.frame)
        found = self._wire.frame()
        if found[0] != 0x02:
            asked.read(found)  # says what is wrong
        (count,) = _LENGTH.unpack_from(found, 1)
        (self._offset,) = struct.unpack_from(">Q", found, len(found) - 8)
        return int(count)

    def close(self) -> None:
        self._wire.close()


class BlipMQ:
    """Publishes of quality 1 with a fence behind each lot; polls of a subscription of quality 0."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._wire = Wire(plan.server)
        _greet(self._wire, plan.key)
        lots = blipmq.publishing(plan.topic, _values(plan), 1)
        self._lots = [lot.frames(16) + blipmq.ping(9) for lot in lots]
        subscribing = blipmq.subscribing(plan.topic, 0)
        self._wire.send(subscribing.frames(1) + blipmq.ping(9))
        answers = blipmq.Answers(9)
        while not answers.take(_blipmq_frame(self._wire)):
            pass
        subscription = subscribing.read(answers, 1)
        polls = min(plan.batch, blipmq.POLLS_MAX)
        self._polls = blipmq.polling(subscription, polls).frames(16) + blipmq.ping(9)
        self._delivery_bytes = 4 + 9 + 3 + len(plan.topic.encode()) + plan.size

    @staticmethod
    def prepare(plan: Plan) -> None:
        """Only see that we are let in: a topic is made by its first subscriber."""
        wire = Wire(plan.server)
        _greet(wire, plan.key)
        wire.close()

    def write(self) -> None:
        for lot in self._lots:
            self._wire.send(lot)

    def written(self) -> None:
        for _ in self._lots:
            answers = blipmq.Answers(9)
            while not answers.take(_blipmq_frame(self._wire)):
                for _, refusal in answers.refused:
                    raise refusal

    def read(self) -> int:
        self._wire.send(self._polls)
        data, fence = bytearray(), blipmq.encode(_PONG, 9)
        while not data.endswith(fence):
            data += self._wire.some()
        count, rest = divmod(len(data) - len(fence), self._delivery_bytes)
        if rest:
            answers = blipmq.Answers(9)
            for frame in blipmq.Reader().feed(bytes(data)):
                answers.take(frame)
            for _, refusal in answers.refused:
                raise refusal
            raise Refused(f"{self._wire.server} delivered records of another size")
        return count

    def close(self) -> None:
        self._wire.close()


def _blipmq_frame(wire: Wire) -> blipmq.Frame:
    data = wire.frame()
    if len(data) < 9:
        raise ConnectionLost("this is not a BlipMQ broker")
    return blipmq.Frame(data[0], int.from_bytes(data[1:9], "big"), bytes(data[9:]))


def _greet(wire: Wire, key: str) -> None:
    wire.send(blipmq.greeting(key))
    while not blipmq.greeted(_blipmq_frame(wire)):
        pass


class Cursus:
    """Batches with acks=-1, CONSUME."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._wire = Wire(plan.server)
        self._topic, self._partition = plan.topic, index % plan.partitions
        self._frame = _cursus_frame(plan, self._partition)
        self._offset = 0

    @staticmethod
    def prepare(plan: Plan) -> None:
        wire = Wire(plan.server)
        command = f"CREATE topic={plan.topic} partitions={plan.partitions}".encode()
        wire.send(_LENGTH.pack(len(command)) + command)
        said = bytes(wire.frame())
        wire.close()
        if said.startswith(b"ERROR"):
            raise Refused(advised(f"{plan.server} refused: {said.decode('utf-8', 'replace')}"))

    def write(self) -> None:
        self._wire.send(self._frame)

    def written(self) -> None:
        said = bytes(self._wire.frame())
        try:
            answer = json.loads(said)
        except ValueError:
            answer = {"error": said.decode("utf-8", "replace")}
        if answer.get("status") != "OK":
            raise Refused(f"{self._wire.server} refused: {answer.get('error')}")

    def read(self) -> int:
        place = f"partition={self._partition} offset={self._offset}"
        command = f"CONSUME topic={self._topic} {place} member=bench".encode()
        self._wire.send(_LENGTH.pack(len(command)) + command)
        found = self._wire.frame()
        if bytes(found[:2]) != b"\xba\x7c":
            said = bytes(found[:300]).decode("utf-8", "replace")
            raise Refused(f"{self._wire.server} refused: {said}")
        (count,) = struct.unpack_from(">i", found, 27 + len(self._topic.encode()))
        self._offset += count
        return int(count)

    def close(self) -> None:
        self._wire.close()


def _cursus_frame(plan: Plan, partition: int) -> bytes:
    head = b"\xba\x7c" + _text(plan.topic) + struct.pack(">iB", partition, 2) + b"-1"
    head += struct.pack(">BQQi", 0, 1, plan.batch, plan.batch)
    fixed = _text("pentalog-bench") + b"\x00\x00"
    stamp = time.time_ns()
    messages_ = b"".join(
        struct.pack(">QQ", 0, number) + fixed + struct.pack(">qI", stamp, len(value)) + value
        + bytes(16)
        for number, value in enumerate(_values(plan), 1)
    )  # fmt: skip
    return _LENGTH.pack(len(head) + len(messages_)) + head + messages_


class Fluvio:
    """Produce of the SPU with isolation 1 (all), one stream."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._wire = Wire(plan.server)
        self._topic, self._partition = plan.topic, index % plan.partitions
        built = _log_batch(plan)
        sent, _ = kernels.log_to_fluvio(built, 0, len(built), 0)
        body = b"\0" + struct.pack(">hii", -1, 60_000, 1) + _text(plan.topic)
        body += struct.pack(">iii", 1, self._partition, len(sent)) + bytes(sent) + bytes(4)
        self._frame = _fluvio_frame(0, 24, 1, body)
        self._streaming = False
        self._offset = 0

    @staticmethod
    def prepare(plan: Plan) -> None:
        wire = Wire(plan.controller)
        spec = b"\1" + struct.pack(">IIB", plan.partitions, 1, 1) + b"\0\0\4\0\0"
        inner = _text(plan.topic) + b"\0\0" + spec
        envelope = _text("Topic") + _LENGTH.pack(len(inner)) + inner
        wire.send(_fluvio_frame(1001, 19, 1, envelope))
        said = bytes(wire.frame())
        wire.close()
        (code,) = struct.unpack_from(">h", said, 4 + 2 + len(plan.topic.encode()))
        if code:
            raise Refused(advised(f"{plan.controller} refused to make {plan.topic}: error {code}"))

    def write(self) -> None:
        self._wire.send(self._frame)

    def written(self) -> None:
        said = self._wire.frame()
        # Correlation id, one topic and its name, one partition and its number.
        (code,) = struct.unpack_from(">h", said, 4 + 4 + 2 + len(self._topic.encode()) + 8)
        if code:
            raise Refused(advised(f"{self._wire.server} refused to write: error {code}"))

    def read(self) -> int:
        if not self._streaming:
            self._streaming = True
            body = _text(self._topic) + struct.pack(">IqiB", self._partition, 0, _FETCH_BYTES, 0)
            self._wire.send(_fluvio_frame(1003, 24, 1, body + bytes(4) + b"\0"))
        said = self._wire.frame()
        if struct.unpack_from(">i", said)[0] != 1:
            return 0
        position = 4 + 2 + len(self._topic.encode()) + 4 + 4 + 2 + 8 + 8 + 8 + 1
        (size,) = struct.unpack_from(">i", said, position)
        position, stop = position + 4, position + 4 + size
        before = self._offset
        while position < stop:
            base, length = struct.unpack_from(">qi", said, position)
            self._offset = base + struct.unpack_from(">i", said, position + 23)[0] + 1
            position += length + 12
        update = struct.pack(">IqI", 1, self._offset, 1)
        self._wire.send(_fluvio_frame(1005, 0, 2, update))
        return int(self._offset - before)

    def close(self) -> None:
        self._wire.close()


def _fluvio_frame(key: int, version: int, number: int, body: bytes) -> bytes:
    whole = struct.pack(">Hhi", key, version, number) + _text("pentalog-bench") + body
    return _LENGTH.pack(len(whole)) + whole


class Door(NamedTuple):
    server: str
    """Where it is unless another address is given."""
    prepare: Callable[[Plan], None]
    talk: Callable[[Plan, int], Talk]
    follows: bool = False
    """Readers get only what was written after they came."""


DOORS: Final = {
    "kafka": Door("127.0.0.1:9092", Kafka.prepare, Kafka),
    "rustlog": Door("127.0.0.1:9192", RustLog.prepare, RustLog),
    "blipmq": Door("127.0.0.1:5555", BlipMQ.prepare, BlipMQ, follows=True),
    "cursus": Door("127.0.0.1:9000", Cursus.prepare, Cursus),
    "fluvio": Door("127.0.0.1:9010", Fluvio.prepare, Fluvio),
}
