"""Fetch: batches of many partitions, as they lie on disk, maybe after a wait.

4: isolation level.  5: log start offset.  7: fetch sessions.  9: leader epoch.  10: zstd.
11: rack, preferred replica.  12: flexible, last fetched epoch.  13: topics by id.
15: replica state instead of replica id.  16: leader and endpoints in tagged fields.
17: replica directory.  18: high watermark, for replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from typing import Any, Final

from pentalog.broker.port import Waiting
from pentalog.broker.security import Operation
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Horizon, Offset, Partition, Slice
from pentalog.protocols.kafka import fetch_answers
from pentalog.protocols.kafka.authorization import find
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, code_of
from pentalog.protocols.kafka.fetch_answers import Outcome
from pentalog.protocols.kafka.fetch_requests import FetchRequest, decode_steps
from pentalog.protocols.kafka.fetch_sessions import Cursor, Plan, unique
from pentalog.protocols.kafka.messages import Api, Call, KeptLine, Steps

_BYTES_MAX: Final = 55 << 20
"""Most that one answer carries, whatever the client would take: Kafka's default too."""
_CURSORS_AT_ONCE: Final = 64
"""A fetch of more partitions lets others be served between them."""
_READ_AT_ONCE: Final = 16
_WAITS_MAX: Final = 10
"""Fetches of one connection that wait for records; clients have one, further ones do not wait."""
_WATCHED_MAX: Final = 10_000
"""Partitions that they may watch together, about; one fetch may always wait."""
_BY_ID: Final = 13
_COMMITTED: Final = 1
_UNKNOWN_EPOCH: Final = int(ErrorCode.unknown_leader_epoch)


def serve(call: Call) -> Steps[None] | None:
    asked: FetchRequest = call.body
    if call.version < 7:
        plan = Plan(unique(asked.cursors))
    else:
        plan = call.door.fetch_sessions.plan(
            asked.session_id,
            asked.session_epoch,
            asked.cursors,
            asked.forgotten,
            by_id=call.version >= _BY_ID,
            now_ms=int(call.context.runtime.monotonic() * 1000),
            access=call.access,
        )
    fetching = Fetching(call, plan)
    if len(plan.cursors) > _CURSORS_AT_ONCE:
        return fetching.steps()
    fetching.run()
    return None


