"""What every kind of group is to those who keep, list and fence groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pentalog.broker.group_settings import LocalGroupSettings
from pentalog.broker.port import Fence, GroupView, Joined, Joining, Leaving, Synced
from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.broker.state import State
from pentalog.config import Config
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.runtime import Runtime, Turns


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a group needs of the broker it lives in."""

    state: State
    runtime: Runtime
    config: Config
    settings: LocalGroupSettings
    turns: Turns
    """For what happens to many members at once."""
    memory: PrincipalLimits
    """For members of all groups."""


class Group(ABC):
    """One group, of either kind.

    Members of both kinds may come through `join`, `sync`, `heartbeat` and `leave`: a group that
    the broker plans serves them for members that still speak the older protocol.
    """

    kind: ClassVar[str]
    """`classic` or `consumer`."""
    name: str
    changed_ms: int
    """Since when the group has been in the state it is in; decides when an empty one expires."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Has it no members?  Then it may be deleted, or replaced by one of the other kind."""

    @property
    @abstractmethod
    def settled(self) -> bool:
        """Is it certain which topics the members read?"""

    @abstractmethod
    def join(self, joining: Joining) -> Later[Joined]: ...

    @abstractmethod
    def sync(
        self,
        fence: Fence,
        plan: Mapping[str, bytes],
        *,
        protocol_type: str | None,
        protocol: str | None,
    ) -> Later[Synced]: ...

    @abstractmethod
    def heartbeat(self, fence: Fence) -> None: ...

    @abstractmethod
    def leave(self, leaving: Sequence[Leaving]) -> Sequence[BrokerError | None]: ...

    @abstractmethod
    def check_commit(
        self,
        fence: Fence,
        *,
        transactional: bool,
        epoch_aware: bool,
        at: Collection[Partition] = (),
    ) -> None:
        """Raise unless this member may commit now; one that may has shown that it lives.

        `at`: what it commits, where that is known already.
        """

    @abstractmethod
    def check_fetch(self, fence: Fence) -> None:
        """Raise unless this member may ask for offsets now."""

    @abstractmethod
    def reads(self, topic: str) -> bool:
        """Does a member read this topic, or may it, as far as can be told?"""

    @abstractmethod
    def check_forget(self) -> None:
        """Raise if no offset may be dropped because it cannot be told what the members read."""

    @abstractmethod
    def view(self, *, members: bool) -> GroupView: ...

    @abstractmethod
    def erase(self) -> None:
        """Queue the removal of everything the state file has of it (not of its offsets)."""

    def stop_waiting(self, refusal: BrokerError) -> None:  # noqa: B027  # most have no waits
        """The broker stops: answer everybody who waits for something that may take long."""

    @abstractmethod
    def close(self) -> None:
        """Stop its timers and refuse what waits for it: it is replaced, deleted or shut down."""
