"""Record batches to Cursus batches; their layout is in `cursus.py`."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Final

from pentalog.kernels.cursus_facts import CursusPage
from pentalog.kernels.facts import Buffer, Malformed
from pentalog.kernels.pure.batch import batch_header
from pentalog.kernels.pure.cursus import Message, Short, Walk, lend

_TEXT_BYTES_MAX: Final = 65_535
_HEADER_BYTES: Final = 61
_FRAMING_BYTES: Final = 12
_LENGTH_MIN: Final = 49
_DOOR_SHIFT: Final = 8
_U64: Final = (1 << 64) - 1
_MESSAGE_FIXED_BYTES: Final = 48


class _Page:
    def __init__(
        self, out: bytearray, *, offset: int, messages_max: int, bytes_max: int,
        frame_bytes_max: int, key: bytes | None, version_from: int,
    ) -> None:  # fmt: skip
        self.out = out
        self.count = 0
        self.next_offset = self.unshown = -1
        self.seq_first = self.seq_last = 0
        self._offset = offset
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._frame_bytes_max = frame_bytes_max
        self._key = key
        self._version_from = version_from

    def add(self, walk: Walk, offset: int, key: bytes | None, value: bytes | None) -> bool:
        """Take one record; False if the page is full before it."""
        if offset < self._offset or (self._key is not None and key != self._key):
            return True
        message, foreign = _message_of(walk, offset, key, value)
        if self._key is not None and (
            not message.aggregate or message.aggregate < self._version_from
        ):
            return True
        if self.count >= self._messages_max:
            self.next_offset = offset
            return False
        if foreign and not message.metadata:
            message = message._replace(metadata=_shown(foreign))
        texts = (message.producer, message.key, message.event_type, message.metadata)
        size = len(self.out) - 4 + _MESSAGE_FIXED_BYTES + len(message.payload)
        size += sum(map(len, texts))
        too_long = any(len(text) > _TEXT_BYTES_MAX for text in texts)
        if too_long or size > self._frame_bytes_max:
            if self.count == 0:
                self.unshown = offset
            self.next_offset = offset
            return False
        if self.count and size > self._bytes_max:
            self.next_offset = offset
            return False
        self.out += _encoded(offset, message)
        if self.count == 0:
            self.seq_first = message.seq
        self.seq_last = message.seq
        self.count += 1
        return True


def cursus_page(
    batches: Buffer,
    start: int,
    end: int,
    head: bytes,
    *,
    offset: int,
    messages_max: int,
    bytes_max: int,
    frame_bytes_max: int,
    key: bytes | None = None,
    version_from: int = 0,
    door: int = -1,
) -> CursusPage:
    """A frame of messages from `offset` on; with `key` only events of that aggregate.

    With `door` only records whose batch was built by the door of that number.
    """
    page = _Page(
        bytearray(4) + head + bytes(20),
        offset=offset,
        messages_max=messages_max,
        bytes_max=bytes_max,
        frame_bytes_max=frame_bytes_max,
        key=key,
        version_from=version_from,
    )
    for walk, at, record_key, value in _records(lend(batches, start, end), start, end, door):
        if not page.add(walk, at, record_key, value):
            break
    struct.pack_into(">I", page.out, 0, len(page.out) - 4)
    counts = struct.pack(">QQi", page.seq_first, page.seq_last, page.count)
    page.out[4 + len(head) : 24 + len(head)] = counts
    return CursusPage(page.out, page.count, page.next_offset, page.unshown)


def _records(
    view: memoryview, position: int, end: int, door: int
) -> Iterator[tuple[Walk, int, bytes | None, bytes | None]]:
    """Each record: a walk that stands before its headers, its offset, key and value."""
    while position < end:
        if end - position < _HEADER_BYTES or view[position + 16] != 2:
            raise Malformed("no whole uncompressed batch where one must be")
        header = batch_header(view, position)
        whole = _LENGTH_MIN + _FRAMING_BYTES <= header.size <= end - position
        if not whole or header.attributes & 7:
            raise Malformed("no whole uncompressed batch where one must be")
        if door >= 0 and header.attributes >> _DOOR_SHIFT & 7 != door:
            position += header.size
            continue
        walk = Walk(view, position + _HEADER_BYTES, position + header.size)
        for index in range(header.records):
            try:
                length = walk.varint()
                if not 1 <= length <= walk.end - walk.position:
                    raise Short
                record = Walk(view, walk.position, walk.position + length)
                record.take(1)
                record.varint()
                delta = record.varint()
                key, value = record.chunk(), record.chunk()
                headers = record.position
                count = record.varint()
                if not 0 <= count <= record.end - record.position:
                    raise Short
                record.position = headers
            except Short:
                raise Malformed(
                    f"record {index} of the batch at {header.base_offset} is malformed"
                ) from None
            offset = (header.base_offset + delta + (1 << 63)) % (1 << 64) - (1 << 63)
            yield record, offset, key, value
            walk.position = record.end
        position += header.size


def _message_of(
    walk: Walk, offset: int, key: bytes | None, value: bytes | None
) -> tuple[Message, list[tuple[bytes, bytes | None]]]:
    """(message, headers that are not Cursus' own)."""
    own: dict[str, bytes | int] = {}
    foreign: list[tuple[bytes, bytes | None]] = []
    try:
        for _ in range(walk.varint()):
            name = walk.chunk()
            if name is None:
                raise Short
            content = walk.chunk()
            field = _own(name, content)
            if field is None:
                foreign.append((name, content))
            else:
                own[field[0]] = field[1]
        if walk.position != walk.end:
            raise Short
    except Short:
        raise Malformed(f"the record at offset {offset} is malformed") from None
    fields = Message(key=key or b"", payload=value or b"")
    return fields._replace(**own), foreign  # type: ignore[arg-type]  # by the table below


_TEXTS: Final = {
    b"cursus.producer_id": "producer",
    b"cursus.event_type": "event_type",
    b"cursus.metadata": "metadata",
}
_NUMBERS: Final = {
    b"cursus.seq": ("seq", 0, _U64),
    b"cursus.epoch": ("epoch", 1 << 63, (1 << 63) - 1),
    b"cursus.aggregate_version": ("aggregate", 0, _U64),
    b"cursus.schema_version": ("schema", 0, (1 << 32) - 1),
}


def _own(name: bytes, content: bytes | None) -> tuple[str, bytes | int] | None:
    if name in _TEXTS:
        return _TEXTS[name], content or b""
    if name not in _NUMBERS or content is None:
        return None
    field, least, most = _NUMBERS[name]
    negative = bool(least) and content.startswith(b"-")
    digits = content[1:] if negative else content
    if not digits.isdigit() or len(digits) > 20 or int(digits) > (least if negative else most):
        return None
    return field, -int(digits) if negative else int(digits)


def _shown(headers: list[tuple[bytes, bytes | None]]) -> bytes:
    pairs = [[_json(name), _json(content)] for name, content in headers]
    return json.dumps({"headers": pairs}, ensure_ascii=False, separators=(",", ":")).encode()


def _json(content: bytes | None) -> str | dict[str, str] | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _encoded(offset: int, message: Message) -> bytes:
    return b"".join(
        (
            struct.pack(">qQ", offset, message.seq),
            _text(message.producer),
            _text(message.key),
            struct.pack(">qI", message.epoch, len(message.payload)),
            message.payload,
            _text(message.event_type),
            struct.pack(">IQ", message.schema, message.aggregate),
            _text(message.metadata),
        )
    )


def _text(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text
