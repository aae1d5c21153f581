"""Quotas of clients: who may write, read and occupy us how much, and how long who is over waits.

A rate is measured over the last eleven seconds, second by second.  The first ten seconds count
as whole even when they have not passed yet, so a client may use ten seconds' worth at once and
is then held back until the average fits.  Partitions are made and deleted out of a bucket instead,
which holds eleven seconds' worth and may be overdrawn by whatever is asked for while it is not.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from pentalog.broker.needs import Rows
from pentalog.broker.operation import Meter, Owner, Quota
from pentalog.model.errors import InvalidConfig
from pentalog.model.later import Later
from pentalog.runtime import Runtime

WINDOWS: Final = 11
WINDOW_S: Final = 1.0
DELAY_MS_MAX: Final = 3_600_000
WORK_DELAY_MS_MAX: Final = 1_000
"""Time is only known to be used up afterwards: a short rest, then another look."""
OWNERS_MAX: Final = 100_000
NAME_CHARACTERS_MAX: Final = 1_000
_RATES_SWEPT: Final = 1_000
_INTEGER_MAX: Final = (1 << 63) - 1
CONNECTION_DELAY_MS_MAX: Final = 1_000
"""How long a connection too many is kept waiting before it is closed."""
_KINDS: Final = frozenset({"user", "client"})
_ADDRESS: Final = "address"
_WHOLE: Final = (Quota.WRITTEN, Quota.READ, Quota.CONNECTED)

_Share: TypeAlias = tuple[Quota, str | None, str | None]


class Rate:
    """How much was used of late."""

    __slots__ = ("_samples", "_total", "used_s")

    def __init__(self) -> None:
        self.used_s = -math.inf
        self._samples: deque[tuple[float, float]] = deque()
        self._total = 0.0

    def record(self, amount: float, now_s: float) -> None:
        samples = self._samples
        if samples and now_s - samples[-1][0] < WINDOW_S:
            start_s, before = samples[-1]
            samples[-1] = (start_s, before + amount)
        else:
            self._purge(now_s)
            samples.append((now_s, amount))
        self._total += amount
        self.used_s = now_s

    def idle(self, now_s: float) -> bool:
        """Nothing that was used is remembered any more."""
        return now_s - self.used_s >= WINDOWS * WINDOW_S

    def delay_ms(self, bound: float, now_s: float, more: float = 0.0) -> int:
        """How long to rest until the rate, with `more` used now, is down at `bound`."""
        self._purge(now_s)
        elapsed_s = now_s - self._samples[0][0] if self._samples else 0.0
        missing = WINDOWS - 1 - int(elapsed_s / WINDOW_S)
        if missing > 0:
            elapsed_s += missing * WINDOW_S
        delay_ms = ((self._total + more) / bound - elapsed_s) * 1000
        return 0 if delay_ms < 0.5 else min(DELAY_MS_MAX, round(delay_ms))

    @property
    def empty(self) -> bool:
        return not self._samples

    def _purge(self, now_s: float) -> None:
        samples = self._samples
        while samples and now_s - samples[0][0] >= WINDOWS * WINDOW_S:
            self._total -= samples.popleft()[1]
        if not samples:
            self._total = 0.0


class Bucket:
    """What may be used now; fills up again with time."""

    __slots__ = ("_filled_s", "_limit", "_tokens")

    def __init__(self) -> None:
        self._tokens = math.inf
        self._limit = 0.0
        self._filled_s = 0.0

    def take(self, amount: float, limit: float, now_s: float) -> None:
        self._fill(limit, now_s)
        self._tokens -= amount

    def delay_ms(self, limit: float, now_s: float) -> int:
        """How long until nothing is owed any more."""
        self._fill(limit, now_s)
        return max(0, min(DELAY_MS_MAX, math.ceil(-self._tokens / limit * 1000)))

    def idle(self, now_s: float) -> bool:
        """It is as full as a new one."""
        gained = (now_s - self._filled_s) * self._limit
        return self._tokens + gained >= self._limit * WINDOWS * WINDOW_S

    def _fill(self, limit: float, now_s: float) -> None:
        gained = (now_s - self._filled_s) * limit
        self._tokens = min(limit * WINDOWS * WINDOW_S, self._tokens + gained)
        self._limit = limit
        self._filled_s = now_s


class _Bound(NamedTuple):
    rate: Rate
    limit: float


class LocalMeter:
    """Implements `Meter` for whoever shares these rates."""

    __slots__ = ("_changed", "_read", "_runtime", "_work", "_written")

    def __init__(
        self,
        runtime: Runtime,
        bounds: Mapping[Quota, _Bound],
        changed: tuple[Bucket, float] | None = None,
    ) -> None:
        self._runtime = runtime
        self._changed = changed
        self._written = bounds.get(Quota.WRITTEN)
        self._read = bounds.get(Quota.READ)
        self._work = bounds.get(Quota.WORK)

    def written(self, size_bytes: int) -> int:
        if self._written is None:
            return 0
        now_s = self._runtime.monotonic()
        self._written.rate.record(size_bytes, now_s)
        return self._written.rate.delay_ms(self._written.limit, now_s)

    def read(self, size_bytes: int) -> int:
        if self._read is None or not size_bytes:
            return 0
        rate, limit = self._read
        now_s = self._runtime.monotonic()
        delay_ms = rate.delay_ms(limit, now_s, size_bytes)
        if delay_ms and not rate.empty:
            return delay_ms
        # One batch may be more than the quota ever allows; it is sent when nothing else was.
        rate.record(size_bytes, now_s)
        return 0

    def sent(self, size_bytes: int) -> int:
        if self._read is None:
            return 0
        now_s = self._runtime.monotonic()
        self._read.rate.record(size_bytes, now_s)
        return self._read.rate.delay_ms(self._read.limit, now_s)

    def write_delay_ms(self, more_bytes: int) -> int:
        return self._delay_ms(self._written, more_bytes)

    def read_delay_ms(self, more_bytes: int) -> int:
        return self._delay_ms(self._read, more_bytes)

    def _delay_ms(self, bound: _Bound | None, more: int) -> int:
        delay_ms = self.work_delay_ms
        if bound is None:
            return delay_ms
        return max(delay_ms, bound.rate.delay_ms(bound.limit, self._runtime.monotonic(), more))

    @property
    def read_bytes_max(self) -> int | None:
        if self._read is None:
            return None
        return int(min(self._read.limit * (WINDOWS - 1) * WINDOW_S, _INTEGER_MAX))

    def worked(self, seconds: float) -> None:
        if self._work is not None:
            self._work.rate.record(seconds * 100, self._runtime.monotonic())

    @property
    def work_delay_ms(self) -> int:
        if self._work is None:
            return 0
        rate, limit = self._work
        return min(WORK_DELAY_MS_MAX, rate.delay_ms(limit, self._runtime.monotonic()))

    def changed(self, partitions: int) -> None:
        if self._changed is not None:
            bucket, limit = self._changed
            bucket.take(partitions, limit, self._runtime.monotonic())

    @property
    def change_delay_ms(self) -> int:
        if self._changed is None:
            return 0
        bucket, limit = self._changed
        return bucket.delay_ms(limit, self._runtime.monotonic())


class LocalQuotas:
    """Implements `Quotas` over the state file."""

    def __init__(self, state: Rows, runtime: Runtime) -> None:
        self.active = False
        self.version = 1
        self._state = state
        self._runtime = runtime
        self._limits: dict[Owner, dict[Quota, float]] = {}
        self._rates: dict[_Share, Rate] = {}
        self._buckets: dict[_Share, Bucket] = {}
        self._sweep_at = _RATES_SWEPT

    def open(self) -> None:
        names = {quota.value for quota in Quota}
        for owner, name, value in self._state.rows("SELECT owner, name, value FROM quotas"):
            if name in names:
                known = self._limits.setdefault(frozenset(json.loads(owner).items()), {})
                known[Quota(name)] = value
        self.active = bool(self._limits)

    def all(self) -> Mapping[Owner, Mapping[Quota, float]]:
        return MappingProxyType(self._limits)

    def change(
        self, owner: Owner, changes: Mapping[Quota, float | None], *, dry_run: bool = False
    ) -> None:
        _check_owner(owner)
        for quota, value in changes.items():
            _check_kind(owner, quota)
            if value is not None:
                _check_value(quota, value)
        if owner not in self._limits and len(self._limits) >= OWNERS_MAX:
            raise InvalidConfig(
                f"{OWNERS_MAX} clients have quotas already: remove some, or set one for all"
            )
        if dry_run:
            return
        self._state.check()
        limits = self._limits.setdefault(owner, {})
        key = json.dumps(dict(sorted(owner)))
        for quota, value in changes.items():
            if value is None:
                limits.pop(quota, None)
                self._state.write(
                    "DELETE FROM quotas WHERE owner = ? AND name = ?", key, quota.value
                )
            else:
                limits[quota] = value
                self._state.write(
                    "INSERT OR REPLACE INTO quotas VALUES (?, ?, ?)", key, quota.value, value
                )
        if not limits:
            del self._limits[owner]
        self.active = bool(self._limits)
        self.version += 1

    def meter(self, user: str, client: str) -> Meter:
        bounds: dict[Quota, _Bound] = {}
        for quota in (Quota.WRITTEN, Quota.READ, Quota.WORK):
            found = self._closest(quota, user, client)
            if found is not None:
                bounds[quota] = _Bound(self._rate(found[0]), found[1])
        changed = self._closest(Quota.CHANGED, user, client)
        if changed is None:
            return LocalMeter(self._runtime, bounds)
        return LocalMeter(self._runtime, bounds, (self._bucket(changed[0]), changed[1]))

    def connected(self, address: str) -> int:
        for name in (address, None):
            limits = self._limits.get(frozenset({(_ADDRESS, name)}), {})
            limit = limits.get(Quota.CONNECTED)
            if limit is not None:
                now_s = self._runtime.monotonic()
                rate = self._rate((Quota.CONNECTED, address, None))
                delay_ms = rate.delay_ms(limit, now_s, 1)
                if delay_ms:
                    return min(delay_ms, CONNECTION_DELAY_MS_MAX)
                rate.record(1, now_s)
                return 0
        return 0

    def _closest(self, quota: Quota, user: str, client: str) -> tuple[_Share, float] | None:
        """The limit that holds for a client, and with whom it is shared."""
        for owner in _owners(user, client):
            limit = self._limits.get(owner, {}).get(quota)
            if limit is not None:
                kinds = {kind for kind, _ in owner}
                mine = user if "user" in kinds else None
                return (quota, mine, client if "client" in kinds else None), limit
        return None

    def settle(self) -> Later[None]:
        return self._state.settle()

    def _rate(self, share: _Share) -> Rate:
        rate = self._rates.get(share)
        if rate is None:
            self._make_room()
            rate = self._rates[share] = Rate()
        return rate

    def _bucket(self, share: _Share) -> Bucket:
        bucket = self._buckets.get(share)
        if bucket is None:
            self._make_room()
            bucket = self._buckets[share] = Bucket()
        return bucket

    def _make_room(self) -> None:
        """Forget rates that are zero anyway, or a client that changes its name fills the memory."""
        if len(self._rates) + len(self._buckets) < self._sweep_at:
            return
        now_s = self._runtime.monotonic()
        self._rates = {share: rate for share, rate in self._rates.items() if not rate.idle(now_s)}
        self._buckets = {
            share: bucket for share, bucket in self._buckets.items() if not bucket.idle(now_s)
        }
        self._sweep_at = max(_RATES_SWEPT, 2 * (len(self._rates) + len(self._buckets)))
        # Meters with a forgotten rate must not go on beside those with its successor.
        self.version += 1


def _owners(user: str, client: str) -> tuple[Owner, ...]:
    """Whose quota holds for a client, the closest first."""
    users, clients = ("user", user), ("client", client)
    each_user, each_client = ("user", None), ("client", None)
    return (
        frozenset({users, clients}),
        frozenset({users, each_client}),
        frozenset({users}),
        frozenset({each_user, clients}),
        frozenset({each_user, each_client}),
        frozenset({each_user}),
        frozenset({clients}),
        frozenset({each_client}),
    )


def _check_owner(owner: Owner) -> None:
    kinds = [kind for kind, _ in owner]
    if kinds == [_ADDRESS]:
        return
    if not kinds or len(set(kinds)) != len(kinds) or not _KINDS.issuperset(kinds):
        raise InvalidConfig(
            "a quota is for a user, for a client, for a client of a user, or for an address"
        )
    if any(name is not None and len(name) > NAME_CHARACTERS_MAX for _, name in owner):
        raise InvalidConfig(
            f"the name of a user or client has at most {NAME_CHARACTERS_MAX} characters here"
        )


def _check_kind(owner: Owner, quota: Quota) -> None:
    of_address = any(kind == _ADDRESS for kind, _ in owner)
    if of_address != (quota is Quota.CONNECTED):
        raise InvalidConfig(
            "addresses have a quota of connections, and nobody else has one: give users and "
            "clients another quota"
        )


def _check_value(quota: Quota, value: float) -> None:
    if not (math.isfinite(value) and 0 < value <= _INTEGER_MAX):
        raise InvalidConfig(f"a quota cannot be {value}: give a number larger than 0")
    if quota in _WHOLE and value != int(value):
        raise InvalidConfig(f"a quota cannot be {value} per second: give a whole number")
