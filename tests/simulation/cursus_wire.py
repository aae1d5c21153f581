"""Cursus commands, batches and answers, as bytes, for the simulated clients."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from tests.simulation.judge import Item, Judge
from tests.simulation.kafka_wire import ID_HEADER, Read
from tests.simulation.violation import Violation
from tests.support.cursus_world import Message, messages_of

from pentalog.model.types import Record

MAGIC: Final = b"\xba\x7c"
_FIELD: Final = re.compile(r"(\w+)=(\S+)")


class Answer(NamedTuple):
    """A line of text."""

    text: str

    @property
    def code(self) -> str:
        """Of an error; empty if there is none."""
        if not self.text.startswith("ERROR: "):
            return ""
        return self.text.removeprefix("ERROR: ").split(None, 1)[0]

    def number(self, name: str) -> int:
        return int(dict(_FIELD.findall(self.text))[name])


def command(text: str, message: bytes | None = None) -> bytes:
    """A command in an envelope, as the clients send it."""
    return b"\0\0" + text.encode() + (b"" if message is None else b" message=" + message)


def answer(frame: bytes) -> Answer:
    return Answer(frame.decode("utf-8", "surrogateescape"))


def published(frame: bytes) -> tuple[str, int]:
    """(error, last offset) of the answer to a batch."""
    fields: dict[str, Any] = json.loads(frame)
    return ("" if fields["status"] == "OK" else fields["error"]), fields["last_offset"]


def page(frame: bytes) -> list[Message] | Answer:
    """The messages of a page, or the refusal."""
    return messages_of(frame) if frame[:2] == MAGIC else answer(frame)


def reads(judge: Judge, messages: list[Message]) -> list[Read]:
    """Messages as the judge knows records: an absent key or value is an empty one here."""
    return [_read(judge, message) for message in messages]


def _read(judge: Judge, message: Message) -> Read:
    entry = judge.find(message.payload)
    if entry is None and not message.payload:
        entry = judge.find(_identity_in(message.metadata))
    if entry is None:
        raise Violation(
            "phantom", f"no client wrote what is at {message.offset}: {message.payload[:60]!r}"
        )
    sent, number = entry
    item: Item = sent.items[number]
    key, value = item.key, item.value
    if (key or b"", value or b"") != (message.key, message.payload):
        key, value = message.key, message.payload
    return Read(message.offset, Record(value, key, ((ID_HEADER, item.identity),)), -1, False)


def _identity_in(metadata: bytes) -> bytes:
    """The header that tells Kafka's records from each other."""
    headers = json.loads(metadata)["headers"] if metadata else []
    return next((value.encode() for name, value in headers if name == ID_HEADER), b"")
