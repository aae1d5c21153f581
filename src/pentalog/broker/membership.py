"""The part of the contract that members of groups use which the broker plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from pentalog.broker.security import Sight
from pentalog.model.errors import GroupNotFound
from pentalog.model.later import Later


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a member of a broker-planned group says of itself; None: the same as before."""

    member_id: str
    epoch: int
    """Where it is; 0: it joins, -1: it leaves, -2: it leaves but will be back under its name."""
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    """A regular expression over topic names, beside `topics`; empty: none."""
    sight: Sight | None = None
    """Which topics its pattern may find; None: all."""
    assignor: str | None = None
    owned: Mapping[UUID, frozenset[int]] | None = None
    """What it reads at the moment."""
    owner: str = ""
    """The principal that what is kept of the member is charged to (`Access.owner`)."""

    @property
    def whole(self) -> bool:
        """Does it tell everything, as one does that may have missed an answer?"""
        subscribed = self.topics is not None or self.pattern is not None
        return self.rebalance_timeout_ms is not None and subscribed and self.owned is not None


class Beaten(NamedTuple):
    """What a member of a broker-planned group is told."""

    member_id: str
    epoch: int
    interval_ms: int
    """How often it shall be heard of."""
    share: Mapping[UUID, Collection[int]] | None = None
    """What it may read from now on; None: the same as before."""


class ConsumerView(NamedTuple):
    """A member of a broker-planned group, for those who list them."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    epoch: int
    topics: Collection[str]
    pattern: str
    held: Mapping[UUID, Collection[int]]
    target: Mapping[UUID, Collection[int]]
    classic: bool
    """It speaks the older protocol, in which members plan themselves."""


class ConsumersView(NamedTuple):
    """A broker-planned group, for those who list them."""

    name: str
    state: str
    """Empty, Assigning, Reconciling, Stable."""
    epoch: int
    plan_epoch: int
    assignor: str
    members: Sequence[ConsumerView]


class Consumers(Protocol):
    """Groups that leave planning to the broker."""

    def beat(self, group: str, beat: Beat) -> Later[Beaten]:
        """Join, go on or leave; ready when what was decided is on the disk."""

    def view(self, group: str) -> ConsumersView:
        """Raises `GroupNotFound`, also for a group that plans itself."""


class Unplanned:
    """Implements `Consumers` for a broker that plans for nobody."""

    def beat(self, group: str, beat: Beat) -> Later[Beaten]:
        raise GroupNotFound(f"group {group!r}: this broker plans for no group, use the older way")

    def view(self, group: str) -> ConsumersView:
        raise GroupNotFound(f"group {group!r}: this broker plans for no group")


UNPLANNED: Final = Unplanned()
