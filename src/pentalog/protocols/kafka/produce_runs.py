"""Runs of Produce: neighbouring requests for one partition, appended by one call.

A run that cannot be appended whole is taken apart, to find out which of its requests are at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from pentalog import kernels
from pentalog.broker.port import ADMISSION_BYTES_MIN
from pentalog.broker.security import Operation
from pentalog.kernels import ProduceRun
from pentalog.model.buffers import join_buffers
from pentalog.model.errors import BrokerError, RecordsRefused
from pentalog.model.later import Later
from pentalog.model.types import Ack, Appended, Partition
from pentalog.protocols.kafka import records
from pentalog.protocols.kafka.authorization import find
from pentalog.protocols.kafka.errors import REFUSALS, Denied, ErrorCode, Refused, code_of
from pentalog.protocols.kafka.messages import KeptLine, Line, hold_line
from pentalog.protocols.kafka.produce_answers import BY_ID, frame
from pentalog.protocols.kafka.produce_requests import Part

if TYPE_CHECKING:
    from pentalog.broker.port import Admitted, Log
    from pentalog.broker.security import Access
    from pentalog.protocols.kafka.door import Door
    from pentalog.session import Context

ACKS: Final = {-1: Ack.DURABLE, 0: Ack.NONE, 1: Ack.WRITTEN}
_TAKEN_APART_AT_ONCE: Final = 32
"""Requests of a run that are told apart in one step; if there are more, in slices."""
_UNCOMPRESSED: Final = 1
_ENTRY_BYTES: Final = 8
"""Size of one request's entry in `ProduceRun.requests`."""


def serve_run(run: ProduceRun, data: memoryview, context: Context, door: Door, line: Line) -> bool:
    """Append a run by one call; False if the connection must end (a refusal without acks)."""
    log = context.broker.log
    start, end, requests, facts = run.start, run.end, run.requests, run.facts
    if facts.attributes_any & records.OWN:
        facts = records.disowned(data, start, end, facts)
        run = run._replace(facts=facts)
    batches, opened = data[start:end], None
    try:
        at = _target(run, door, context.access)
        admission = None
        if facts.codecs != _UNCOMPRESSED or end - start > ADMISSION_BYTES_MIN:
            admission = log.admission(at, batches, facts)
        if admission is not None:
            if not admission.ready:
                _Serving(run, data, context, door, line).wait(admission)
                return True
            batches, facts, opened = admission.value
        appended = log.append(at, batches, facts, opened=opened)
        if appended.duplicate and len(requests) > _ENTRY_BYTES:
            # The first life of these batches need not have been one run.
            return _Serving(run, data, context, door, line).serve()
    except REFUSALS as refused:
        if len(requests) > _ENTRY_BYTES and not isinstance(refused, Denied):
            return _Serving(run, data, context, door, line).serve()
        if run.acks == 0:
            return False
        line.send(_run_refused(run, refused))
        return True
    if run.acks:
        _settle(run, log, appended, line)
    return True


