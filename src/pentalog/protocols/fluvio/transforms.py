"""SmartModules of a request: what they are shown, and what is made of what they give back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pentalog import kernels
from pentalog.broker.port import Opened
from pentalog.broker.security import Kind, Operation
from pentalog.broker.transformation import Chain, Failure, Link, Section
from pentalog.kernels import Buffer, Malformed
from pentalog.model.errors import (
    BatchCorrupt,
    BrokerError,
    SmartModuleInvalid,
    SmartModuleNotFound,
    Unauthorized,
)
from pentalog.model.later import Later, all_of
from pentalog.model.types import Edge, Offset, Partition
from pentalog.protocols.fluvio import errors, records
from pentalog.protocols.fluvio.codec import Writer
from pentalog.protocols.fluvio.errors import WireError
from pentalog.protocols.fluvio.messages import BATCH_HEADER_BYTES
from pentalog.session import Context

LANE: Final = "translate"
INLINE_BYTES_MAX: Final = 32 << 10
"""Opened, translated and compressed again where it is received; more is done on a lane."""
TRANSLATED_BYTES_MAX: Final = 256 << 10
"""Translated where it is received, if it is not compressed; more is done on a lane."""
STREAMED_BYTES_MAX: Final = 1 << 20
"""What modules gave back that is put into batches at once; more is done on a lane."""
LOOKBACK_BYTES_MAX: Final = 16 << 20
LOOKBACK_STEP_BYTES: Final = 256 << 10
"""Read at a time: many chains may wait for a lane together, each with what it is to be shown."""
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


def size_of(sections: Sequence[Section]) -> int:
    return sum(len(section.records) for section in sections)


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
        _U32.pack_into(out, start + 17, kernels.crc32c(memoryview(out)[start + 21 :]))
    return out


def log_batches_of(sections: Sequence[Section], headers: bytes) -> list[bytearray]:
    """Batches of the log around what modules gave back; runs on any thread."""
    try:
        return [_log_batch_of(section, headers) for section in sections]
    except Malformed as flaw:
        raise BatchCorrupt(f"the SmartModule gave back what cannot be kept: {flaw}") from flaw


def _log_batch_of(section: Section, headers: bytes) -> bytearray:
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
    if isinstance(refusal, SmartModuleNotFound | SmartModuleInvalid | Unauthorized):
        return errors.error_of(refusal)
    return errors.other(str(refusal))


def looked_back(
    context: Context, at: Partition, chain: Chain, links: Sequence[Link]
) -> Later[None]:
    """Show a chain the newest records, as many and as young as it wants them.

    Raises `Unauthorized` if this client may not read them: a program can tell what it is shown.
    """
    wanted = chain.looks_back
    if not wanted:
        return Later.now(None)
    context.access.check(Operation.READ, Kind.TOPIC, at.topic)
    return _LookingBack(context, at, chain, wanted).start(links)


class _LookingBack:
    """Reads a part of the newest records at a time, the next when the chain has seen the last."""

    def __init__(self, context: Context, at: Partition, chain: Chain, wanted: int) -> None:
        self._context = context
        self._at = at
        self._chain = chain
        self._wanted = wanted
        self._horizon = records.horizon_of(context.broker, committed=False)
        self._offset = self._end = 0
        self._bytes_left = LOOKBACK_BYTES_MAX
        self._looked: Later[None] = Later()

    def start(self, links: Sequence[Link]) -> Later[None]:
        broker = self._context.broker
        ages = [link.lookback_ms for link in links if link.lookback_ms is not None]
        since_ms = self._context.runtime.now_ms() - max(ages) if ages else -1
        asked: list[Later[Any]] = [broker.knowledge.partitions(self._at.topic, (self._at.index,))]
        if since_ms >= 0:
            asked += (broker.knowledge.located(self._at, since_ms), broker.log.ends((self._at,)))

        def locate(later: Later[None]) -> None:
            _ = later.value
            broker.log.locate(self._at, Edge.START if since_ms < 0 else since_ms).then(located)

        def look(later: Later[None]) -> None:
            self._step(partial(locate, later))

        def located(later: Later[tuple[Offset, int]]) -> None:
            self._step(partial(self._located, later))

        all_of(asked).then(look)
        return self._looked

    def _step(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BrokerError as refusal:
            self._looked.refuse(refusal)

    def _located(self, later: Later[tuple[Offset, int]]) -> None:
        offset, _ = later.value
        marks = self._context.broker.log.marks(self._at)
        self._end = marks.end
        first = marks.end if offset < 0 else offset
        self._offset = max(marks.start, marks.end - self._wanted, first)
        self._read()

    def _read(self) -> None:
        if self._offset >= self._end or self._bytes_left <= 0:
            self._looked.fill(None)
            return
        self._context.broker.log.open(
            self._at, self._offset, bytes_max=LOOKBACK_STEP_BYTES, horizon=self._horizon
        ).then(lambda later: self._step(partial(self._opened, later)))

    def _opened(self, later: Later[Opened]) -> None:
        opened = records.decided(self._context.broker, self._at, later.value, self._horizon)
        if opened.next_offset <= self._offset:
            self._looked.fill(None)
            return
        record_set, _ = records.from_log(opened.batches, self._offset)
        self._offset = opened.next_offset
        # A part without records counts too: there may be very many.
        self._bytes_left -= max(len(record_set), LOOKBACK_STEP_BYTES // 16)
        shown = self._chain.look_back(sections_of(record_set))
        shown.then(lambda later: self._step(partial(self._shown, later)))

    def _shown(self, later: Later[None]) -> None:
        _ = later.value
        self._read()
