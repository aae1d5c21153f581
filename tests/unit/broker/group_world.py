"""Groups over a real state file, with members driven by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from step_runtime import StepRuntime

from pentalog.broker.groups import LocalGroups
from pentalog.broker.port import Fence, Joined, Joining, Proposal
from pentalog.broker.state import State
from pentalog.config import Config
from pentalog.model.errors import MemberIdRequired
from pentalog.model.later import Later

SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE = (Proposal("range", b"sub", frozenset({"t"})),)


class GroupWorld:
    """One life of a broker's groups; `again` is the next one, after a crash."""

    def __init__(
        self, open_state: Callable[[], State], runtime: StepRuntime, **settings: Any
    ) -> None:
        self._open_state = open_state
        self._settings = settings
        self.runtime = runtime
        settings.setdefault("group_initial_rebalance_delay_ms", 0)
        self.state = open_state()
        self.groups = LocalGroups(self.state, runtime, Config(**settings))
        self.groups.open()

    def again(self) -> GroupWorld:
        self.groups.close()
        return GroupWorld(self._open_state, self.runtime, **self._settings)

    def ask(self, member_id: str = "", *, group: str = "g", **changes: Any) -> Later[Joined]:
        """Join, without waiting for anything."""
        fields: dict[str, Any] = {
            "member_id": member_id,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "proposals": RANGE,
            **changes,
        }
        return self.groups.join(group, Joining(**fields))

    def enter(self, *, group: str = "g", **changes: Any) -> tuple[str, Later[Joined]]:
        """Join as a new member that fetches its id first."""
        try:
            self.ask(group=group, **changes)
        except MemberIdRequired as told:
            return told.member_id, self.ask(told.member_id, group=group, **changes)
        raise AssertionError("joined without an id")

    def stable(self, size: int = 1, **changes: Any) -> list[Joined]:
        """A group of so many members, planned; the leader comes first."""
        waits = [self.enter(**changes)[1] for _ in range(size)]
        self.runtime.advance(0)
        joined = sorted((wait.value for wait in waits), key=lambda j: j.member_id != j.leader)
        self.plan(joined)
        return joined

    def plan(self, joined: list[Joined], *, group: str = "g") -> None:
        """Let everybody sync; each gets its id as its part."""
        plan = {one.member_id: one.member_id.encode() for one in joined}
        syncs = [
            self.groups.sync(group, fence(one), plan if one.member_id == one.leader else {})
            for one in joined
        ]
        self.runtime.run()
        for one, sync in zip(joined, syncs, strict=True):
            assert sync.value.assignment == one.member_id.encode()

    def state_of(self, group: str = "g") -> str:
        return self.groups.view(group).state

    def beat_for(self, members: list[Joined], duration_ms: int) -> None:
        """Let time pass while these members send heartbeats."""
        for _ in range(duration_ms // 1000):
            self.runtime.advance(1000)
            for member in members:
                self.groups.heartbeat("g", fence(member))


def fence(joined: Joined, instance_id: str | None = None) -> Fence:
    return Fence(joined.member_id, joined.generation, instance_id)
