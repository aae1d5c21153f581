"""Failed logins make the next one of their address wait longer, however many come at once."""

from __future__ import annotations

from functools import partial

import pytest
from tests.support.runtimes import SteppedRuntime

from pentalog.broker import attempts
from pentalog.broker.attempts import (
    DELAY_MS_MAX,
    DELAY_MS_MIN,
    UNDER_WAY_MAX,
    LocalAttempt,
    LocalAttempts,
)

HERE, ELSEWHERE = "10.0.0.1", "10.0.0.2"


class Door:
    """Where clients of some addresses log in; the test gives the verdicts."""

    def __init__(self) -> None:
        self.runtime = SteppedRuntime()
        self.attempts = LocalAttempts(self.runtime)
        self.under_way: list[LocalAttempt] = []

    def knock(self, host: str = HERE, name: str = "alice") -> LocalAttempt:
        made = self.attempts.open(host, name)
        made.begin(partial(self.under_way.append, made))
        return made

    def fail(self, host: str = HERE, name: str = "alice") -> int:
        """Let one attempt fail, and its delay pass."""
        before = self.runtime.monotonic()
        made = self.knock(host, name)
        while made not in self.under_way:
            self.runtime.advance(1)
            assert self.runtime.monotonic() < before + 100
        self.under_way.remove(made)
        return made.failed()


@pytest.fixture
def door() -> Door:
    return Door()


def test_each_failure_doubles_the_wait_up_to_a_limit(door: Door) -> None:
    waits = [door.fail() for _ in range(12)]
    assert waits[:4] == [0, DELAY_MS_MIN, 2 * DELAY_MS_MIN, 4 * DELAY_MS_MIN]
    assert waits == sorted(waits)
    assert waits[-1] == DELAY_MS_MAX
    assert door.fail(ELSEWHERE) == 0


def test_what_has_passed_of_the_wait_counts(door: Door) -> None:
    door.fail()
    door.fail()
    door.runtime.advance(DELAY_MS_MIN - 10)
    made = door.knock()
    door.runtime.advance(9)
    assert door.under_way == []
    door.runtime.advance(1)
    assert door.under_way == [made]
    assert made.failed() == 2 * DELAY_MS_MIN


def test_guesses_made_at_once_wait_for_each_other(door: Door) -> None:
    made = [door.knock() for _ in range(300)]
    assert door.under_way == made[:UNDER_WAY_MAX]
    verdicts = 0
    for _ in range(60_000):  # a minute
        while door.under_way:
            door.under_way.pop().failed()
            verdicts += 1
        door.runtime.advance(1)
    one_by_one = 2 + 7 + 5  # 0.1 to 6.4 s, then 10 s each
    assert UNDER_WAY_MAX < verdicts <= one_by_one
    assert door.attempts.open(ELSEWHERE, "alice").failed() == 0


def test_an_attempt_under_way_holds_up_those_after_it(door: Door) -> None:
    door.fail()
    first, second = door.knock(), door.knock()
    door.runtime.advance(30_000)
    assert door.under_way == [first]
    first.close()
    door.runtime.advance(0)
    assert door.under_way == [first, second]


def test_logins_that_succeed_hold_up_nobody_for_long(door: Door) -> None:
    """As when all clients of a machine come back at once."""
    made = [door.knock() for _ in range(300)]
    served = 0
    while door.under_way:
        door.under_way.pop(0).succeeded("alice")
        served += 1
        door.runtime.advance(0)
    assert served == len(made)
    assert len(door.attempts) == 0


def test_success_and_time_make_up_for_failures(door: Door) -> None:
    door.fail()
    made = door.knock()
    made.succeeded("alice")
    assert door.fail() == 0
    assert door.fail() == DELAY_MS_MIN
    door.runtime.advance(61_000)
    assert door.fail() == 0


def test_users_known_at_an_address_do_not_wait_for_guesses_at_others(door: Door) -> None:
    door.knock(name="bob").succeeded("bob")
    door.under_way.clear()
    for _ in range(8):
        door.fail(name="root")
    guess = door.knock(name="root")
    known, unknown = door.knock(name="bob"), door.knock(name="eve")
    assert door.under_way == [known]
    assert guess not in door.under_way
    assert unknown not in door.under_way
    # Guesses at a known user count for that user there.
    known.failed()
    assert [door.fail(name="bob") for _ in range(2)] == [DELAY_MS_MIN, 2 * DELAY_MS_MIN]


def test_who_leaves_the_queue_holds_up_nobody(door: Door) -> None:
    door.fail()
    made = [door.knock() for _ in range(100)]
    for each in made[:-1]:
        each.cancel()
    assert door.under_way == [made[0]]  # it has begun already
    made[0].close()
    door.runtime.advance(0)
    assert door.under_way == [made[0], made[-1]]


def test_addresses_of_one_network_count_as_one(door: Door) -> None:
    assert door.fail("2001:db8::1") == 0
    assert door.fail("2001:db8::ffff:2") == DELAY_MS_MIN
    assert door.fail("2001:db8:0:1::1") == 0
    assert door.fail("::ffff:10.0.0.9") == 0
    assert door.fail("10.0.0.9") == DELAY_MS_MIN
    assert door.fail("fe80::1%eth0") == 0
    assert door.fail("no address") == 0


def test_addresses_do_not_fill_the_memory(door: Door) -> None:
    waiting = door.knock("192.0.2.1")
    for number in range(attempts._SOURCES_MAX + 10):
        door.attempts.open(str(number), "").failed()
    assert len(door.attempts) <= attempts._SOURCES_MAX + 1
    assert waiting.failed() == 0
    for number in range(attempts._KNOWN_MAX + 10):
        door.attempts.open(HERE, str(number)).succeeded(str(number))
    assert len(door.attempts._known) == attempts._KNOWN_MAX


def test_messages_that_wait_do_not_fill_the_memory(door: Door) -> None:
    door.fail()
    door.knock()
    held, size = 0, 60 << 10
    while (made := door.attempts.open(HERE, "alice")).begin(door.under_way.clear, size):
        held += size
        assert held < 8 << 20
    assert held > 2 << 20
    made.cancel()  # it does not wait
    assert door.attempts.open(ELSEWHERE, "alice").begin(door.under_way.clear, size)
    refused = 0
    for number in range(200):
        for _ in range(60):
            refused += not door.attempts.open(str(number), "").begin(door.runtime.step, size)
    assert refused
    assert door.attempts._waiting_bytes <= attempts._WAITING_BYTES_MAX + 200 * (size + 1024)
