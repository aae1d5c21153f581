"""A store on a directory, and short ways to write to it and read it back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from tests.support.runtimes import SteppedRuntime

from pentalog import kernels
from pentalog.broker.log import LocalLog
from pentalog.config import Config
from pentalog.log.files import Files, RealFiles
from pentalog.log.partition import PartitionLog
from pentalog.log.store import Store
from pentalog.metrics import Metrics
from pentalog.model import batch
from pentalog.model.settings import LogSettings
from pentalog.model.types import Ack, Appended, FilePiece, Horizon, Partition, Record

AT = Partition("events", 0)
NAMESPACE = UUID(int=7)


class LogBench:
    """One life of a broker's log."""

    def __init__(
        self, directory: Path, *, files: Files | None = None, open_now: bool = True, **config: Any
    ) -> None:
        self.directory = directory
        self.files = files or RealFiles()
        self.runtime = SteppedRuntime()
        self.metrics = Metrics()
        config.setdefault("journal_bytes", 256 << 10)
        self.config = Config(data=directory, **config)
        self.store = Store(directory, self.files, self.runtime, self.metrics, self.config)
        self.log = LocalLog(self.store, self.runtime, self.metrics)
        if open_now:
            self.store.open()

    def partition(self, at: Partition = AT, **settings: Any) -> PartitionLog:
        if at not in self.store.found():
            self.store.create(at, self.topic_id(at.topic), LogSettings(**settings))
        elif settings:
            self.store.configure(at, LogSettings(**settings))
        return self.store.get(at)

    @staticmethod
    def topic_id(topic: str) -> UUID:
        return uuid5(NAMESPACE, topic)

    def append(
        self,
        *values: bytes | None,
        at: Partition = AT,
        keys: list[bytes] | None = None,
        **options: Any,
    ) -> Appended:
        now = options.pop("timestamp_ms", self.runtime.now_ms())
        records = [
            Record(value, keys[number] if keys else None) for number, value in enumerate(values)
        ]
        data = batch.build(records, timestamp_ms=now, **options)
        return self.log.append(at, memoryview(data))

    def plant(self, data: bytearray, *, at: Partition = AT) -> Appended:
        return plant(self.store.get(at), data)

    def settled(self, *values: bytes, at: Partition = AT, **options: Any) -> Appended:
        """Append and wait until it is durable; raises if it cannot become so."""
        appended = self.append(*values, at=at, **options)
        later = self.log.settle(appended, Ack.DURABLE)
        self.runtime.step()
        return later.value

    def read(
        self, offset: int = 0, *, at: Partition = AT, horizon: Horizon = Horizon.END
    ) -> list[tuple[int, Record]]:
        """Every record from an offset on, slice by slice as a consumer would ask."""
        found: list[tuple[int, Record]] = []
        while True:
            later = self.log.read(at, offset, bytes_max=1 << 20, horizon=horizon)
            self.runtime.step()
            part = later.value
            if not part.size_bytes:
                return found
            data = bytes_of(part.pieces, self.files)
            position = 0
            while position < len(data):
                header = kernels.batch_header(data, position)
                assert kernels.check_batches(data, position, position + header.size).flaw in (
                    0,
                    kernels.FLAW_COUNT,
                )
                found += [
                    record
                    for record in batch.records_of(data, position, bytes_max=1 << 26)
                    if record[0] >= offset
                ]
                position += header.size
            assert part.next_offset > offset
            offset = part.next_offset

    def values(self, offset: int = 0, **options: Any) -> dict[int, bytes | None]:
        return {at: record.value for at, record in self.read(offset, **options)}

    def crash(self) -> None:
        """Let go of everything as a killed process does: nothing is flushed or marked."""
        for partition in self.store.all():
            partition.close()
        self.store.journal.close()
        self.store._lock = None


def bytes_of(pieces: Any, files: Files | None = None) -> bytes:
    files = files or RealFiles()
    out = bytearray()
    for piece in pieces:
        if isinstance(piece, FilePiece):
            out += files.read(piece.file, piece.length, piece.position)
        else:
            out += piece
    return bytes(out)


def crooked(
    records: list[Record], spoil: Callable[[bytearray], None], *, codec: int = 0
) -> bytearray:
    """A batch whose sum is right and whose records are not: `spoil` changes their bytes."""
    whole = batch.build(records, timestamp_ms=5)
    header = kernels.batch_header(whole, 0)
    payload = whole[batch.HEADER_BYTES :]
    spoil(payload)
    return batch.rebuild(header, payload, count=len(records), codec=codec)


def plant(partition: PartitionLog, data: bytearray) -> Appended:
    """Store a batch that nobody may send, as a broker did that did not look inside."""
    header = kernels.batch_header(data, 0)
    sound = batch.build([Record(b"")] * header.records, timestamp_ms=header.max_timestamp)
    facts = kernels.check_batches(sound, 0, len(sound))
    return partition.append(memoryview(data), facts, partition.settings)
