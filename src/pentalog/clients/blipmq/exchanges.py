"""What is sent and how the answers are read; no socket here.

Success is silent in BlipMQ, so everything is followed by a PING: when its PONG is there, all that
came before has been answered, and publishes of quality 1 are on the disk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from pentalog.clients.reconnection import ConnectionLost, Trouble

T = TypeVar("T")

FRAME_BYTES_MAX: Final = 16 << 20
CHUNK_BYTES: Final = 256 << 10
"""Publishes sent before the next fence."""
POLLS_MAX: Final = 1_000
PROTOCOL_VERSION: Final = 1
READ_BYTES: Final = 256 << 10

_HELLO, _AUTH, _PUBLISH, _SUBSCRIBE, _ACK, _NACK, _PING, _PONG, _POLL = range(1, 10)
_HEAD: Final = struct.Struct(">IBQ")
_U16: Final = struct.Struct(">H")
_U64: Final = struct.Struct(">Q")
_PUBLISHED: Final = struct.Struct(">BH")
_REFUSED: Final = struct.Struct(">HH")
_SERVER_CODE_MIN: Final = 500


class BlipmqError(Exception):
    """The broker refused; `code` is BlipMQ's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (code {code})")
        self.code = code
        self.text = text


class ClientError(BlipmqError):
    """The request is wrong: sending it again would not help."""


class ServerError(BlipmqError, Trouble):
    """The broker has trouble: it may help to send it again."""


class Delivery(NamedTuple):
    """One message."""

    topic: str
    message: bytes
    qos: int
    tag: int
    """To acknowledge it by; 0 if that is not asked for."""


class Frame(NamedTuple):
    kind: int
    correlation: int
    payload: bytes


@dataclass(slots=True)
class Answers:
    """What came back up to the fence."""

    fence: int
    published: list[Frame] = field(default_factory=list)
    acknowledged: list[Frame] = field(default_factory=list)
    refused: list[tuple[int, BlipmqError]] = field(default_factory=list)
    """Correlation ids and what was said to them."""

    def take(self, frame: Frame) -> bool:
        """Is it the last?"""
        if frame.kind == _PUBLISH:
            self.published.append(frame)
        elif frame.kind == _ACK:
            self.acknowledged.append(frame)
        elif frame.kind == _NACK:
            self.refused.append((frame.correlation, _refusal(frame.payload)))
        elif frame.kind != _PONG:
            raise ConnectionLost(f"a frame of type {frame.kind}; this is not a BlipMQ broker")
        return frame.kind == _PONG and frame.correlation == self.fence


