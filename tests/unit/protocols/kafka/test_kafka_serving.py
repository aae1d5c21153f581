"""Requests that name much: counted, joined, and served in slices in the order they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta

import pytest
from kafka_requests import fetch, request
from kafka_world import Clock, Line, World, answer_of

from pentalog.model.later import Later
from pentalog.protocols.kafka.entities import ELEMENTS_MAX
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.serving import LARGE_BYTES, LARGE_MAX, Gate
from pentalog.protocols.kafka.session import KafkaSession
from pentalog.runtime import Slices
from pentalog.session import Address, Context

METADATA, LIST_OFFSETS, OFFSET_FETCH, API_VERSIONS, DELETE_TOPICS = 3, 2, 9, 18, 20


class Turns(Clock):
    """A loop by hand: one turn at a time, each of which does one step of long requests."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], None]] = deque()

    def soon(self, run: Callable[[], None]) -> None:
        self.due.append(run)

    def turn(self) -> None:
        for _ in range(len(self.due)):
            self.due.popleft()()


class HeldLine(Line):
    """A line that is full while it is held, as that of a connection is."""

    @property
    def full(self) -> bool:
        return self.held

    @full.setter
    def full(self, full: bool) -> None:
        assert not full


class Slow:
    """A session whose long requests take a turn for every step."""

    def __init__(self, world: World, turns: Turns, slices: Slices) -> None:
        self.line = HeldLine()
        self.turns = turns
        context = Context(
            broker=world.broker,
            runtime=turns,  # type: ignore[arg-type]
            config=world.config,
            metrics=world.metrics,
            peer="test",
            listener="kafka",
            advertised=lambda endpoint: Address("host.example", 9092),
            slices=slices,
        )
        self.session = KafkaSession(context, self.line)
        self._unread = b""

    def feed(self, data: bytes = b"") -> None:
        self._unread += data
        buffer = bytearray(self._unread)
        used = self.session.receive(memoryview(buffer))
        self._unread = self._unread[used:]

    def run(self) -> None:
        """Let all turns pass; what was held back is fed again."""
        while self.turns.due:
            self.turns.turn()
            if not self.line.held and self._unread:
                self.feed()


class Slows:
    """Connections of one broker, in one loop."""

    def __init__(self) -> None:
        self.world = World(auto_create_topics=False)
        self.turns = Turns()
        self.slices = Slices(self.turns, cut=lambda: True)  # type: ignore[arg-type]

    def connect(self) -> Slow:
        return Slow(self.world, self.turns, self.slices)


