"""Published messages of one connection: runs of them become batches of the log, in their order.

A run keeps its place in line until it is durable, where that was asked, or until a batch that the
topic has rules for was opened on a lane; nothing else of the connection is served meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pentalog import kernels
from pentalog.broker.port import ADMISSION_BYTES_MIN, Admitted
from pentalog.kernels import PublishRun
from pentalog.model.errors import BrokerError, RecordTooLarge
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Partition
from pentalog.protocols.blipmq import frames
from pentalog.protocols.blipmq.errors import code_of, publish_failed
from pentalog.protocols.blipmq.frames import ID_BYTES, LENGTH
from pentalog.protocols.blipmq.messages import Nack
from pentalog.protocols.blipmq.records import Routes
from pentalog.session import Context, Place, Replies

_PART_BYTES: Final = 4 << 10
"""Frames of a run that is too large for its topic, appended in one turn."""


class Publishing:
    """Appends what one connection publishes."""

    def __init__(
        self, context: Context, replies: Replies, routes: Routes, *, frame_bytes_max: int
    ) -> None:
        self._context = context
        self._replies = replies
        self._routes = routes
        self._frame_bytes_max = frame_bytes_max
        self._remote = not context.broker.knowledge.current
        self._opening = False
        """A batch is being opened on a lane."""
        self._queued: deque[PublishRun] = deque()
        """Runs that were received together with it, to be appended after it."""
        self.written: dict[Partition, Later[Appended]] = {}
        """The last write to each partition, where other processes keep the records.

        A poll that is forwarded after it has to find it.
        """
        self.written_bytes = 0
        """Published since all of them were known to be written."""

    def publish(self, run: PublishRun, data: memoryview) -> int:
        """Append a run; `data` is where it was received.

        Returns the position in `data` where to continue: before the end of the run if it is too
        large for its topic and was appended in part.
        """
        if self._opening:
            self._queued.append(run)
            return run.end
        log, batch = self._context.broker.log, memoryview(run.batch)
        admission = None
        try:
            at = self._routes.find(run.topic)
            if len(batch) > ADMISSION_BYTES_MIN:
                admission = log.admission(at, batch, run.facts, owned=True)
            if admission is None:
                appended = log.append(at, batch, run.facts)
            elif admission.ready:
                appended = self._append_admitted(at, admission.value)
            else:
                self._wait(run, at, admission)
                return run.end
        except Nack as flaw:
            self._replies.send(self._nacks(run, flaw.code, flaw.text))
        except RecordTooLarge as refusal:
            if run.facts.records > 1 and data:
                return self._publish_in_parts(run, data)
            self._replies.send(self._refusal(run, refusal))
        except BrokerError as refusal:
            self._replies.send(self._refusal(run, refusal))
        else:
            self._settle(run, at, appended, None)
        return run.end

    def _wait(self, run: PublishRun, at: Partition, admission: Later[Admitted]) -> None:
        self._opening = True
        place, release = self._replies.place(), self._replies.hold()

        def opened(admitted: Later[Admitted]) -> None:
            self._opening = False
            release()
            try:
                appended = self._append_admitted(at, admitted.value)
            except BrokerError as refusal:
                place.fill(self._refusal(run, refusal))
            else:
                self._settle(run, at, appended, place)
            while self._queued and not self._opening:
                self.publish(self._queued.popleft(), memoryview(b""))

        admission.then(opened)

    def _append_admitted(self, at: Partition, admitted: Admitted) -> Appended:
        batches, facts, settings = admitted
        return self._context.broker.log.append(at, batches, facts, opened=settings)

    def _settle(
        self, run: PublishRun, at: Partition, appended: Appended, place: Place | None
    ) -> None:
        if run.qos == 0 and not self._remote:
            if place is not None:
                place.fill()
            return
        settled = self._context.broker.log.settle(appended, Ack.DURABLE)
        if self._remote:
            self.written[at] = settled
            self.written_bytes += len(run.batch)
            if run.qos == 0:
                return
        if place is None and not settled.ready:
            place = self._replies.place()
        if place is not None:
            kept = place
            settled.then(lambda later: kept.fill(*self._published(run, later)))

    def _published(self, run: PublishRun, settled: Later[Appended]) -> tuple[bytes, ...]:
        """Nothing if all went well."""
        try:
            _ = settled.value
        except BrokerError as refusal:
            return (self._refusal(run, refusal),)
        return ()

    def _publish_in_parts(self, run: PublishRun, data: memoryview) -> int:
        """Append the beginning of a run in smaller batches; returns the position after it.

        Each message may have to be refused, so this is only as much as one turn allows.
        """
        at = self._routes.find(run.topic)
        size = min(self._routes.batch_bytes_max(at), len(run.batch) // 2)
        first = LENGTH.size + LENGTH.unpack_from(data, run.start)[0]
        end = min(run.end, run.start + max(first, size, _PART_BYTES))
        again = kernels.split_blipmq(
            data,
            run.start,
            end,
            timestamp_ms=run.facts.timestamp_max,
            frame_bytes_max=self._frame_bytes_max,
            batch_bytes_max=size,
        )
        reached, served = run.start, 0
        for part in again.items:
            assert isinstance(part, PublishRun)
            reached = self.publish(part, data)
            if reached < part.end:
                break
            served += part.facts.records
        if reached < run.end:
            self._context.metrics.requests += served
        return reached

    def _refusal(self, run: PublishRun, refusal: BrokerError) -> bytes:
        return self._nacks(run, code_of(refusal), publish_failed(refusal, run.qos))

    def _nacks(self, run: PublishRun, code: int, text: str) -> bytes:
        self._context.metrics.request_errors += len(run.correlations) // ID_BYTES
        return frames.nacks(run.correlations, code, text)
