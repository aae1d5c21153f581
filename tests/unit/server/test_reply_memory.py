"""Memory of answers: who is charged, who waits, who is closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest

from pentalog.runtime import Job, Slices
from pentalog.server.reply_memory import (
    UNCOUNTED_BYTES,
    AddressSlices,
    ReplyAccount,
    ReplyMemory,
)

MIB = 1 << 20


class Loop:
    """Runs what was asked for in a later turn."""

    def __init__(self) -> None:
        self._runs: deque[Callable[[], None]] = deque()
        self.seconds = 0.0

    def call_soon(self, run: Callable[[], None]) -> None:
        self._runs.append(run)

    soon = call_soon

    def monotonic(self) -> float:
        return self.seconds

    def turn(self) -> None:
        for _ in range(len(self._runs)):
            self._runs.popleft()()

    def run(self) -> None:
        while self._runs:
            self.turn()


class Client:
    """A connection whose peer reads, or does not."""

    def __init__(self) -> None:
        self.queued_bytes = 0
        self.taken_bytes = 0
        self.closed = False

    def give_up(self) -> None:
        self.closed = True


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def memory(loop: Loop) -> ReplyMemory:
    return ReplyMemory(cast("Any", loop), 16 * MIB, lambda _kind, _text: None)


def account(memory: ReplyMemory, block: str = "a") -> tuple[Client, ReplyAccount]:
    client = Client()
    return client, ReplyAccount(memory, block, client)


def queue(client: Client, held: ReplyAccount, size: int) -> None:
    client.queued_bytes = size
    held.queued(size)


def sweep(memory: ReplyMemory) -> None:
    for _ in memory.sweep():
        pass


def test_small_answers_are_not_counted(memory: ReplyMemory) -> None:
    client, held = account(memory)
    queue(client, held, UNCOUNTED_BYTES)
    assert memory.used_bytes == 0
    queue(client, held, UNCOUNTED_BYTES + 1)
    assert memory.used_bytes == UNCOUNTED_BYTES + 1
    queue(client, held, 10)
    assert memory.used_bytes == 0


def test_an_address_holds_as_much_as_it_leaves_free(memory: ReplyMemory) -> None:
    client, held = account(memory)
    queue(client, held, 8 * MIB)
    assert held.over
    assert not held.grants(MIB)
    _, other = account(memory, "b")
    assert other.grants(8 * MIB)
    assert not other.over
    # One of the same address that holds nothing answers small requests.
    _, small = account(memory)
    assert not small.over
    assert not small.grants(MIB)


def test_any_size_fits_where_nothing_is_used(memory: ReplyMemory) -> None:
    client, held = account(memory)
    assert held.grants(100 * MIB)
    release = held.reserve(100 * MIB)
    assert not account(memory, "b")[1].grants(1)
    release()
    assert memory.used_bytes == 0
    queue(client, held, 0)
    held.close()
    release()
    assert memory.used_bytes == 0


def test_those_who_wait_are_called_in_order_and_addresses_alternate(
    loop: Loop, memory: ReplyMemory
) -> None:
    holders = [account(memory, block) for block in "ab"]
    for client, held in holders:
        queue(client, held, 6 * MIB)
    called: list[str] = []
    for name in ("a1", "a2", "b1"):
        _, waiting = account(memory, name[0])
        waiting.await_grant(2 * MIB, lambda name=name: called.append(name))  # type: ignore[misc]
    loop.run()
    assert called == []
    queue(*holders[0], 0)
    loop.run()
    assert called == ["a1", "a2"], "b holds as much as before"
    queue(*holders[1], 0)
    loop.run()
    assert called == ["a1", "a2", "b1"]


def test_a_connection_that_has_gone_waits_no_longer(loop: Loop, memory: ReplyMemory) -> None:
    client, held = account(memory)
    queue(client, held, 12 * MIB)
    _, waiting = account(memory)
    waiting.await_grant(MIB, lambda: pytest.fail("it has gone"))
    waiting.close()
    sweep(memory)
    sweep(memory)
    assert not client.closed, "nothing waits for its memory"
    queue(client, held, 0)
    loop.run()


def test_clients_that_do_not_read_are_closed_if_others_wait(memory: ReplyMemory) -> None:
    (stuck, held), (reads, read) = account(memory), account(memory)
    queue(stuck, held, 6 * MIB)
    queue(reads, read, 6 * MIB)
    (other, small) = account(memory, "b")
    queue(other, small, MIB)
    sweep(memory)
    sweep(memory)
    assert not stuck.closed, "nothing waits"
    _, waiting = account(memory)
    waiting.await_grant(4 * MIB, lambda: None)
    reads.taken_bytes += MIB
    sweep(memory)
    assert stuck.closed
    assert not reads.closed
    assert not other.closed, "its address holds less than the one that waits"


def steps(done: list[int], number: int, count: int = 3) -> Iterator[None]:
    for _ in range(count):
        yield
    done.append(number)


def ended(error: Exception | None) -> None:
    assert error is None


def test_few_long_requests_of_an_address_are_under_way(loop: Loop, memory: ReplyMemory) -> None:
    cut = Slices(cast("Any", loop), cut=lambda: True)
    slices = AddressSlices(cut, memory, "a")
    started: list[int] = []
    done: list[int] = []

    def long(number: int) -> Iterator[None]:
        started.append(number)
        yield from steps(done, number)

    abandon = [slices.run(long(number), ended) for number in range(40)]
    most = 0
    for _ in range(10_000):
        loop.turn()
        most = max(most, len(started) - len(done))
        if len(done) == 39:
            break
        if len(started) == 20:
            abandon[39]()
    assert done == list(range(39))
    assert most == 16


def test_a_job_that_was_made_before_is_started_in_turn(loop: Loop, memory: ReplyMemory) -> None:
    slices = AddressSlices(Slices(cast("Any", loop), cut=lambda: True), memory, "a")
    done: list[int] = []
    for number in range(40):
        slices.start(Job(steps(done, number), ended, "a"))
    loop.run()
    assert done == list(range(40))


def test_no_long_request_is_started_while_its_address_has_to_wait(
    loop: Loop, memory: ReplyMemory
) -> None:
    slices = AddressSlices(Slices(cast("Any", loop)), memory, "a")
    client, held = account(memory)
    queue(client, held, 9 * MIB)
    done: list[int] = []
    slices.run(steps(done, 1), ended)
    AddressSlices(Slices(cast("Any", loop)), memory, "b").run(steps(done, 2), ended)
    loop.run()
    assert done == [2]
    queue(client, held, 0)
    loop.run()
    assert done == [2, 1]


def test_a_long_request_may_abandon_itself(loop: Loop, memory: ReplyMemory) -> None:
    abandon: list[Callable[[], None]] = []
    seen: list[str] = []

    def suicidal() -> Iterator[None]:
        yield
        try:
            abandon[0]()
            yield
            seen.append("went on")
        finally:
            seen.append("closed")

    cut = Slices(cast("Any", loop), cut=lambda: True)
    slices = AddressSlices(cut, memory, "a")
    abandon.append(slices.run(suicidal(), lambda _: seen.append("done")))
    loop.run()
    assert seen == ["closed"]
    done: list[int] = []
    for number in range(16):
        slices.run(steps(done, number), ended)
    loop.run()
    assert sorted(done) == list(range(16))


def test_a_long_request_whose_answer_is_reserved_does_not_wait(
    loop: Loop, memory: ReplyMemory
) -> None:
    slices = AddressSlices(Slices(cast("Any", loop)), memory, "a")
    _, held = account(memory)
    release = held.reserve(9 * MIB)
    done: list[int] = []
    slices.run(steps(done, 1), ended, unconditional=True)
    loop.run()
    assert done == [1], "it waits for memory that it holds itself"
    release()


def test_requests_of_clients_that_have_gone_are_not_kept(loop: Loop, memory: ReplyMemory) -> None:
    slices = AddressSlices(Slices(cast("Any", loop)), memory, "a")
    client, held = account(memory)
    queue(client, held, 9 * MIB)
    abandon = [slices.run(steps([], number), ended) for number in range(100)]
    for gone in abandon:
        gone()
    assert slices.waiting == 0
    sweep(memory)
    sweep(memory)
    assert not client.closed, "nothing waits for its memory any longer"


def test_memory_that_is_freed_is_given_once(loop: Loop, memory: ReplyMemory) -> None:
    client, held = account(memory)
    queue(client, held, 12 * MIB)
    called: list[int] = []
    for number in range(3):
        account(memory)[1].await_grant(6 * MIB, partial(called.append, number))
    queue(client, held, 0)
    loop.run()
    assert called == [0], "what the first one was called for is its own, though it reads later"
    assert memory.used_bytes == 6 * MIB


def test_a_small_answer_does_not_overtake_a_large_one(loop: Loop, memory: ReplyMemory) -> None:
    client, held = account(memory)
    queue(client, held, 4 * MIB)
    _, large = account(memory)
    assert not large.grants(10 * MIB)
    called: list[str] = []
    large.await_grant(10 * MIB, lambda: called.append("large"))
    _, small = account(memory)
    assert not small.grants(MIB)
    assert account(memory, "b")[1].grants(MIB), "another address does not wait for this one"
    large.close()
    assert small.grants(MIB)


def test_the_next_one_is_asked_when_the_first_one_goes(loop: Loop, memory: ReplyMemory) -> None:
    client, held = account(memory)
    queue(client, held, 4 * MIB)
    called: list[str] = []
    _, large = account(memory)
    large.await_grant(10 * MIB, lambda: called.append("large"))
    _, small = account(memory)
    small.await_grant(MIB, lambda: called.append("small"))
    large.close()
    loop.run()
    assert called == ["small"]


def test_every_address_is_asked_when_memory_is_freed(loop: Loop, memory: ReplyMemory) -> None:
    client, held = account(memory, "holder")
    queue(client, held, 16 * MIB)
    called: list[str] = []
    for number in range(200):
        _, large = account(memory, f"large {number}")
        large.await_grant(12 * MIB, lambda: called.append("large"))
    _, small = account(memory, "small")
    small.await_grant(MIB, lambda: called.append("small"))
    queue(client, held, 8 * MIB)
    loop.run()
    assert called == ["small"]


def test_those_who_wait_are_called_when_the_limit_is_raised(
    loop: Loop, memory: ReplyMemory
) -> None:
    client, held = account(memory)
    queue(client, held, 12 * MIB)
    called: list[str] = []
    account(memory)[1].await_grant(MIB, lambda: called.append("waited"))
    memory.resize(64 * MIB)
    loop.run()
    assert called == ["waited"]


def test_a_client_has_the_time_between_two_sweeps_to_read(memory: ReplyMemory) -> None:
    _, waiting = account(memory)
    client, held = account(memory)
    queue(client, held, 12 * MIB)
    waiting.await_grant(4 * MIB, lambda: None)
    sweep(memory)
    assert not client.closed, "it was given its answer just now"
    client.taken_bytes += MIB
    sweep(memory)
    sweep(memory)
    assert not client.closed, "a socket reports in steps what was read"
    sweep(memory)
    assert client.closed


def test_a_sweep_closes_no_more_than_others_wait_for(loop: Loop, memory: ReplyMemory) -> None:
    stuck = [account(memory) for _ in range(8)]
    for client, held in stuck:
        queue(client, held, MIB)
    sweep(memory)
    sweep(memory)
    called: list[str] = []
    account(memory)[1].await_grant(MIB, lambda: called.append("waited"))
    for _ in memory.sweep():
        for client, held in stuck:
            if client.closed:
                held.close()
        loop.run()
    assert called == ["waited"]
    assert sum(client.closed for client, _ in stuck) == 1