def metadata(names: list[str], correlation_id: int = 7) -> bytes:
    fields = {
        "topics": [{"name": name} for name in names],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    return request(METADATA, 9, fields, correlation_id=correlation_id)


def offset_fetch(partitions: int, correlation_id: int = 7) -> bytes:
    topics = [{"name": "a", "partition_indexes": list(range(partitions))}]
    fields = {"group_id": "g", "topics": topics, "require_stable": False}
    return request(OFFSET_FETCH, 7, fields, correlation_id=correlation_id)


def long_names(count: int = 3_000) -> list[str]:
    return [f"{number}-{'x' * 40}" for number in range(count)]


def correlations(line: Line) -> list[int]:
    return [int.from_bytes(frame[:4], "big") for frame in line.frames()]


def test_later_requests_wait_for_a_long_one() -> None:
    slow = Slows().connect()
    slow.feed(metadata(long_names(), 1) + request(API_VERSIONS, 0, {}, correlation_id=2))
    assert slow.line.frames() == []
    assert slow.line.held
    slow.turns.turn()
    assert slow.line.frames() == []
    slow.run()
    assert correlations(slow.line) == [1, 2]
    assert not slow.line.held


def test_others_are_served_between_the_steps() -> None:
    slows = Slows()
    slow, other = slows.connect(), slows.connect()
    slow.feed(metadata(long_names(), 1))
    other.feed(request(API_VERSIONS, 0, {}, correlation_id=2))
    assert correlations(other.line) == [2]
    assert slow.line.waiting == 1
    slow.run()
    assert correlations(slow.line) == [1]


def test_a_long_answer_is_that_of_one_go() -> None:
    slows = Slows()
    slows.world.topics.add("a", 500)
    frame = metadata(["a", *long_names(200)])
    slow = slows.connect()
    slow.feed(frame)
    slow.run()
    (answer,) = slow.line.frames()
    assert answer_of(METADATA, 9, answer) == slows.world.ask(METADATA, 9, frame)


def test_a_connection_that_goes_takes_its_questions_along() -> None:
    slow = Slows().connect()
    slow.feed(metadata(long_names()))
    slow.session.close()
    slow.run()
    assert slow.line.waiting == 1


def test_what_was_begun_is_deleted_although_the_client_has_gone() -> None:
    slows = Slows()
    names = long_names(300)
    for name in names:
        slows.world.topics.add(name)
    slow = slows.connect()
    fields = {"topic_names": names, "timeout": timedelta(seconds=1)}
    slow.feed(request(DELETE_TOPICS, 4, fields))
    slow.session.close()
    slow.run()
    assert slows.world.topics.known == {}


def test_large_requests_wait_until_others_are_done() -> None:
    slows = Slows()
    clients = [slows.connect() for _ in range(LARGE_MAX + 2)]
    for client in clients:
        client.feed(metadata(long_names()))
    waiting = [client.line.waiting for client in clients]
    assert waiting == [1] * LARGE_MAX + [0, 0], "the last ones were begun"
    clients[-2].session.close()
    while slows.turns.due:
        slows.turns.turn()
        for client in clients:
            if not client.line.held and client._unread:
                client.feed()
    answered = [len(client.line.frames()) for client in clients]
    assert answered == [1] * LARGE_MAX + [0, 1]


@pytest.mark.parametrize("elements", [ELEMENTS_MAX, ELEMENTS_MAX + 1])
def test_too_many_elements_are_refused_by_the_answers_error(elements: int) -> None:
    world = World()
    answer = world.ask(OFFSET_FETCH, 7, offset_fetch(elements - 1))
    refused = elements > ELEMENTS_MAX
    assert answer.error_code == (ErrorCode.invalid_request if refused else ErrorCode.none)
    assert len(answer.topics) == (0 if refused else 1)
    assert not world.line.hung_up


@pytest.mark.parametrize("count", [ELEMENTS_MAX, ELEMENTS_MAX + 1])
def test_too_many_elements_close_where_an_answer_has_no_error(count: int) -> None:
    world = World(auto_create_topics=False)
    world.feed(metadata([f"n{number}" for number in range(count)]))
    assert world.line.hung_up == (count > ELEMENTS_MAX)
    assert len(world.line.frames()) == (count <= ELEMENTS_MAX)


def test_tagged_fields_count_as_elements() -> None:
    world = World()
    frame = bytearray(metadata([]))
    frame.pop()
    count = ELEMENTS_MAX + 1
    tags = bytes((count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14)) + b"\x64\0" * count
    frame[:4] = (len(frame) - 4 + len(tags)).to_bytes(4, "big")
    world.feed(bytes(frame) + tags)
    assert world.line.hung_up


def test_a_name_given_again_is_answered_once() -> None:
    world = World(auto_create_topics=False)
    world.topics.add("a")
    answer = world.ask(METADATA, 9, metadata(["a", "b", "a", "b"]))
    assert [topic.name for topic in answer.topics] == ["a", "b"]


def test_partitions_listed_twice_are_refused() -> None:
    world = World()
    world.topics.add("a", 2)
    parts = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
        for index in (0, 1, 0)
    ]
    topics = [{"name": "a", "partitions": parts}]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": topics}
    (topic,) = world.ask(LIST_OFFSETS, 6, request(LIST_OFFSETS, 6, fields)).topics
    assert [part.error_code for part in topic.partitions] == [42, 0, 42]


def test_a_partition_fetched_twice_is_answered_once() -> None:
    world = World()
    world.topics.add("a")
    answer = world.ask(1, 11, fetch(11, [("a", 0, 5), ("a", 0, 0)]))
    (topic,) = answer.responses
    (partition,) = topic.partitions
    assert partition.error_code == ErrorCode.none


def test_clients_alternate_at_the_gate() -> None:
    gate, order = Gate(places=1), list[str]()
    assert gate.enter()
    for _ in range(3):
        gate.wait("greedy", lambda: order.append("greedy"))
    gone = gate.wait("gone", lambda: order.append("gone"))
    gate.wait("modest", lambda: order.append("modest"))
    assert not gate.enter()
    gone()
    gone()
    for _ in range(4):
        gate.leave()
    assert order == ["greedy", "modest", "greedy", "greedy"]
    gate.leave()
    assert gate.enter()


def test_large_requests_wait_for_memory_without_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    slows = Slows()
    waiting: list[Later[Callable[[], None]]] = []
    released: list[str] = []

    def reserve(size: int) -> Later[Callable[[], None]]:
        assert size > LARGE_BYTES
        waiting.append(Later())
        return waiting[-1]

    stuck = [slows.connect() for _ in range(LARGE_MAX + 1)]
    for slow in stuck:
        monkeypatch.setattr(slow.line, "reserve", reserve)
        slow.feed(metadata(long_names(), 1))
        assert slow.line.held
    other = slows.connect()
    other.feed(metadata(long_names(), 2))
    other.run()
    assert correlations(other.line) == [2]
    for later in waiting:
        later.fill(lambda: released.append("memory"))
    for slow in stuck:
        slow.feed()
        slow.run()
    assert [correlations(slow.line) for slow in stuck] == [[1]] * len(stuck)
    assert len(released) == len(stuck)
