"""Batches on their way to the leaders of their partitions, in order, each written once.

Every partition has a lane.  Its batches carry the gateway's producer id and sequences, so that one
whose answer was lost can be sent again: the leader knows it.  What fails for the moment is sent
again when everything behind it has been answered too; what the leader has certainly not taken is
numbered anew under a fresh id.  Nothing is settled that the cluster has not acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pentalog.clients.kafka import messages
from pentalog.cluster import produce
from pentalog.cluster.fleet import NODE_PATIENCE_MS, PATIENCE_MS, WRITING, Fleet
from pentalog.cluster.link import Link
from pentalog.cluster.refusals import Lost, Refused, Trouble, check, told
from pentalog.cluster.steps import Steps, begin
from pentalog.cluster.topics import NO_LEADER, ClusterTopics
from pentalog.model.errors import BatchCorrupt, BrokerError, Overloaded, StorageFailed
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.types import Appended, Identity, Partition
from pentalog.runtime import Runtime

IN_FLIGHT_MAX: Final = 5
"""Batches of a partition on the way: a leader remembers so many of each producer."""
QUEUED_BYTES_MAX: Final = 256 << 20
"""Of all lanes together; more is refused."""
REQUEST_BYTES_MAX: Final = 1 << 20
"""Batches are put into one request up to this size."""
ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1

_INIT_PRODUCER_ID: Final = 22
_PAUSE_FIRST_MS: Final = 20
_PAUSE_MS_MAX: Final = 1_000
_EXPIRE_MS: Final = 1_000
_NOT_TAKEN: Final = (
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.unknown_producer_id,
    ErrorCode.invalid_producer_epoch,
)
"""What a leader says of a batch whose number it did not expect; it has not taken it."""


class Sending:
    """One batch, from the append to the cluster's word."""

    __slots__ = (
        "acks", "at", "batch", "deadline_s", "later", "offsets", "outcome", "own",
        "transactional_id", "tried", "who",
    )  # fmt: skip

    def __init__(
        self, at: Partition, batch: bytearray, offsets: int, deadline_s: float, *, own: bool
    ) -> None:
        self.at = at
        self.batch = batch
        self.offsets = offsets
        self.deadline_s = deadline_s
        self.own = own
        """Numbered by us; else the batch says itself whose it is."""
        self.who: Identity | None = None
        """Under which id we have numbered it."""
        self.transactional_id: str | None = None
        """Of the transaction it is a part of."""
        self.tried = False
        self.acks = ACKS_LEADER
        self.later: Later[Appended] = Later()
        self.outcome: BrokerError | None = None
        """Why it must be sent again, once that is known."""


class Lane:
    """The batches for one partition."""

    __slots__ = (
        "at",
        "flying",
        "identity",
        "introduced",
        "pause_ms",
        "queue",
        "resting",
        "sequence",
    )

    def __init__(self, at: Partition) -> None:
        self.at = at
        self.queue: deque[Sending] = deque()
        self.flying: deque[Sending] = deque()
        self.identity: Identity | None = None
        self.sequence = 0
        self.introduced = False
        """The leader has taken a batch under this id: of a new one it accepts any number."""
        self.pause_ms = 0
        self.resting = False

    @property
    def full(self) -> bool:
        return len(self.flying) >= (IN_FLIGHT_MAX if self.introduced else 1)

    @property
    def retrying(self) -> bool:
        return any(sending.tried for sending in self.flying)

    @property
    def troubled(self) -> bool:
        return any(sending.outcome is not None for sending in self.flying)


