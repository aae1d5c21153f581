"""SmartModules of a request: what they are shown, and what is made of what they give back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from pentalog import kernels
from pentalog.broker.port import Opened
from pentalog.broker.transformation import Chain, Failure, Link, Section
from pentalog.kernels import Buffer
from pentalog.model.errors import BrokerError, SmartModuleInvalid, SmartModuleNotFound
from pentalog.model.later import Later, all_of
from pentalog.model.types import Edge, Offset, Partition
from pentalog.protocols.fluvio import errors, records
from pentalog.protocols.fluvio.codec import Writer
from pentalog.protocols.fluvio.errors import WireError
from pentalog.protocols.fluvio.messages import BATCH_HEADER_BYTES
from pentalog.session import Context

LOOKBACK_BYTES_MAX: Final = 16 << 20
_HEADER: Final = struct.Struct(">qiibIhiqqqhi")
_U32: Final = struct.Struct(">I")
_I32: Final = struct.Struct(">i")


def sections_of(record_set: Buffer) -> list[Section]:
    """The batches of a record set that is not compressed, as modules are shown them."""
    view = memoryview(record_set)
    found: list[Section] = []
    position = 0
    while position < len(view):
        fields = _HEADER.unpack_from(view, position)
        end = position + fields[1] + 12
        start = position + BATCH_HEADER_BYTES
        if fields[5] & records.SCHEMA:
            start += _U32.size
        found.append(Section(fields[0], fields[7], view[start:end]))
        position = end
    return found


def records_in(sections: Sequence[Section]) -> int:
    return sum(int(_I32.unpack_from(section.records)[0]) for section in sections)


def record_set_of(sections: Sequence[Section]) -> bytearray:
    """Batches around what modules gave back; positions in them count from the first record."""
    out = bytearray()
    for section in sections:
        start = len(out)
        (count,) = _I32.unpack_from(section.records)
        length = BATCH_HEADER_BYTES - 12 + len(section.records)
        timestamp = section.base_timestamp
        out += _HEADER.pack(
            section.base_offset, length, -1, 2, 0, 0, count - 1, timestamp, timestamp, -1, -1, -1
        )
        out += section.records
        _U32.pack_into(out, start + 17, kernels.crc32c(bytes(memoryview(out)[start + 21 :])))
    return out


def log_batch_of(section: Section, headers: bytes) -> bytearray:
    """A batch of the log around what modules gave back."""
    header = _HEADER.pack(0, 0, -1, 2, 0, 0, 0, section.base_timestamp, 0, -1, -1, -1)
    return kernels.fluvio_to_log(
        header,
        0,
        section.records,
        0,
        len(section.records),
        counted=True,
        attributes=records.DOOR,
        headers=headers,
    )


def runtime_error(failure: Failure) -> WireError:
    """The record a module failed at, in Fluvio's words."""
    body = Writer(0).text(failure.hint).i64(failure.offset).u8(failure.kind)
    if failure.key is None:
        body.u8(0)
    else:
        body.u8(1).varint(len(failure.key)).raw(failure.key)
    body.varint(len(failure.value)).raw(failure.value)
    return WireError(errors.MODULE_RUNTIME, bytes(body.out))


def chain_error(refusal: BrokerError) -> WireError:
    """Why a chain could not be started."""
    if isinstance(refusal, SmartModuleNotFound | SmartModuleInvalid):
        return errors.error_of(refusal)
    return errors.other(str(refusal))


def looked_back(
    context: Context, at: Partition, chain: Chain, links: Sequence[Link]
) -> Later[None]:
    """Show a chain the newest records, as many and as young as it wants them."""
    wanted = chain.looks_back
    if not wanted:
        return Later.now(None)
    log, known = context.broker.log, context.broker.knowledge
    ages = [link.lookback_ms for link in links if link.lookback_ms is not None]
    since_ms = context.runtime.now_ms() - max(ages) if ages else None
    asked: list[Later[Any]] = [known.partitions(at.topic, (at.index,))]
    if since_ms is not None:
        asked += (known.located(at, since_ms), log.ends((at,)))
    looked: Later[None] = Later()
    start = 0

    def look(later: Later[None]) -> None:
        try:
            _ = later.value
            log.locate(at, Edge.START if since_ms is None else since_ms).then(located)
        except BrokerError as refusal:
            looked.refuse(refusal)

    def located(later: Later[tuple[Offset, int]]) -> None:
        nonlocal start
        try:
            offset, _ = later.value
            marks = log.marks(at)
            start = max(marks.start, marks.end - wanted, marks.end if offset < 0 else offset)
            horizon = records.horizon_of(context.broker, committed=False)
            log.open(at, start, bytes_max=LOOKBACK_BYTES_MAX, horizon=horizon).then(opened)
        except BrokerError as refusal:
            looked.refuse(refusal)

    def opened(later: Later[Opened]) -> None:
        try:
            record_set, _ = records.from_log(later.value.batches, start)
            chain.look_back(sections_of(record_set)).then(pass_on)
        except BrokerError as refusal:
            looked.refuse(refusal)

    def pass_on(later: Later[None]) -> None:
        try:
            looked.fill(later.value)
        except BrokerError as refusal:
            looked.refuse(refusal)

    all_of(asked).then(look)
    return looked
