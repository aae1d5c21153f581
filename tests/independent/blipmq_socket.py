"""BlipMQ over a plain socket, written from the protocol document and from captured bytes alone.

Nothing of the broker or of its clients is used here, so that they cannot share a mistake with it.
Sections in quotes are those of the protocol document.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from types import TracebackType

DEADLINE_S = 30.0

# "Frame Layout"
FRAME_BYTES_MAX = 16 * 1024 * 1024
HEADER = struct.Struct(">IBQ")
HEADER_COUNTED_BYTES = 9

# "Frame Types"
HELLO = 0x01
AUTH = 0x02
PUBLISH = 0x03
SUBSCRIBE = 0x04
ACK = 0x05
NACK = 0x06
PING = 0x07
PONG = 0x08
POLL = 0x09


@dataclass(frozen=True)
class Frame:
    """Section "Frame Layout": what follows the length."""

    kind: int
    correlation_id: int
    payload: bytes = b""

    def encode(self) -> bytes:
        """Section "Frame Layout": the length counts type, correlation id and payload."""
        length = HEADER_COUNTED_BYTES + len(self.payload)
        return HEADER.pack(length, self.kind, self.correlation_id) + self.payload


@dataclass(frozen=True)
class Refusal:
    """Section "NACK": a code and a message."""

    correlation_id: int
    code: int
    message: str


@dataclass(frozen=True)
class Delivery:
    """Section "PUBLISH", sent as delivery."""

    correlation_id: int
    qos: int
    topic: str
    message: bytes


def hello(correlation_id: int, protocol_version: int = 1) -> Frame:
    """Section "HELLO": the version in two bytes."""
    return Frame(HELLO, correlation_id, struct.pack(">H", protocol_version))


def auth(correlation_id: int, key: str) -> Frame:
    """Section "AUTH": the key behind its length."""
    encoded = key.encode()
    return Frame(AUTH, correlation_id, struct.pack(">H", len(encoded)) + encoded)


def publish(correlation_id: int, topic: str, message: bytes, qos: int) -> Frame:
    """Section "PUBLISH": quality of service, topic behind its length, message to the end."""
    encoded = topic.encode()
    payload = struct.pack(">BH", qos, len(encoded)) + encoded + message
    return Frame(PUBLISH, correlation_id, payload)


def subscribe(correlation_id: int, topic: str, qos: int) -> Frame:
    """Section "SUBSCRIBE": topic behind its length, quality of service."""
    encoded = topic.encode()
    payload = struct.pack(">H", len(encoded)) + encoded + bytes([qos])
    return Frame(SUBSCRIBE, correlation_id, payload)


def ack(subscription_id: int, delivery_tag: int) -> Frame:
    """Section "ACK", for QoS1 delivery: the correlation id is the tag."""
    return Frame(ACK, delivery_tag, struct.pack(">Q", subscription_id))


def handshake_ack(correlation_id: int) -> Frame:
    """Section "ACK", handshake: subscription 0."""
    return Frame(ACK, correlation_id, struct.pack(">Q", 0))


def nack(correlation_id: int, code: int, message: str) -> Frame:
    """Section "NACK": code, message behind its length."""
    encoded = message.encode()
    return Frame(NACK, correlation_id, struct.pack(">HH", code, len(encoded)) + encoded)


def poll(correlation_id: int, subscription_id: int) -> Frame:
    """Section "POLL": the subscription."""
    return Frame(POLL, correlation_id, struct.pack(">Q", subscription_id))


def ping(correlation_id: int) -> Frame:
    """Section "PING / PONG": no payload."""
    return Frame(PING, correlation_id)


def pong(correlation_id: int) -> Frame:
    """Section "PING / PONG": the same correlation id, no payload."""
    return Frame(PONG, correlation_id)


def read_subscription(frame: Frame) -> int:
    """Section "SUBSCRIBE", on success: an ACK with the new id, eight bytes, not zero."""
    if frame.kind != ACK or len(frame.payload) != 8:
        raise ValueError(f"not an ACK: {frame}")
    (subscription_id,) = struct.unpack(">Q", frame.payload)
    if not subscription_id:
        raise ValueError("a subscription must not have the id of the handshake")
    return int(subscription_id)


def read_refusal(frame: Frame) -> Refusal:
    """Section "NACK": nothing follows the message."""
    if frame.kind != NACK:
        raise ValueError(f"not a NACK: {frame}")
    code, length = struct.unpack_from(">HH", frame.payload)
    if len(frame.payload) != 4 + length:
        raise ValueError(f"the message is not {length} bytes: {frame}")
    return Refusal(frame.correlation_id, code, frame.payload[4:].decode("utf-8"))


def read_delivery(frame: Frame) -> Delivery:
    """Section "PUBLISH": the same payload in both directions."""
    if frame.kind != PUBLISH:
        raise ValueError(f"not a PUBLISH: {frame}")
    qos, length = struct.unpack_from(">BH", frame.payload)
    if len(frame.payload) < 3 + length:
        raise ValueError(f"the topic is not {length} bytes")
    topic = frame.payload[3 : 3 + length].decode("utf-8")
    return Delivery(frame.correlation_id, qos, topic, frame.payload[3 + length :])


class Connection:
    """One long-lived connection: frames out, frames in."""

    FENCE = 0xFEED_FACE_0000_0000

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fences = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self._socket.sendall(data)

    def receive(self) -> Frame:
        """Section "Frame Layout": the next frame, its length within bounds."""
        length, kind, correlation_id = HEADER.unpack(self._exactly(HEADER.size))
        if not HEADER_COUNTED_BYTES <= length <= FRAME_BYTES_MAX:
            raise ValueError(f"the broker sent a frame of {length} bytes")
        payload = self._exactly(length - HEADER_COUNTED_BYTES)
        return Frame(kind, correlation_id, payload)

    def exchange(self, frame: Frame) -> Frame:
        """One frame there, one back."""
        self.send(frame.encode())
        return self.receive()

    def answers(self, *frames: Frame) -> list[Frame]:
        """Section "Frame Layout", pipelining: every answer to `frames`, in order.

        Many requests are answered by silence; a PING behind them tells when there is no more.
        """
        return self.answers_to_bytes(b"".join(frame.encode() for frame in frames))

    def answers_to_bytes(self, data: bytes) -> list[Frame]:
        """The same for frames that are bytes already."""
        self._fences += 1
        fence = self.FENCE + self._fences
        self.send(data + ping(fence).encode())
        answers = []
        while (frame := self.receive()).correlation_id != fence:
            answers.append(frame)
        if frame not in (pong(fence), nack(fence, 401, "unauthenticated")):
            raise ValueError(f"not an answer to PING: {frame}")
        return answers

    def open(self, key: str = "dev-key") -> None:
        """Section "HELLO / AUTH Handshake", as the sample frames have it."""
        for request in (hello(1), auth(2, key)):
            answer = self.exchange(request)
            if answer != handshake_ack(request.correlation_id):
                raise ValueError(f"refused: {answer}")

    def subscription(self, topic: str, qos: int) -> int:
        """Section "SUBSCRIBE"; gives the id."""
        answer = self.exchange(subscribe(3, topic, qos))
        if answer.correlation_id != 3:
            raise ValueError(f"answers another request: {answer}")
        return read_subscription(answer)

    def is_closed_by_broker(self) -> bool:
        """Section "Frame Layout": nothing more comes, and not for want of waiting."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            size = self._socket.recv_into(view)
            if not size:
                raise EOFError(f"the broker hung up {len(view)} bytes early")
            view = view[size:]
        return bytes(data)