class Writing:
    """All lanes."""

    def __init__(self, fleet: Fleet, topics: ClusterTopics, runtime: Runtime) -> None:
        self._fleet = fleet
        self._topics = topics
        self._runtime = runtime
        self._lanes: dict[Partition, Lane] = {}
        self._ready: dict[Lane, None] = {}
        self._scheduled = False
        self._watched = False
        self._queued_bytes = 0
        self._identity: Identity | None = None
        self._asking = False
        self.written: Callable[[Partition, int], None] = lambda at, end: None
        """Called with every end that the cluster's answers tell."""

    def check_room(self, size_bytes: int) -> None:
        if self._queued_bytes + size_bytes > QUEUED_BYTES_MAX:
            raise Overloaded(
                f"{self._queued_bytes} bytes wait for the cluster to take them; try again later"
            )

    def take(self, at: Partition, batch: bytearray, offsets: int, *, own: bool) -> Sending:
        """A batch for which there is room."""
        deadline_s = self._runtime.monotonic() + PATIENCE_MS / 1000
        sending = Sending(at, batch, offsets, deadline_s, own=own)
        lane = self._lanes.get(at)
        if lane is None:
            lane = self._lanes[at] = Lane(at)
        lane.queue.append(sending)
        self._queued_bytes += len(batch)
        self._wake(lane)
        if not self._watched:
            self._watched = True
            self._runtime.after(_EXPIRE_MS, self._expire)
        return sending

    def _expire(self) -> None:
        """Give up what waits for too long behind batches whose answers do not come."""
        now_s = self._runtime.monotonic()
        for lane in list(self._lanes.values()):
            while lane.queue and now_s > lane.queue[0].deadline_s:
                self._give_up(lane, lane.queue.popleft(), None)
        self._watched = any(lane.queue for lane in self._lanes.values())
        if self._watched:
            self._runtime.after(_EXPIRE_MS, self._expire)

    def drained(self, at: Partition) -> Later[None]:
        """Ready when everything taken for this partition so far has been answered."""
        lane = self._lanes.get(at)
        if lane is None or not (lane.queue or lane.flying):
            return Later.now(None)
        later: Later[None] = Later()
        last = (lane.queue or lane.flying)[-1]
        last.later.then(lambda _: later.fill(None))
        return later

    def _wake(self, lane: Lane) -> None:
        self._ready[lane] = None
        if not self._scheduled:
            # At the end of the turn: what comes in one turn leaves in few requests.
            self._scheduled = True
            self._runtime.soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        while self._ready:
            lanes, self._ready = list(self._ready), {}
            parcels: dict[tuple[Link, int, str | None], list[tuple[Lane, Sending]]] = {}
            for lane in lanes:
                found = self._next(lane)
                if found is None:
                    continue
                link, sending = found
                key = (link, sending.acks, sending.transactional_id)
                parcels.setdefault(key, []).append((lane, sending))
                if lane.queue:
                    self._ready[lane] = None  # one batch of each lane in one request
            for (link, acks, name), parcel in parcels.items():
                self._send_parcel(link, acks, parcel, name)

    def _next(self, lane: Lane) -> tuple[Link, Sending] | None:
        """The batch of a lane that may leave now, numbered, and where it goes."""
        if not lane.queue or lane.resting or lane.troubled or lane.full:
            return None
        sending = lane.queue[0]
        if self._runtime.monotonic() > sending.deadline_s:
            lane.queue.popleft()
            self._give_up(lane, sending, None)
            self._wake(lane)
            return None
        try:
            leader = self._topics.leader(lane.at)
        except BrokerError as refusal:
            lane.queue.popleft()
            self._renounce(lane)
            self._finish(sending, refusal)
            self._wake(lane)
            return None
        link = None if leader == NO_LEADER else self._fleet.node(leader, WRITING)
        if link is None:
            self._rest(lane)
            return None
        if sending.own and sending.who is None and not self._number(lane, sending):
            return None
        if lane.flying and (lane.flying[-1].who != sending.who or lane.retrying > sending.tried):
            # What becomes of those under another id must be known first; and nothing new may
            # push what is tried again out of the leader's memory.
            return None
        lane.queue.popleft()
        lane.flying.append(sending)
        return link, sending

    def _number(self, lane: Lane, sending: Sending) -> bool:
        if lane.identity is None:
            if lane.flying:
                return False
            if self._identity is None:
                self._ask_identity()
                return False
            lane.identity, lane.sequence, lane.introduced = self._identity, 0, False
        lane.sequence = produce.stamp(sending.batch, lane.identity, lane.sequence)
        sending.who = lane.identity
        return True

    def _send_parcel(
        self,
        link: Link,
        acks: int,
        parcel: Sequence[tuple[Lane, Sending]],
        transactional_id: str | None,
    ) -> None:
        start = 0
        while start < len(parcel):
            end, size = start, 0
            while end < len(parcel) and (end == start or size < REQUEST_BYTES_MAX):
                size += len(parcel[end][1].batch)
                end += 1
            part = parcel[start:end]
            body = produce.request_body(
                [(lane.at, sending.batch) for lane, sending in part],
                acks=acks,
                timeout_ms=NODE_PATIENCE_MS,
                transactional_id=transactional_id,
            )
            asked = link.exchange(produce.KEY, produce.VERSION, body)
            asked.then(partial(self._answered, link, part))
            start = end

    # What comes back

    def _answered(
        self, link: Link, part: Sequence[tuple[Lane, Sending]], answer: Later[memoryview]
    ) -> None:
        answers: dict[Partition, produce.Answer] = {}
        failure: BrokerError = Lost(f"{link.name} left a partition out of its answer")
        try:
            told_of, throttle_ms = produce.read_answer(answer.value)
            answers = {each.at: each for each in told_of}
            link.mute(throttle_ms)
        except BrokerError as refusal:
            failure = Lost(str(refusal)) if isinstance(refusal, BatchCorrupt) else refusal
        mistakes: list[Exception] = []
        for lane, sending in part:
            try:
                self._take_answer(lane, sending, answers.get(lane.at), failure)
            except Exception as mistake:  # of whoever was told; the other lanes must go on
                mistakes.append(mistake)
            self._gather(lane)
        if mistakes:
            raise mistakes[0]

    def _take_answer(
        self, lane: Lane, sending: Sending, found: produce.Answer | None, failure: BrokerError
    ) -> None:
        if found is None and isinstance(failure, Trouble):
            sending.outcome = failure
        elif found is None:
            lane.flying.remove(sending)
            self._renounce(lane)
            self._finish(sending, failure)
        elif found.code is ErrorCode.none:
            self._written(lane, sending, found)
        else:
            self._failed(lane, sending, found.code)

    def _written(self, lane: Lane, sending: Sending, answer: produce.Answer) -> None:
        lane.flying.remove(sending)
        lane.introduced = lane.introduced or sending.own
        lane.pause_ms = 0
        end = answer.base_offset + sending.offsets
        self.written(lane.at, end)
        self._queued_bytes -= len(sending.batch)
        sending.later.fill(
            Appended(lane.at, answer.base_offset, end, answer.timestamp_ms, answer.start_offset)
        )

    def _failed(self, lane: Lane, sending: Sending, code: ErrorCode) -> None:
        refusal = Refused(f"writing to {lane.at}", code)
        if sending.own and code in _NOT_TAKEN:
            sending.who = None
            self._renounce(lane)
            sending.outcome = refusal
        elif refusal.retriable:
            sending.outcome = refusal
        else:
            lane.flying.remove(sending)
            self._renounce(lane)  # the numbers behind it have a gap now
            self._finish(sending, refusal)

    def _gather(self, lane: Lane) -> None:
        """When the last of those on the way is answered, what failed goes back into the queue."""
        if any(sending.outcome is None for sending in lane.flying):
            if not lane.troubled:
                self._wake(lane)
            return
        again = [sending for sending in lane.flying if sending.outcome is not None]
        lane.flying.clear()
        now_s = self._runtime.monotonic()
        for sending in reversed(again):
            if now_s > sending.deadline_s:
                continue
            sending.tried = True
            lane.queue.appendleft(sending)
        for sending in again:
            outcome, sending.outcome = sending.outcome, None
            if now_s > sending.deadline_s:
                self._give_up(lane, sending, outcome)
        if again:
            self._rest(lane)
        else:
            self._wake(lane)

    def _give_up(self, lane: Lane, sending: Sending, outcome: BrokerError | None) -> None:
        why = "it did not answer" if outcome is None else str(outcome)
        self._renounce(lane)
        if isinstance(outcome, Refused):
            self._finish(sending, outcome)
        else:
            self._finish(
                sending,
                StorageFailed(
                    f"the cluster has not taken a batch for {lane.at} in {PATIENCE_MS} ms ({why}): "
                    "it may be there or not; look, or write it again"
                ),
            )

    def _renounce(self, lane: Lane) -> None:
        """Number what comes next under another id, from 0."""
        if self._identity == lane.identity:
            self._identity = None
        lane.identity = None

    def _finish(self, sending: Sending, refusal: BrokerError) -> None:
        self._queued_bytes -= len(sending.batch)
        sending.later.refuse(told(refusal))

    def _rest(self, lane: Lane) -> None:
        """Look where the leader is, then try again after a pause."""
        if lane.resting:
            return
        lane.resting = True
        lane.pause_ms = min(max(2 * lane.pause_ms, _PAUSE_FIRST_MS), _PAUSE_MS_MAX)
        begin(self._recover(lane, lane.pause_ms))

    def _recover(self, lane: Lane, pause_ms: int) -> Steps[None]:
        yield self._fleet.sleep(pause_ms)
        try:
            yield from self._topics.refresh(lane.at.topic)
        except Trouble:
            lane.pause_ms = _PAUSE_MS_MAX
        finally:
            lane.resting = False
            self._wake(lane)

    # Who we are

    def _ask_identity(self) -> None:
        if not self._asking:
            self._asking = True
            begin(self.identify()).then(self._identified)

    def identify(self) -> Steps[Identity]:
        """A producer id that nobody had before."""

        def once() -> Steps[Any]:
            answer = yield self._fleet.ask_any(
                _INIT_PRODUCER_ID,
                {
                    "transactional_id": None,
                    "transaction_timeout": messages.ms(PATIENCE_MS),
                    "producer_id": -1,
                    "producer_epoch": -1,
                },
            )
            check("asking for a producer id", answer.error_code)
            return answer

        answer = yield from self._fleet.persist(once)
        return Identity(answer.producer_id, answer.producer_epoch)

    def _identified(self, identity: Later[Identity]) -> None:
        self._asking = False
        try:
            self._identity = identity.value
        except BrokerError as refusal:
            for lane in list(self._lanes.values()):
                while lane.queue and lane.queue[0].own and lane.queue[0].who is None:
                    self._finish(lane.queue.popleft(), refusal)
        for lane in list(self._lanes.values()):
            if lane.queue:
                self._wake(lane)
