"""Batches and acknowledgements: what stands around the records that the kernels translate."""

from __future__ import annotations

import json
import struct
from typing import Final

from pentalog.kernels import CursusFrame, read_cursus
from pentalog.kernels.cursus_facts import (
    CURSUS_COUNT,
    CURSUS_MESSAGE,
    CURSUS_MESSAGES_MAX,
    CURSUS_PARTITION,
    CURSUS_REST,
    CURSUS_SHORT,
    CURSUS_TOPIC,
)
from pentalog.model.batch import DOOR_SHIFT, DOORS
from pentalog.model.buffers import LARGE_BYTES, join_buffers
from pentalog.model.types import Ack
from pentalog.protocols.cursus.compression import MAGIC
from pentalog.protocols.cursus.errors import Refused, plain

DOOR: Final = DOORS.index("cursus")
ATTRIBUTES: Final = DOOR << DOOR_SHIFT
COUNTS_BYTES: Final = 20
"""Two sequence numbers and the number of messages, between a head and the messages."""

FLAWS: Final = {
    CURSUS_SHORT: "the batch ends inside its header",
    CURSUS_TOPIC: "the length of the topic is not 1..249 or larger than the batch",
    CURSUS_PARTITION: "the partition is neither an int32 below 65536 nor a string of 1..10 digits",
    CURSUS_COUNT: f"the number of messages is not 0..{CURSUS_MESSAGES_MAX}",
    CURSUS_MESSAGE: "the batch ends inside a message",
    CURSUS_REST: "bytes are left behind the last message",
}

_ACKS: Final = {
    b"": Ack.WRITTEN,
    b"0": Ack.NONE,
    b"1": Ack.WRITTEN,
    b"-1": Ack.DURABLE,
    b"all": Ack.DURABLE,
}


def ack_of(acks: bytes) -> Ack:
    found = _ACKS.get(acks.lower())
    if found is None:
        raise Refused(f"invalid_acks value={acks[:20].decode('utf-8', 'replace')}")
    return found


def head(topic: bytes, partition: int, *, document: bool) -> bytes:
    """The beginning of a batch that is sent: everything before the sequence numbers."""
    start = MAGIC + struct.pack(">H", len(topic)) + topic
    if not document:
        return start + struct.pack(">i", partition) + b"\x011\x00"
    digits = b"%d" % partition
    return start + struct.pack(">H", len(digits)) + digits + b"\x00\x011\x00"


def empty(start: bytes) -> bytes:
    """A whole frame without messages."""
    return struct.pack(">I", len(start) + COUNTS_BYTES) + start + bytes(COUNTS_BYTES)


def single(
    *,
    producer: bytes = b"",
    seq: int = 0,
    epoch: int = 0,
    key: bytes = b"",
    payload: bytes | bytearray,
    event_type: bytes = b"",
    schema: int = 0,
    aggregate: int = 0,
    metadata: bytes = b"",
) -> tuple[bytes | bytearray, CursusFrame]:
    """One message given as text, as a batch, so that all records take the same way."""
    for field in (producer, key, event_type, metadata):
        if len(field) > 65_535:
            raise Refused(f'invalid_payload reason="a field of {len(field)} bytes; 65535 fit"')
    # In one piece at once: a payload may be 16 MiB.
    parts = (
        head(b"-", 0, document=False),
        struct.pack(">QQi", seq, seq, 1),
        struct.pack(">QQH", 0, seq, len(producer)),
        producer,
        struct.pack(">H", len(key)),
        key,
        struct.pack(">qI", epoch, len(payload)),
        payload,
        struct.pack(">H", len(event_type)),
        event_type,
        struct.pack(">IQH", schema, aggregate, len(metadata)),
        metadata,
    )
    data = b"".join(parts) if len(payload) < LARGE_BYTES else join_buffers(*parts)
    return data, read_cursus(data, 0, len(data))


def acknowledgement(read: CursusFrame, last_offset: int) -> bytes:
    """The answer to a batch that was stored; all eight fields in the document's dialect."""
    rest = b',"leader":"","error":""}' if read.document else b"}"
    return (
        b'{"status":"OK","last_offset":%d,"producer_epoch":%d,"producer_id":%b,'
        b'"seq_start":%d,"seq_end":%d'
        % (last_offset, read.epoch, _quoted(read.producer), read.seq_first, read.seq_last)
    ) + rest


def refusal(read: CursusFrame | None, text: str) -> bytes:
    """The answer to a batch of which nothing was stored."""
    fields = {
        "status": "ERROR",
        "last_offset": 0,
        "producer_epoch": read.epoch if read else 0,
        "producer_id": read.producer.decode("utf-8", "replace") if read else "",
        "seq_start": read.seq_first if read else 0,
        "seq_end": read.seq_last if read else 0,
        "leader": "",
        "error": plain(text),
    }
    if read is None or not read.document:
        del fields["leader"]
    return json.dumps(fields, separators=(",", ":")).encode()


def _quoted(producer: bytes) -> bytes:
    return json.dumps(producer.decode("utf-8", "replace")).encode()
