"""The part of the contract that operators use: quotas, and settings changed while it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias

from pentalog.config import Config
from pentalog.model.errors import InvalidConfig
from pentalog.model.later import Later


class Quota(Enum):
    """What of a client's doings can be limited."""

    WRITTEN = "write_bytes_per_second"
    READ = "read_bytes_per_second"
    WORK = "work_percent"
    """Share of the time of the thread that serves all clients."""
    CHANGED = "partition_changes_per_second"
    """Partitions made and deleted."""
    CONNECTED = "connections_per_second"
    """Of an address only."""


Owner: TypeAlias = frozenset[tuple[str, str | None]]
"""Whom a quota is for: pairs of `user` or `client` and a name, or one of `address` and a name; None
stands for each one that has no quota of its own."""


class Meter(Protocol):
    """Counts what one client uses, against the quotas that hold for it."""

    def written(self, size_bytes: int) -> int:
        """Count bytes received for writing; milliseconds the client must be quiet for, or 0."""

    def read(self, size_bytes: int) -> int:
        """0: counted, send them.  Otherwise the milliseconds to be quiet for; send nothing."""

    def sent(self, size_bytes: int) -> int:
        """Count bytes that are sent in any case; milliseconds to be quiet for, or 0."""

    @property
    def read_bytes_max(self) -> int | None:
        """Most that one answer should carry; None: no limit."""

    def write_delay_ms(self, more_bytes: int) -> int:
        """Milliseconds to be quiet for, were these written too, or 0; nothing is counted."""

    def read_delay_ms(self, more_bytes: int) -> int: ...

    def worked(self, seconds: float) -> None:
        """Count time spent serving it."""

    @property
    def work_delay_ms(self) -> int:
        """Milliseconds the client must be quiet for because of the time counted so far, or 0."""

    def changed(self, partitions: int) -> None:
        """Count partitions that are made or deleted."""

    @property
    def change_delay_ms(self) -> int:
        """Milliseconds until the client may make or delete partitions again, or 0."""


class Quotas(Protocol):
    active: bool
    """There is any quota at all: otherwise nobody needs to be metered."""
    version: int
    """Grows with every change: meters asked for before it are out of date."""

    def all(self) -> Mapping[Owner, Mapping[Quota, float]]: ...

    def change(
        self, owner: Owner, changes: Mapping[Quota, float | None], *, dry_run: bool = False
    ) -> None:
        """Set quotas of one owner (None: remove); durable with `settle`."""

    def meter(self, user: str, client: str) -> Meter:
        """Of one client; shared by all who are under the same quotas."""

    def connected(self, address: str) -> int:
        """Count a connection; 0, or the milliseconds after which it must be closed unserved."""

    def settle(self) -> Later[None]:
        """Ready as soon as every change made so far is on the disk."""


class Layer(Enum):
    """Where a setting's value comes from, the strongest first."""

    BROKER = "broker"
    """Changed while running, for this broker."""
    CLUSTER = "cluster"
    """Changed while running, for all brokers."""
    GIVEN = "given"
    """File, environment or flag."""
    DEFAULT = "default"


class Value(NamedTuple):
    layer: Layer
    text: str


class Settings(Protocol):
    """The broker's settings, some of which can be changed while it runs.

    Named as in `Config`; the defaults of topics by the names of topic settings.
    """

    live: Config
    """What is in force now."""

    def values(self, name: str) -> Sequence[Value]:
        """Every value a setting has, the one in force first, the default last."""

    def changeable(self, name: str) -> bool:
        """Can it be changed while the broker runs?"""

    def changed(self, layer: Layer) -> Mapping[str, str]:
        """What was changed while running."""

    def change(
        self,
        layer: Layer,
        changes: Mapping[str, str | None],
        *,
        replace: bool = False,
        dry_run: bool = False,
    ) -> None:
        """Change settings (None: take the change back); with `replace`, take back all others."""

    def settle(self) -> Later[None]:
        """Ready as soon as every change made so far is on the disk."""


class GroupSettings(Protocol):
    """Settings of single groups; a group without its own has the broker's."""

    @property
    def names(self) -> Mapping[str, str]:
        """Every setting a group can have, and the broker's setting it has otherwise."""

    def groups(self) -> Collection[str]:
        """Those with settings of their own."""

    def own(self, group: str) -> Mapping[str, str]:
        """What was set for a group."""

    def change(
        self,
        group: str,
        changes: Mapping[str, str | None],
        *,
        replace: bool = False,
        dry_run: bool = False,
        owner: str = "",
    ) -> None:
        """Change settings (None: back to the broker's); with `replace`, drop all others first.

        Durable with `settle`.  A group that had none counts for `owner`, the client.
        """

    def settle(self) -> Later[None]:
        """Ready as soon as every change made so far is on the disk."""


class Unlimited:
    """The quotas of a broker that keeps none."""

    active = False
    version = 0

    def all(self) -> Mapping[Owner, Mapping[Quota, float]]:
        return {}

    def change(
        self, owner: Owner, changes: Mapping[Quota, float | None], *, dry_run: bool = False
    ) -> None:
        raise InvalidConfig("this broker keeps no quotas: ask one with a data directory")

    def meter(self, user: str, client: str) -> Meter:
        raise AssertionError("never active")

    def connected(self, address: str) -> int:
        return 0

    def settle(self) -> Later[None]:
        return Later.now(None)


class Fixed:
    """The settings of a broker that has nowhere to keep changes."""

    def __init__(self, config: Config | None = None) -> None:
        self.live = Config() if config is None else config

    def values(self, name: str) -> Sequence[Value]:
        return ()

    def changeable(self, name: str) -> bool:
        return False

    def changed(self, layer: Layer) -> Mapping[str, str]:
        return {}

    def change(
        self,
        layer: Layer,
        changes: Mapping[str, str | None],
        *,
        replace: bool = False,
        dry_run: bool = False,
    ) -> None:
        raise InvalidConfig("this broker keeps no settings: ask one with a data directory")

    def settle(self) -> Later[None]:
        return Later.now(None)


UNLIMITED: Final = Unlimited()
FIXED: Final = Fixed()
