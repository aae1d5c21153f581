"""A broker's log, state and transactions in one directory, to be killed between any two steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.support.logs import LogBench
from tests.support.runtimes import SteppedRuntime

from pentalog import kernels
from pentalog.broker.offsets import LocalOffsets
from pentalog.broker.port import Committed
from pentalog.broker.producers import LocalProducers
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.transactions import LocalTransactions
from pentalog.log.files import Files, Handle, RealFiles
from pentalog.log.store import Store
from pentalog.model import batch
from pentalog.model.types import Ack, Horizon, Identity, Partition

T0, T1, U0 = Partition("t", 0), Partition("t", 1), Partition("u", 0)
PLACES = (T0, T1, U0)


class Killed(Exception):
    """The process ends here."""


class MortalRuntime(SteppedRuntime):
    """Dies after a number of steps: callbacks, calls on threads, and the news of their outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.steps_left = 1 << 30
        self.steps = 0

    def _live(self) -> None:
        if self.steps_left <= 0:
            raise Killed
        self.steps_left -= 1
        self.steps += 1

    def step(self) -> None:
        while True:
            if self._soon:
                self._live()
                self._soon.popleft()()
                continue
            ready = next((w for w in self._work if w[0] not in self.held_lanes), None)
            if ready is None:
                return
            self._live()
            self._work.remove(ready)
            _, work, done = ready
            try:
                outcome, error = work(), None
            except Exception as failure:  # handed over, as a thread would
                outcome, error = None, failure
            self._live()
            done(outcome, error)


class RememberingFiles(RealFiles):
    """Knows how much of each index of aborted transactions a power cut would leave.

    Nothing is really synced: no power is cut here, and thousands of syncs would take long.
    """

    def __init__(self) -> None:
        self.synced: dict[Path, int] = {}

    def sync(self, file: Handle) -> None:
        self.synced[file.path] = self.size(file)

    def write_synced(
        self, file: Handle, data: bytes | bytearray | memoryview, position: int
    ) -> None:
        self.write(file, data, position)


class TransactionBench(LogBench):
    """One life of everything transactions need."""

    def __init__(self, directory: Path, *, files: Files | None = None, **config: Any) -> None:
        self.remembering = RememberingFiles()
        super().__init__(directory, files=files or self.remembering, open_now=False, **config)
        self.runtime: MortalRuntime = MortalRuntime()
        self.store = Store(directory, self.files, self.runtime, self.metrics, self.config)
        self.log = type(self.log)(self.store, self.runtime, self.metrics)
        self.store.open()
        self.state = State(directory / FILE_NAME, self.runtime)
        self.state.open()
        self.producers = LocalProducers(self.state)
        self.producers.open()
        self.offsets = LocalOffsets(self.state, self.runtime, self.config)
        self.offsets.open()
        self.transactions = LocalTransactions(
            self.store,
            self.log,
            self.state,
            self.producers,
            self.offsets,
            self.runtime,
            self.config,
        )
        for at in PLACES:
            self.partition(at)
        self.transactions.open()

    def identify(
        self, name: str, known: Identity | None = None, timeout_ms: int = 1000
    ) -> Identity:
        later = self.transactions.identify(name, timeout_ms=timeout_ms, known=known)
        self.runtime.step()
        return later.value

    def write(
        self, who: Identity, at: Partition, sequence: int, *values: bytes, enlists: bool = True
    ) -> None:
        """A batch in the producer's transaction, on the disk."""
        owners = {view.who.producer_id: view.name for view in self.transactions.all() if view}
        name = owners.get(who.producer_id, "of nobody")
        self.transactions.admit(name, who, at, enlists=enlists)
        self.settled(
            *values,
            at=at,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def stage(
        self,
        name: str,
        who: Identity,
        group: str,
        at: Partition,
        offset: int,
        *,
        enlists: bool = True,
    ) -> None:
        offsets = {at: Committed(offset)}
        later = self.transactions.stage(name, who, group, offsets, enlists=enlists)
        self.runtime.step()
        _ = later.value

    def end(self, name: str, who: Identity, *, commit: bool, bump: bool = True) -> Identity:
        later = self.transactions.end(name, who, commit=commit, bump=bump)
        self.runtime.step()
        return later.value

    def plain(self, value: bytes, at: Partition) -> None:
        self.log.settle(self.append(value, at=at), Ack.DURABLE)
        self.runtime.step()

    def committed(self, at: Partition) -> list[bytes | None]:
        """What a read_committed consumer sees: up to the stable mark, aborted ones hidden."""
        offset, seen = self.store.get(at).start_offset, []
        hidden: set[int] = set()
        while True:
            later = self.log.read(at, offset, bytes_max=1 << 20, horizon=Horizon.STABLE)
            self.runtime.step()
            part = later.value
            if not part.size_bytes:
                return seen
            starts = [(entry.first_offset, entry.producer_id) for entry in part.aborted]
            assert starts == sorted(starts)
            data = b"".join(
                os.pread(piece.file.fd, piece.length, piece.position) for piece in part.pieces
            )
            position = 0
            while position < len(data):
                header = kernels.batch_header(data, position)
                last = header.base_offset + header.last_offset_delta
                while starts and starts[0][0] <= last:
                    hidden.add(starts.pop(0)[1])
                if header.attributes & batch.CONTROL:
                    if batch.control_type(data, position) == "abort":
                        hidden.discard(header.producer_id)
                elif not (header.attributes & batch.TRANSACTIONAL and header.producer_id in hidden):
                    records = batch.records_of(data, position, bytes_max=1 << 20)
                    seen += [record.value for at_offset, record in records if at_offset >= offset]
                position += header.size
            offset = part.next_offset

    def offset_of(self, group: str, at: Partition) -> int | None:
        found = self.offsets.committed(group, [at]).get(at)
        return None if found is None else found.offset

    def stop(self) -> None:
        """A clean stop."""
        self.transactions.close()
        self.state.close()
        self.runtime.step()
        self.store.close()

    def die(self, *, power: bool = False) -> None:
        """kill -9; with `power` what was not synced is gone as well."""
        self.transactions.close()
        if self.state._database is not None:
            self.state._database.close()
        synced = {p.at: (p.synced, p.directory) for p in self.store.all()}
        self.crash()
        if not power:
            return
        for point, directory in synced.values():
            for path in sorted(directory.glob("*.log")):
                base = int(path.stem)
                if base == point.base:
                    os.truncate(path, point.position)
                elif base > point.base:
                    path.unlink()
            for pattern in ("*.index", "*.timeindex"):
                for path in directory.glob(pattern):
                    path.unlink()
            for path in directory.glob("*.txnindex"):
                os.truncate(path, self.remembering.synced.get(path, 0))
