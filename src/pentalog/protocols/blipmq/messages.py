"""What the small frames of BlipMQ say; every flaw is a `Nack` with the original's code and text."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

PROTOCOL_VERSION: Final = 1

_U16: Final = struct.Struct(">H")


class Nack(Exception):
    """The request is refused with this code and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Subscribe(NamedTuple):
    topic: str
    qos: int


def check_hello(payload: bytes) -> None:
    if len(payload) != _U16.size:
        raise Nack(400, "invalid HELLO payload")
    if _U16.unpack(payload)[0] != PROTOCOL_VERSION:
        raise Nack(426, "unsupported protocol version")


def read_auth(payload: bytes) -> str:
    """The key."""
    flaw = Nack(400, "invalid AUTH payload")
    if len(payload) < _U16.size or _U16.unpack_from(payload)[0] != len(payload) - _U16.size:
        raise flaw
    try:
        return str(payload[_U16.size :], "utf-8")
    except UnicodeDecodeError:
        raise flaw from None


def read_subscribe(payload: bytes) -> Subscribe:
    """Bytes behind the quality are tolerated, as the original does."""
    flaw = Nack(400, "invalid SUBSCRIBE payload")
    if len(payload) < _U16.size:
        raise flaw
    end = _U16.size + _U16.unpack_from(payload)[0]
    if end >= len(payload):
        raise flaw
    try:
        topic = str(payload[_U16.size : end], "utf-8")
    except UnicodeDecodeError:
        raise flaw from None
    _check_topic(topic)
    _check_qos(payload[end])
    return Subscribe(topic, payload[end])


def check_publish(payload: bytes) -> None:
    """Say what is wrong with a PUBLISH that the kernel did not take."""
    flaw = Nack(400, "invalid PUBLISH payload")
    if len(payload) < 3:
        raise flaw
    end = 3 + _U16.unpack_from(payload, 1)[0]
    if end > len(payload):
        raise flaw
    try:
        topic = str(payload[3:end], "utf-8")
    except UnicodeDecodeError:
        raise flaw from None
    _check_topic(topic)
    _check_qos(payload[0])


def check_number(payload: bytes, name: str) -> None:
    """Say what is wrong with a POLL or ACK that the kernel did not take."""
    if len(payload) != 8:
        raise Nack(400, f"invalid {name} payload")
    if payload == bytes(8):
        raise Nack(400, "subscription_id must be non-zero")


def _check_topic(topic: str) -> None:
    if not topic:
        raise Nack(400, "empty topic")


def _check_qos(qos: int) -> None:
    if qos > 1:
        raise Nack(400, "invalid QoS value")
