"""BlipMQ frames, as bytes, for the simulated clients."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL = range(1, 10)

_HEAD: Final = struct.Struct(">IBQ")
_KEY: Final = b"dev-key"


class Frame(NamedTuple):
    kind: int
    correlation: int
    payload: bytes


class Delivery(NamedTuple):
    """A PUBLISH frame that the broker sent."""

    correlation: int
    quality: int
    topic: str
    message: bytes


class Refusal(NamedTuple):
    correlation: int
    code: int
    text: str


def frame(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    """A whole frame, with its length."""
    return _HEAD.pack(9 + len(payload), kind, correlation) + payload


def login() -> bytes:
    """HELLO and AUTH; both are answered with an ACK."""
    hello = frame(HELLO, 0, struct.pack(">H", 1))
    return hello + frame(AUTH, 0, struct.pack(">H", len(_KEY)) + _KEY)


def publish(correlation: int, quality: int, topic: str, message: bytes) -> bytes:
    name = topic.encode()
    payload = struct.pack(">BH", quality, len(name)) + name + message
    return frame(PUBLISH, correlation, payload)


def subscribe(correlation: int, topic: str, quality: int) -> bytes:
    name = topic.encode()
    payload = struct.pack(">H", len(name)) + name + bytes((quality,))
    return frame(SUBSCRIBE, correlation, payload)


def poll(correlation: int, subscription: int) -> bytes:
    return frame(POLL, correlation, struct.pack(">Q", subscription))


def acknowledge(tag: int, subscription: int) -> bytes:
    return frame(ACK, tag, struct.pack(">Q", subscription))


def ping(correlation: int) -> bytes:
    return frame(PING, correlation)


def read(data: bytes) -> Frame:
    """A frame without its length, as `wire.Connection` hands it over."""
    kind, correlation = struct.unpack_from(">BQ", data)
    return Frame(kind, correlation, data[9:])


def delivery(received: Frame) -> Delivery:
    quality, size = struct.unpack_from(">BH", received.payload)
    topic = received.payload[3 : 3 + size].decode()
    return Delivery(received.correlation, quality, topic, received.payload[3 + size :])


def refusal(received: Frame) -> Refusal:
    code, _ = struct.unpack_from(">HH", received.payload)
    return Refusal(received.correlation, code, received.payload[4:].decode())


def subscription_of(received: Frame) -> int:
    """The number in an ACK to SUBSCRIBE."""
    number: int = struct.unpack(">Q", received.payload)[0]
    return number