class Fetching:
    """One fetch on its way: reads, waits at most once, reads again, answers."""

    __slots__ = (
        "_bytes_left",
        "_call",
        "_committed",
        "_failed",
        "_horizon",
        "_outcomes",
        "_plan",
        "_positions",
        "_records",
        "_size",
        "_under_way",
    )

    def __init__(self, call: Call, plan: Plan) -> None:
        self._call = call
        self._plan = plan
        self._committed = call.body.isolation == _COMMITTED
        self._horizon = Horizon.STABLE if self._committed else Horizon.DURABLE
        self._outcomes: list[Outcome] = []
        self._under_way: Steps[None] | None = None

    def run(self) -> None:
        """Read few partitions, without turns between them."""
        self._under_way = self.steps()
        self._go_on()

    def _go_on(self) -> None:
        assert self._under_way is not None
        for wanted in self._under_way:
            if wanted is not None and not wanted.ready:
                line = self._call.line
                if not isinstance(line, KeptLine):
                    self._call.line = KeptLine(line.place(), line)
                wanted.then(self._go_on_in_slices)
                return
        self._under_way = None  # it refers to this, and nobody else would let go of both

    def _go_on_in_slices(self, _: Later[Any]) -> None:
        """Go on when it is the turn of this address: thousands may have waited for one record."""

        def step() -> Iterator[None]:
            self._go_on()
            yield

        def ended(error: Exception | None) -> None:
            if error is not None:
                self._call.line.hang_up()
                raise error

        # Records leave from their files; what is in memory of the answer is small.
        self._call.context.slices.run(step(), ended, unconditional=True)

    def steps(self) -> Steps[None]:
        """Read every partition, wait at most once, read again, answer."""
        yield from self._read()
        waiting = self._wait()
        if waiting is not None:
            # Nothing found is kept: everything is read again after the wait.
            self._outcomes = []
            waits = self._call.line.waits
            if not waiting.ready:
                waits.add(waiting)
                yield waiting
                waits.discard(waiting)
            yield from self._read()
        yield from self._answer()

    def _read(self) -> Steps[None]:
        """Read every partition from the start."""
        self._bytes_left = max(0, min(self._call.body.bytes_max, self._bytes_max()))
        self._outcomes = []
        self._positions: dict[Partition, Offset] = {}
        self._failed = False
        self._records = 0
        self._size = 0
        for number, cursor in enumerate(self._plan.cursors, 1):
            if not number % _READ_AT_ONCE:
                yield None
            try:
                later = self._ask(cursor)
            except REFUSALS as refusal:
                self._fail(cursor, code_of(refusal))
                continue
            if later is None:
                self._fail(cursor, _UNKNOWN_EPOCH)
                continue
            if not later.ready:
                # How much the next partition may give depends on what this one gave.
                yield later
            self._take(cursor, later)

    def _bytes_max(self) -> int:
        allowance = self._call.allowance
        quota = None if allowance is None else allowance.meter.read_bytes_max
        return _BYTES_MAX if quota is None else min(_BYTES_MAX, quota)

    def _ask(self, cursor: Cursor) -> Later[Slice] | None:
        call = self._call
        by_id = call.version >= _BY_ID
        at = find(call.access, call.door, cursor.topic, cursor.index, Operation.READ, by_id=by_id)
        if cursor.leader_epoch > 0:
            return None
        later = call.context.broker.log.read(
            at,
            cursor.offset,
            bytes_max=max(0, min(cursor.bytes_max, self._bytes_left)),
            horizon=self._horizon,
            whole_first=self._size == 0,
        )
        self._positions[at] = cursor.offset
        return later

    def _take(self, cursor: Cursor, arrived: Later[Slice]) -> None:
        try:
            found = arrived.value
        except REFUSALS as refusal:
            self._fail(cursor, code_of(refusal))
            return
        self._records += found.next_offset - cursor.offset
        self._size += found.size_bytes
        self._bytes_left -= found.size_bytes
        self._outcomes.append(Outcome(cursor, 0, found))

    def _fail(self, cursor: Cursor, error: int) -> None:
        self._failed = True
        self._outcomes.append(Outcome(cursor, error, None))

    def _wait(self) -> Waiting | None:
        """What must arrive before everything is read again; None if there is enough."""
        # A client without a minimum gets what was acknowledged before, too.
        wanted = min(self._call.body.bytes_min, self._bytes_max())
        bytes_min = max(1, wanted)
        if self._size >= bytes_min or not self._positions:
            return None
        waits = len(self._call.line.waits)
        crowded = waits >= _WAITS_MAX or waits * len(self._positions) >= _WATCHED_MAX
        at_once = self._failed or wanted <= 0 or crowded
        try:
            waiting = self._call.context.broker.log.wait(
                self._positions,
                bytes_min=bytes_min,
                horizon=self._horizon,
                timeout_ms=0 if at_once else max(0, self._call.body.wait_ms),
            )
        except BrokerError:
            # A partition left while a slow disk was read: the second reading says so.
            gone: Waiting = Waiting()
            gone.fill(True)
            return gone
        return None if waiting.ready and not waiting.value else waiting

    def _answer(self) -> Steps[None]:
        call = self._call
        outcomes = self._outcomes
        session = self._plan.session
        if call.allowance is not None:
            throttle_ms = call.throttle_ms or call.allowance.fetched(self._size)
            if throttle_ms:
                yield from self._answer_nothing(throttle_ms)
                return
        call.context.metrics.sent_records += self._records
        if session is not None or self._plan.session_id:
            news = yield from call.each(outcomes, _news)
            if session is not None:
                outcomes = list(compress(outcomes, news))
        if session is not None:
            # Those that gave records go to the back, so that all get their turn.
            for outcome in outcomes:
                if outcome.slice is not None and outcome.slice.size_bytes:
                    key = (outcome.cursor.topic, outcome.cursor.index)
                    if session.cursors.pop(key, None) is not None:
                        session.cursors[key] = outcome.cursor
        pieces = yield from fetch_answers.frame(
            call.version,
            call.correlation_id,
            error=int(self._plan.error),
            session_id=self._plan.session_id,
            outcomes=outcomes,
            committed=self._committed,
        )
        call.line.send(*pieces)

    def _answer_nothing(self, throttle_ms: int) -> Steps[None]:
        """The client is over its quota.  It knows by the time that this is not the truth."""
        plan, call = self._plan, self._call
        if plan.session is None and plan.session_id:
            # Its client does not take an answer without partitions for the opening of a session.
            call.door.fetch_sessions.close(plan.session_id)
        pieces = yield from fetch_answers.frame(
            call.version,
            call.correlation_id,
            error=int(plan.error),
            session_id=0 if plan.session is None else plan.session_id,
            outcomes=(),
            committed=self._committed,
            throttle_ms=throttle_ms,
        )
        call.line.send(*pieces)


def _news(outcome: Outcome) -> bool:
    """Must this partition be in the answer?  Remembers what the client is told."""
    cursor, _, found = outcome
    if found is None:
        # A partition with an error is in every answer, and in the first one without it.
        cursor.told_high = -1
        return True
    start, high = found.marks.start, found.marks.durable
    news = found.size_bytes > 0 or high != cursor.told_high or start != cursor.told_start
    cursor.told_high = high
    cursor.told_start = start
    return news


API: Final = Api(1, "Fetch", 4, 18, serve, decode_steps=decode_steps)