class Reader:
    """Takes frames out of what was received."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        self._data += data
        found: list[Frame] = []
        position = 0
        view = memoryview(self._data)
        while len(view) - position >= _HEAD.size:
            length, kind, correlation = _HEAD.unpack_from(view, position)
            if not _HEAD.size - 4 <= length <= FRAME_BYTES_MAX:
                raise ConnectionLost(f"a frame of {length} bytes; this is not a BlipMQ broker")
            end = position + 4 + length
            if end > len(view):
                break
            found.append(Frame(kind, correlation, bytes(view[position + _HEAD.size : end])))
            position = end
        view.release()
        del self._data[:position]
        return found


@dataclass(frozen=True, slots=True)
class Exchange(Generic[T]):
    """Frames to be sent before a PING, made when their ids are known, and what the answers mean.

    `frames` gets the first free correlation id; ids from there on may be used by them.
    """

    frames: Callable[[int], bytes]
    ids: int
    read: Callable[[Answers, int], T]


def encode(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(9 + len(payload), kind, correlation) + payload


def ping(correlation: int) -> bytes:
    return encode(_PING, correlation)


def greeting(key: str) -> bytes:
    """HELLO and AUTH, with ids 1 and 2."""
    encoded = key.encode()
    return encode(_HELLO, 1, _U16.pack(PROTOCOL_VERSION)) + encode(
        _AUTH, 2, _U16.pack(len(encoded)) + encoded
    )


def greeted(frame: Frame) -> bool:
    """Take an answer to the greeting; True after the second."""
    if frame.kind == _NACK:
        raise _refusal(frame.payload)
    if frame.kind != _ACK:
        raise ConnectionLost(f"a frame of type {frame.kind}; this is not a BlipMQ broker")
    return frame.correlation == 2


def publishing(topic: str, messages: Sequence[bytes], qos: int) -> list[Exchange[None]]:
    """Exchanges of a bearable size."""
    if qos not in (0, 1):
        raise ValueError(f"quality {qos}; it is 0 or 1")
    name = topic.encode()
    head = _PUBLISHED.pack(qos, len(name)) + name
    size_max = FRAME_BYTES_MAX - 9 - len(head)
    found: list[Exchange[None]] = []
    chunk: list[bytes] = []
    size = 0
    for message in messages:
        if len(message) > size_max:
            raise ValueError(
                f"a message of {len(message)} bytes; at most {size_max} fit a frame of this topic"
            )
        if chunk and size + len(message) > CHUNK_BYTES:
            found.append(_publishing(head, chunk))
            chunk, size = [], 0
        chunk.append(message)
        size += len(message) + _HEAD.size + len(head)
    if chunk:
        found.append(_publishing(head, chunk))
    return found


def _publishing(head: bytes, messages: list[bytes]) -> Exchange[None]:
    def frames(first: int) -> bytes:
        return b"".join(
            encode(_PUBLISH, first + place, head + message)
            for place, message in enumerate(messages)
        )

    return Exchange(frames, len(messages), _read_nothing)


def _read_nothing(answers: Answers, _: int) -> None:
    for _, refusal in answers.refused:
        raise refusal


def subscribing(topic: str, qos: int) -> Exchange[int]:
    name = topic.encode()
    payload = _U16.pack(len(name)) + name + bytes((qos,))

    def read(answers: Answers, first: int) -> int:
        _read_nothing(answers, first)
        for frame in answers.acknowledged:
            if frame.correlation == first:
                return int(_U64.unpack(frame.payload)[0])
        raise ConnectionLost("no answer to a SUBSCRIBE; this is not a BlipMQ broker")

    return Exchange(lambda first: encode(_SUBSCRIBE, first, payload), 1, read)


def polling(subscription: int, count: int) -> Exchange[list[Delivery]]:
    payload = _U64.pack(subscription)
    count = min(count, POLLS_MAX)

    def frames(first: int) -> bytes:
        return b"".join(encode(_POLL, first + place, payload) for place in range(count))

    def read(answers: Answers, first: int) -> list[Delivery]:
        _read_nothing(answers, first)
        return [_delivery(frame) for frame in answers.published]

    return Exchange(frames, count, read)


def acknowledging(subscription: int, tags: Sequence[int]) -> Exchange[list[int]]:
    payload = _U64.pack(subscription)

    def read(answers: Answers, _: int) -> list[int]:
        for _, refusal in answers.refused:
            if refusal.code != 404:
                raise refusal
        return [tag for tag, _ in answers.refused]

    return Exchange(lambda first: b"".join(encode(_ACK, tag, payload) for tag in tags), 0, read)


def pinging() -> Exchange[None]:
    return Exchange(lambda first: b"", 0, _read_nothing)


def _delivery(frame: Frame) -> Delivery:
    if len(frame.payload) >= _PUBLISHED.size:
        qos, size = _PUBLISHED.unpack_from(frame.payload)
        end = _PUBLISHED.size + size
        if end <= len(frame.payload):
            topic = str(frame.payload[_PUBLISHED.size : end], "utf-8", "replace")
            return Delivery(topic, frame.payload[end:], qos, frame.correlation if qos else 0)
    raise ConnectionLost("a delivery that cannot be read; this is not a BlipMQ broker")


def _refusal(payload: bytes) -> BlipmqError:
    if len(payload) < _REFUSED.size:
        raise ConnectionLost("a NACK that cannot be read; this is not a BlipMQ broker")
    code, size = _REFUSED.unpack_from(payload)
    text = str(payload[_REFUSED.size : _REFUSED.size + size], "utf-8", "replace")
    return (ServerError if code >= _SERVER_CODE_MIN else ClientError)(code, text)
