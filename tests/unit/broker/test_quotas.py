"""Quotas: what a client may use, whose quota holds, and that they outlive the broker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
from step_runtime import StepRuntime

from pentalog.broker.operation import Owner, Quota
from pentalog.broker.quotas import LocalQuotas
from pentalog.broker.state import State
from pentalog.model.errors import InvalidConfig

Open = Callable[[], State]
KB = 1000


def owner(**names: str | None) -> Owner:
    return frozenset(names.items())


@pytest.fixture
def quotas(open_state: Open, runtime: StepRuntime) -> LocalQuotas:
    made = LocalQuotas(open_state(), runtime)
    made.open()
    return made


def test_nobody_is_metered_until_there_is_a_quota(quotas: LocalQuotas) -> None:
    assert not quotas.active
    assert quotas.all() == {}
    quotas.change(owner(user="a"), {Quota.READ: 5.0})
    assert quotas.active
    quotas.change(owner(user="a"), {Quota.READ: None})
    assert not quotas.active
    assert quotas.all() == {}


def test_ten_seconds_worth_at_once_then_a_rest(quotas: LocalQuotas, runtime: StepRuntime) -> None:
    quotas.change(owner(client="c"), {Quota.WRITTEN: KB})
    meter = quotas.meter("u", "c")
    assert meter.written(10 * KB) == 0
    assert meter.written(500) == 500
    runtime.advance(500)
    # Half a second of the eleven has passed, so half a second's worth more is one too much.
    assert meter.written(1) > 0


def test_what_was_used_is_forgotten_after_eleven_seconds(
    quotas: LocalQuotas, runtime: StepRuntime
) -> None:
    quotas.change(owner(client="c"), {Quota.WRITTEN: KB})
    meter = quotas.meter("u", "c")
    assert meter.written(30 * KB) == 20_000
    runtime.advance(10_999)
    assert meter.written(1) > 0
    runtime.advance(1)
    assert meter.written(9 * KB) == 0


@pytest.mark.parametrize("size", [100, 1500, 4000])
def test_who_rests_as_told_stays_at_the_quota(
    quotas: LocalQuotas, runtime: StepRuntime, size: int
) -> None:
    quotas.change(owner(client="c"), {Quota.WRITTEN: KB})
    meter = quotas.meter("u", "c")
    start, used = runtime.time_ms, 0
    while runtime.time_ms - start < 300_000:
        used += size
        runtime.advance(max(1, meter.written(size)))
    rate = used / (runtime.time_ms - start) * 1000
    assert 0.85 * KB < rate < 1.15 * KB


def test_reading_over_the_quota_is_refused_and_not_counted(
    quotas: LocalQuotas, runtime: StepRuntime
) -> None:
    quotas.change(owner(client="c"), {Quota.READ: KB})
    meter = quotas.meter("u", "c")
    assert meter.read_bytes_max == 10 * KB
    assert meter.read(8 * KB) == 0
    delays = {meter.read(4 * KB) for _ in range(5)}
    assert delays == {2000}
    assert meter.read(2 * KB) == 0
    runtime.advance(11_000)
    assert meter.read(10 * KB) == 0


def test_a_batch_larger_than_the_quota_allows_is_read_when_nothing_else_was(
    quotas: LocalQuotas, runtime: StepRuntime
) -> None:
    quotas.change(owner(client="c"), {Quota.READ: KB})
    meter = quotas.meter("u", "c")
    assert meter.read(50 * KB) == 0
    assert meter.read(50 * KB) > 0
    runtime.advance(11_000)
    assert meter.read(50 * KB) == 0


def test_time_used_is_answered_by_short_rests(quotas: LocalQuotas, runtime: StepRuntime) -> None:
    quotas.change(owner(client="c"), {Quota.WORK: 10.0})
    meter = quotas.meter("u", "c")
    meter.worked(1.0)
    assert meter.work_delay_ms == 0
    meter.worked(0.05)
    assert meter.work_delay_ms == 500
    meter.worked(5.0)
    assert meter.work_delay_ms == 1000


def test_without_a_quota_of_its_kind_nothing_is_limited(quotas: LocalQuotas) -> None:
    quotas.change(owner(client="c"), {Quota.WORK: 10.0})
    meter = quotas.meter("u", "c")
    assert (meter.written(1 << 40), meter.read(1 << 40), meter.read_bytes_max) == (0, 0, None)
    other = quotas.meter("u", "other")
    other.worked(1e6)
    assert other.work_delay_ms == 0


CLOSEST_FIRST: list[Mapping[str, str | None]] = [
    {"user": "u", "client": "c"},
    {"user": "u", "client": None},
    {"user": "u"},
    {"user": None, "client": "c"},
    {"user": None, "client": None},
    {"user": None},
    {"client": "c"},
    {"client": None},
]


@pytest.mark.parametrize("first", range(len(CLOSEST_FIRST)))
def test_the_closest_quota_holds(quotas: LocalQuotas, first: int) -> None:
    for number, names in enumerate(CLOSEST_FIRST):
        if number >= first:
            quotas.change(owner(**names), {Quota.READ: 100.0 * (number + 1)})
    assert quotas.meter("u", "c").read_bytes_max == 1000 * (first + 1)


@pytest.mark.parametrize(
    ("names", "shared_by_clients", "shared_by_users"),
    [
        ({"user": "u"}, True, None),
        ({"user": None}, True, False),
        ({"client": "c"}, None, True),
        ({"client": None}, False, True),
        ({"user": None, "client": None}, False, False),
    ],
)
def test_who_shares_a_quota(
    quotas: LocalQuotas,
    names: dict[str, str | None],
    shared_by_clients: bool | None,
    shared_by_users: bool | None,
) -> None:
    quotas.change(owner(**names), {Quota.WRITTEN: KB})
    assert quotas.meter("u", "c").written(20 * KB) > 0
    assert quotas.meter("u", "c").written(1) > 0
    if shared_by_clients is not None:
        assert (quotas.meter("u", "d").written(1) > 0) == shared_by_clients
    if shared_by_users is not None:
        assert (quotas.meter("v", "c").written(1) > 0) == shared_by_users


def test_quotas_outlive_the_broker(
    open_state: Open, runtime: StepRuntime, quotas: LocalQuotas
) -> None:
    quotas.change(owner(user="ü", client=None), {Quota.READ: 5.0, Quota.WORK: 0.5})
    quotas.change(owner(user=None), {Quota.WRITTEN: 7.0})
    quotas.change(owner(client="gone"), {Quota.WRITTEN: 7.0})
    quotas.change(owner(client="gone"), {Quota.WRITTEN: None})
    settled = quotas.settle()
    assert not settled.ready
    runtime.run()
    assert settled.ready
    again = LocalQuotas(open_state(), runtime)
    again.open()
    assert again.active
    assert again.all() == {
        owner(user="ü", client=None): {Quota.READ: 5.0, Quota.WORK: 0.5},
        owner(user=None): {Quota.WRITTEN: 7.0},
    }


def test_a_dry_run_changes_nothing(quotas: LocalQuotas) -> None:
    quotas.change(owner(user="a"), {Quota.READ: 5.0}, dry_run=True)
    assert (quotas.all(), quotas.active) == ({}, False)
    with pytest.raises(InvalidConfig):
        quotas.change(owner(user="a"), {Quota.READ: -5.0}, dry_run=True)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e30, 0.5])
def test_values_refused(quotas: LocalQuotas, value: float) -> None:
    with pytest.raises(InvalidConfig, match="quota cannot be"):
        quotas.change(owner(user="a"), {Quota.WRITTEN: value})
    assert quotas.all() == {}


@pytest.mark.parametrize(
    "names",
    [
        frozenset(),
        frozenset({("ip", "1.2.3.4")}),
        frozenset({("user", "a"), ("user", "b")}),
        frozenset({("user", "a" * 1001)}),
    ],
)
def test_owners_refused(quotas: LocalQuotas, names: Owner) -> None:
    with pytest.raises(InvalidConfig):
        quotas.change(names, {Quota.WRITTEN: 1.0})


def test_clients_that_went_are_forgotten(quotas: LocalQuotas, runtime: StepRuntime) -> None:
    quotas.change(owner(client=None), {Quota.WRITTEN: KB})
    version = quotas.version
    for number in range(5000):
        quotas.meter("u", f"c{number}").written(1)
        if number % 500 == 0:
            runtime.advance(11_000)
    assert len(quotas._rates) < 2100
    assert quotas.version > version


def test_meters_know_when_they_are_out_of_date(quotas: LocalQuotas) -> None:
    version = quotas.version
    quotas.change(owner(client=None), {Quota.WRITTEN: KB})
    assert quotas.version > version


def test_partitions_come_out_of_a_bucket_that_may_be_overdrawn_once(
    quotas: LocalQuotas, runtime: StepRuntime
) -> None:
    quotas.change(owner(user="u"), {Quota.CHANGED: 2.0})
    meter = quotas.meter("u", "c")
    meter.changed(22)
    assert meter.change_delay_ms == 0
    meter.changed(10)
    assert meter.change_delay_ms == 5_000
    assert quotas.meter("u", "other").change_delay_ms == 5_000
    assert quotas.meter("v", "c").change_delay_ms == 0
    runtime.advance(4_999)
    assert meter.change_delay_ms == 1
    runtime.advance(1)
    assert meter.change_delay_ms == 0
    # It never holds more than eleven seconds' worth.
    runtime.advance(1_000_000)
    meter.changed(23)
    assert meter.change_delay_ms == 500


def test_connections_of_each_address_are_counted(quotas: LocalQuotas, runtime: StepRuntime) -> None:
    quotas.change(owner(address=None), {Quota.CONNECTED: 1.0})
    quotas.change(owner(address="9.9.9.9"), {Quota.CONNECTED: 2.0})
    assert [quotas.connected("1.1.1.1") for _ in range(10)] == [0] * 10
    # Who is refused is not counted, and waits a second at most.
    assert [quotas.connected("1.1.1.1") for _ in range(3)] == [1_000] * 3
    assert [quotas.connected("9.9.9.9") for _ in range(20)] == [0] * 20
    assert quotas.connected("9.9.9.9") == 500
    assert quotas.connected("2.2.2.2") == 0
    runtime.advance(11_000)
    assert quotas.connected("1.1.1.1") == 0
    quotas.change(owner(address=None), {Quota.CONNECTED: None})
    assert [quotas.connected("1.1.1.1") for _ in range(100)] == [0] * 100


def test_many_addresses_and_clients_do_not_fill_the_memory(
    quotas: LocalQuotas, runtime: StepRuntime
) -> None:
    quotas.change(owner(address=None), {Quota.CONNECTED: 1.0})
    quotas.change(owner(client=None), {Quota.CHANGED: 1.0})
    for number in range(5_000):
        quotas.connected(f"address {number}")
        quotas.meter("u", f"client {number}").changed(1)
        runtime.advance(20)
    assert len(quotas._rates) + len(quotas._buckets) < 3_000
