"""Failed logins make the next one of their address wait longer."""

from __future__ import annotations

from tests.support.runtimes import SteppedRuntime

from pentalog.broker import attempts
from pentalog.broker.attempts import DELAY_MS_MAX, DELAY_MS_MIN, LocalAttempts


def test_each_failure_doubles_the_wait_up_to_a_limit() -> None:
    known = LocalAttempts(SteppedRuntime())
    waits = [known.failed("a") for _ in range(12)]
    assert waits[:4] == [0, DELAY_MS_MIN, 2 * DELAY_MS_MIN, 4 * DELAY_MS_MIN]
    assert waits == sorted(waits)
    assert waits[-1] == DELAY_MS_MAX
    assert known.failed("b") == 0


def test_what_has_passed_of_the_wait_counts() -> None:
    runtime = SteppedRuntime()
    known = LocalAttempts(runtime)
    assert known.delay_ms("a") == 0
    known.failed("a")
    known.failed("a")
    assert known.delay_ms("a") == DELAY_MS_MIN
    runtime.advance(DELAY_MS_MIN - 1)
    assert known.delay_ms("a") == 1
    runtime.advance(1)
    assert known.delay_ms("a") == 0
    assert known.failed("a") == 2 * DELAY_MS_MIN


def test_success_and_time_make_up_for_failures() -> None:
    runtime = SteppedRuntime()
    known = LocalAttempts(runtime)
    known.failed("a")
    known.succeeded("a")
    assert known.failed("a") == 0
    assert known.failed("a") == DELAY_MS_MIN
    runtime.advance(61_000)
    assert known.failed("a") == 0


def test_addresses_do_not_fill_the_memory() -> None:
    known = LocalAttempts(SteppedRuntime())
    for number in range(attempts._ADDRESSES_MAX + 10):
        known.failed(str(number))
    assert len(known._failures) == attempts._ADDRESSES_MAX
    assert known.delay_ms("0") == 0