def _target(run: ProduceRun, door: Door, access: Access) -> Partition:
    """Where a run goes; raises what stands against it."""
    if run.acks not in ACKS:
        raise invalid_acks(run.acks)
    refusal = records.rules(run.facts, len(run.requests) // _ENTRY_BYTES, run.version)
    if refusal is not None:
        raise refusal
    by_id = run.version >= BY_ID
    at = find(access, door, run.topic, run.partition, Operation.WRITE, by_id=by_id)
    if run.acks < 0:
        door.routes.check_copies(at)
    return at


def _settle(run: ProduceRun, log: Log, appended: Appended, line: Line) -> None:
    later = log.settle(appended, ACKS[run.acks])
    if later.ready:
        line.send(_run_settled(run, later))
    else:
        place = line.place()
        later.then(lambda settled: place.fill(_run_settled(run, settled)))


def _apart(run: ProduceRun, data: memoryview) -> list[ProduceRun]:
    """A run is taken whole or not at all: its requests, to find out which are at fault.

    The first ones are alone, those behind them are together and have to be taken apart as well.
    """
    found = [
        run._replace(
            start=start,
            end=end,
            requests=entry,
            facts=kernels.check_batches(data, start, end),
        )
        for entry, start, end in islice(
            records.single_requests(data, run.start, run.requests), _TAKEN_APART_AT_ONCE
        )
    ]
    rest = run.requests[_ENTRY_BYTES * len(found) :]
    if rest:
        found.append(run._replace(start=found[-1].end, requests=rest))
    return found


class _Serving:
    """Requests of a run that are served one after another, some of them after a wait.

    While one waits for its batches to be opened elsewhere, the connection's later requests wait
    too: a producer counts on the order of its batches.  They also wait while many are served in
    slices.
    """

    __slots__ = ("_access", "_data", "_door", "_let_go", "_line", "_log", "_runs", "_slices")

    def __init__(
        self, run: ProduceRun, data: memoryview, context: Context, door: Door, line: Line
    ) -> None:
        self._runs = [run]
        """To be served; those of several requests are to be taken apart."""
        self._data = data
        self._log = context.broker.log
        self._slices = context.slices
        self._door = door
        self._line = line
        self._access = context.access
        self._let_go: Callable[[], None] | None = None

    def serve(self) -> bool:
        """Serve all that is left; False if the connection must end."""
        if len(self._runs[0].requests) > _ENTRY_BYTES * _TAKEN_APART_AT_ONCE:
            self._keep(answers=False)
        if self._let_go is not None:
            self._slices.run(self._steps(), self._served, unconditional=True)
            return True
        return all(self._each())

    def _steps(self) -> Iterator[None]:
        for alive in self._each():
            if not alive:
                self._hang_up()
                break
            yield

    def _hang_up(self) -> None:
        """End the connection; what it sent behind a refused request without acks is dropped."""
        self._line.hang_up()
        self._runs.clear()

    def _served(self, error: Exception | None) -> None:
        """Go on with later requests, unless one of these waits."""
        if error is not None:
            self._line.hang_up()
        if self._let_go is not None and (error is not None or not self._runs):
            self._let_go()
        if error is not None:
            raise error

    def _each(self) -> Iterator[bool]:
        """Serve one request after another, until one has to wait; False ends the connection."""
        while self._runs:
            run = self._runs[0]
            if len(run.requests) > _ENTRY_BYTES:
                self._runs[:1] = _apart(run, self._data)
                continue
            batches, facts, opened = self._data[run.start : run.end], run.facts, None
            try:
                at = _target(run, self._door, self._access)
                admission = self._log.admission(at, batches, facts)
                if admission is not None:
                    if not admission.ready:
                        self.wait(admission)
                        return
                    batches, facts, opened = admission.value
                appended = self._log.append(at, batches, facts, opened=opened)
            except REFUSALS as refused:
                del self._runs[0]
                yield self._refused(run, refused, self._line)
            else:
                if run.acks:
                    _settle(run, self._log, appended, self._line)
                del self._runs[0]
                yield True

    def wait(self, admission: Later[Admitted]) -> None:
        """Go on when the batches of the first run are opened."""
        acks = self._runs[0].acks
        self._keep(answers=acks != 0)
        line = self._line if acks == 0 else KeptLine(self._line.place(), self._line)
        admission.then(lambda admitted: self._go_on(admitted, line))

    def _keep(self, *, answers: bool) -> None:
        """Hold later requests, and copy these: the receive buffer is not kept."""
        if self._let_go is not None:
            return
        self._let_go = hold_line(self._line, answers=answers)
        first, last = self._runs[0], self._runs[-1]
        self._data = memoryview(join_buffers(self._data[first.start : last.end]))
        base = first.start
        self._runs = [
            run._replace(start=run.start - base, end=run.end - base) for run in self._runs
        ]

    def _go_on(self, admitted: Later[Admitted], line: Line) -> None:
        run = self._runs[0]
        alone = len(run.requests) == _ENTRY_BYTES
        alive = True
        try:
            # Again: its topic may have been deleted meanwhile, and created under another id.
            at = _target(run, self._door, self._access)
            batches, facts, opened = admitted.value
            appended = self._log.append(at, batches, facts, opened=opened)
        except REFUSALS as refused:
            if alone:
                alive = self._refused(run, refused, line)
                del self._runs[0]
            else:
                line.send()
        else:
            if appended.duplicate and not alone:
                line.send()
            else:
                if run.acks:
                    _settle(run, self._log, appended, line)
                del self._runs[0]
        if not alive:
            self._hang_up()
        self._slices.run(self._steps(), self._served, unconditional=True)

    def _refused(self, run: ProduceRun, refused: Exception, line: Line) -> bool:
        if run.acks:
            line.send(_run_refused(run, refused))
        return run.acks != 0


def _run_settled(run: ProduceRun, settled: Later[Appended]) -> bytes | bytearray:
    try:
        appended = settled.value
    except BrokerError as refusal:
        return _run_refused(run, refusal)
    return kernels.produce_replies(
        run.version,
        run.topic,
        run.partition,
        run.requests,
        appended.base_offset,
        error=0,
        error_message=None,
        timestamp_ms=appended.timestamp_ms,
        start_offset=appended.start_offset,
    )


def _run_refused(run: ProduceRun, refusal: Exception) -> bytes | bytearray:
    if isinstance(refusal, RecordsRefused) and refusal.records:
        answers = bytearray()
        topics = [(run.topic, [Part(run.partition, None)])]
        for correlation_id, _ in records.requests_in(run.requests):
            answers += frame(run.version, correlation_id, topics, [refusal])
        return answers
    return kernels.produce_replies(
        run.version,
        run.topic,
        run.partition,
        run.requests,
        -1,
        error=code_of(refusal),
        error_message=str(refusal),
        timestamp_ms=-1,
        start_offset=-1,
    )


def invalid_acks(acks: int) -> Refused:
    return Refused(ErrorCode.invalid_required_acks, f"acks {acks}; accepted are -1, 0 and 1")
