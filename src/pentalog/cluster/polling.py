"""Waiting for records: Fetch requests that nodes answer when there is something to read.

A node answers one request of a connection after the other, so whoever waits has connections of its
own.  All that begin to wait in one turn share a request; each that ends without records is begun
again together with whoever waits by then.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from pentalog.broker.port import Waiting
from pentalog.cluster.bounds import Bounds
from pentalog.cluster.fetch import KEY, VERSION
from pentalog.cluster.fleet import Fleet, by_topic
from pentalog.cluster.link import Link
from pentalog.cluster.refusals import Lost, Trouble
from pentalog.cluster.steps import Steps, begin
from pentalog.cluster.topics import NO_LEADER, ClusterTopics
from pentalog.model.errors import BrokerError
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.types import Aborted, Horizon, Marks, Offset, Partition
from pentalog.runtime import Runtime, Timer

POLL_MS: Final = 1_000
"""How long a node is asked to wait."""
CONNECTIONS_MAX: Final = 8
"""Of each node, for waiting: with more requests than that at once, some begin a little later."""
FIRST_BYTES: Final = 64 << 10
"""Brought of each partition, for whoever reads next; no less than readers ask for."""

_LOOK_MS: Final = 100
_ANSWER_BYTES_MAX: Final = 4 << 20
_HEAD: Final = struct.Struct(">iiiibii")
_POSITION: Final = struct.Struct(">iiqqi")
_PARTITION: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_GONE: Final = (ErrorCode.unknown_topic_or_partition, ErrorCode.topic_authorization_failed)


class Found(NamedTuple):
    """What a node says of one partition."""

    at: Partition
    code: ErrorCode
    marks: Marks
    aborted: Sequence[Aborted]
    data: memoryview


def request_body(positions: Mapping[Partition, Offset], *, committed: bool) -> Sequence[bytes]:
    topics = by_topic(positions)
    pieces = [_HEAD.pack(-1, POLL_MS, 1, _ANSWER_BYTES_MAX, committed, 0, -1)]
    pieces.append(_I32.pack(len(topics)))
    for topic, indexes in topics.items():
        name = topic.encode()
        pieces += (_I16.pack(len(name)), name, _I32.pack(len(indexes)))
        pieces += [
            _POSITION.pack(index, -1, positions[Partition(topic, index)], -1, FIRST_BYTES)
            for index in indexes
        ]
    pieces += (_I32.pack(0), _I16.pack(0))
    return (b"".join(pieces),)


def read_answer(data: memoryview) -> list[Found]:
    try:
        _, code, _, topics = struct.unpack_from(">ihii", data, 0)
        if code:
            raise Lost(f"the cluster refuses Fetch: {ErrorCode(code).name}")
        found: list[Found] = []
        position = 14
        for _ in range(topics):
            (size,) = _I16.unpack_from(data, position)
            topic = str(data[position + 2 : position + 2 + size], "utf-8")
            (count,) = _I32.unpack_from(data, position + 2 + size)
            position += 6 + size
            for _ in range(count):
                one, position = _read_partition(topic, data, position)
                found.append(one)
        return found
    except (struct.error, ValueError) as flaw:
        raise Lost(f"the cluster's answer to Fetch cannot be read: {flaw}") from flaw


def _read_partition(topic: str, data: memoryview, position: int) -> tuple[Found, int]:
    index, code, end, stable, start = _PARTITION.unpack_from(data, position)
    position += _PARTITION.size
    (count,) = _I32.unpack_from(data, position)
    position += 4
    behind = position + max(count, 0) * _ABORTED.size
    aborted = [Aborted(*entry) for entry in _ABORTED.iter_unpack(data[position:behind])]
    (size,) = _I32.unpack_from(data, behind + 4)
    position = behind + 8
    records = data[position : position + max(size, 0)]
    marks = Marks(start, min(stable, end), end, end)
    found = Found(Partition(topic, index), ErrorCode(code), marks, aborted, records)
    return found, position + max(size, 0)


class ClusterWait(Waiting):
    """Ready when one of its partitions has records behind its position, or time is up."""

    __slots__ = ("_owner", "horizon", "positions", "timer")

    def __init__(
        self, owner: Polling, positions: Mapping[Partition, Offset], horizon: Horizon
    ) -> None:
        super().__init__()
        self._owner = owner
        self.positions = dict(positions)
        self.horizon = horizon
        self.timer: Timer | None = None

    def tell(self, found: bool) -> None:
        if self._owner.forget(self):
            self.fill(found)

    def cancel(self) -> None:
        self._owner.forget(self)


class Polling:
    """Everybody who waits, and the requests that wait for them."""

    def __init__(
        self, fleet: Fleet, topics: ClusterTopics, bounds: Bounds, runtime: Runtime
    ) -> None:
        self._fleet = fleet
        self._topics = topics
        self._bounds = bounds
        self._runtime = runtime
        self._waits: set[ClusterWait] = set()
        self._fresh: dict[ClusterWait, None] = {}
        """Those for which nobody is asked at the moment."""
        self._busy: dict[tuple[int, int], bool] = {}
        """The connections that wait, by node and number."""
        self._scheduled = False
        self.found: Callable[[Offset, Found], None] = lambda offset, found: None
        """Called with stable records, and the offset at which they were asked for."""

    def wait(
        self, positions: Mapping[Partition, Offset], horizon: Horizon, timeout_ms: int
    ) -> ClusterWait:
        wait = ClusterWait(self, positions, horizon)
        if timeout_ms <= 0:
            wait.fill(False)
            return wait
        self._waits.add(wait)
        wait.timer = self._runtime.after(timeout_ms, lambda: wait.tell(False))
        self._poll(wait)
        return wait

    def stop(self) -> None:
        """Nobody need wait any more."""
        for wait in list(self._waits):
            wait.tell(False)

    def forget(self, wait: ClusterWait) -> bool:
        """False if it was forgotten before."""
        if wait not in self._waits:
            return False
        self._waits.discard(wait)
        self._fresh.pop(wait, None)
        if wait.timer is not None:
            wait.timer.cancel()
        return True

    def _poll(self, wait: ClusterWait) -> None:
        if wait in self._waits:
            self._fresh[wait] = None
            if not self._scheduled:
                self._scheduled = True
                self._runtime.soon(self._send)

    def _send(self) -> None:
        """One request for each node and horizon, as far as connections are free."""
        self._scheduled = False
        waits, self._fresh = list(self._fresh), {}
        parcels: dict[tuple[int, bool], list[ClusterWait]] = {}
        for wait in waits:
            try:
                leaders = {self._topics.leader(at) for at in wait.positions}
            except BrokerError:
                wait.tell(True)  # whoever reads now is told what is wrong
                continue
            node = leaders.pop() if len(leaders) == 1 else NO_LEADER
            parcels.setdefault((node, wait.horizon is Horizon.STABLE), []).append(wait)
        for (node, committed), parcel in parcels.items():
            number = self._free(node)
            link = None if number is None else self._fleet.node(node, f"waiting {number}")
            if number is None:
                self._fresh.update(dict.fromkeys(parcel))  # the next answer begins them
            elif link is None or node == NO_LEADER:
                begin(self._look(parcel))
            else:
                self._busy[node, number] = True
                self._ask(link, (node, number), parcel, committed=committed)

    def _free(self, node: int) -> int | None:
        numbers = range(CONNECTIONS_MAX)
        return next((number for number in numbers if (node, number) not in self._busy), None)

    def _ask(
        self, link: Link, busy: tuple[int, int], parcel: list[ClusterWait], *, committed: bool
    ) -> None:
        asked: dict[Partition, Offset] = {}
        for wait in parcel:
            for at, offset in wait.positions.items():
                asked[at] = min(offset, asked.get(at, offset))
        answer = link.exchange(KEY, VERSION, request_body(asked, committed=committed))
        answer.then(partial(self._answered, busy, parcel, asked, committed))

    def _answered(
        self,
        busy: tuple[int, int],
        parcel: list[ClusterWait],
        asked: Mapping[Partition, Offset],
        committed: bool,
        answer: Later[memoryview],
    ) -> None:
        self._busy.pop(busy, None)
        try:
            found = {each.at: each for each in read_answer(answer.value)}
        except BrokerError:
            begin(self._look(parcel))
        else:
            if committed:
                for each in found.values():
                    if each.data and not each.code:
                        self.found(asked[each.at], each)
            self._tell(parcel, found)
        if self._fresh and not self._scheduled:
            self._scheduled = True
            self._runtime.soon(self._send)

    def _tell(self, parcel: list[ClusterWait], found: Mapping[Partition, Found]) -> None:
        for at, one in found.items():
            if not one.code:
                self._bounds.told(at, one.marks)
        for wait in parcel:
            codes = {found[at].code for at in wait.positions if at in found}
            if not codes.isdisjoint(_GONE) or self._enough(wait):
                wait.tell(True)
            elif codes == {ErrorCode.none}:
                self._poll(wait)
            else:
                begin(self._look([wait]))

    def _enough(self, wait: ClusterWait) -> bool:
        """Also if a position is before what there is: whoever reads is told."""
        try:
            marks = {at: self._bounds.marks(at) for at in wait.positions}
        except BrokerError:
            return True
        return any(
            marks[at].at(wait.horizon) > offset or offset < marks[at].start
            for at, offset in wait.positions.items()
        )

    def _look(self, parcel: list[ClusterWait]) -> Steps[None]:
        """For those whom no node can be asked to wait for: beyond the end, or on several nodes."""
        yield self._fleet.sleep(_LOOK_MS)
        parcel = [wait for wait in parcel if wait in self._waits]
        places = list({at: None for wait in parcel for at in wait.positions})
        if not places:
            return
        try:
            yield from self._bounds.refresh(places)
        except Trouble:
            pass  # the next look will tell
        except BrokerError:
            for wait in parcel:
                wait.tell(True)
        for wait in parcel:
            if wait in self._waits and self._enough(wait):
                wait.tell(True)
            else:
                self._poll(wait)
