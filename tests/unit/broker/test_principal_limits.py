"""No principal takes everything of a limit that all share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from group_world import GroupWorld
from step_runtime import StepRuntime

from pentalog.broker.offset_usage import LEASE
from pentalog.broker.port import Committed, Joining, Proposal
from pentalog.broker.principal_limits import FairKeys, PrincipalLimits
from pentalog.broker.security import ANONYMOUS, Access, Principal
from pentalog.broker.state import State
from pentalog.model.errors import (
    GroupFull,
    GroupInconsistent,
    InvalidGroup,
    MemberIdRequired,
    OffsetsFull,
    Overloaded,
)
from pentalog.model.types import Partition

T0 = Partition("t", 0)


def limits(total: int, percent: int = 50) -> PrincipalLimits:
    return PrincipalLimits("things", total, share_percent=percent, setting="things_max")


def test_one_principal_gets_its_share_and_others_the_rest() -> None:
    things = limits(10)
    for _ in range(5):
        things.take("User:a")
    with pytest.raises(Overloaded, match="principal_share_percent"):
        things.take("User:a")
    for _ in range(5):
        things.take("User:b")
    with pytest.raises(Overloaded, match="things_max"):
        things.take("User:c")
    things.release("User:a")
    things.take("User:c")
    assert (things.used, things.used_by("User:a")) == (10, 4)


def test_the_broker_itself_has_no_share() -> None:
    things = limits(4)
    things.take("", 4)
    with pytest.raises(Overloaded):
        things.check("")


def test_a_share_is_never_nothing() -> None:
    limits(1, percent=1).take("User:a")


def test_a_limit_without_a_setting_names_none() -> None:
    things = PrincipalLimits("things", 2, share_percent=50)
    things.take("User:a")
    assert (things.fits("User:a"), things.fits("User:b"), things.fits("User:b", 2)) == (
        False,
        True,
        False,
    )
    with pytest.raises(Overloaded, match=r"remove some, or raise principal_share_percent$"):
        things.take("User:a")
    things.take("User:b")
    with pytest.raises(Overloaded, match=r"fit: remove some$"):
        things.take("User:c")


def test_keys_are_dropped_of_those_who_have_most() -> None:
    keys: FairKeys[int] = FairKeys(6, share_percent=50)
    for key in range(3):
        keys.use(key, "a")
        assert keys.excess("a") is None
    keys.touch(0)
    keys.use(3, "a")
    assert keys.excess("a") == 1, "beyond its share, its oldest"
    keys.discard(1)
    keys.discard(1)
    for key in (4, 5):
        keys.use(key, "b")
    keys.use(6, "")
    assert (len(keys), keys.excess("b")) == (6, None)
    keys.use(7, "")
    assert keys.excess("") == 2, "a has most"
    keys.use(2, "b")
    assert keys.excess("b") == 4, "the key has another owner"


def test_clients_without_login_are_told_apart_by_their_addresses() -> None:
    assert Access(who=Principal("User", "a"), host="10.0.0.1").owner == "User:a"
    assert Access(who=ANONYMOUS, host="10.0.0.1").owner == "User:ANONYMOUS@10.0.0.1"


@pytest.fixture
def open_world(open_state: Callable[[], State], runtime: StepRuntime) -> Callable[..., GroupWorld]:
    def open_one(**settings: Any) -> GroupWorld:
        return GroupWorld(open_state, runtime, **settings)

    return open_one


def joining(
    owner: str, *, metadata: bytes = b"", protocols: int = 1, id_required: bool = False
) -> Joining:
    return Joining(
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="connect",
        proposals=tuple(Proposal(f"p{each}", metadata, None) for each in range(protocols)),
        id_required=id_required,
        owner=owner,
    )


def test_a_member_may_say_only_so_much(open_world: Callable[..., GroupWorld]) -> None:
    world = open_world()
    with pytest.raises(GroupInconsistent):
        world.groups.join("g", joining("User:a", protocols=101))
    with pytest.raises(GroupFull, match="group_member_bytes_max"):
        world.groups.join("g", joining("User:a", metadata=bytes((1 << 20) + 1)))
    assert world.groups.found("g") is None
    assert world.groups.surroundings.memory.used == 0


def test_members_and_ids_given_out_are_charged_until_they_go(
    open_world: Callable[..., GroupWorld],
) -> None:
    world = open_world(group_bytes_max=1 << 20)
    memory = world.groups.surroundings.memory
    world.groups.join("g", joining("User:a", metadata=bytes(400_000)))
    assert memory.used_by("User:a") > 400_000
    with pytest.raises(GroupFull, match="principal_share_percent"):
        world.groups.join("h", joining("User:a", metadata=bytes(400_000)))
    assert world.groups.found("h") is None
    world.groups.join("h", joining("User:b", metadata=bytes(400_000)))
    with pytest.raises(MemberIdRequired):
        world.groups.join("i", joining("User:c", id_required=True))
    assert memory.used_by("User:c") > 0
    for name in "ghi":
        world.groups.drop(name)
    assert memory.used == memory.used_by("User:a") == memory.used_by("User:c") == 0


def test_offsets_are_charged_to_the_first_who_commits(
    open_world: Callable[..., GroupWorld],
) -> None:
    world = open_world(offsets_bytes_max=1 << 16)
    commit = world.groups.offsets.commit
    for number in range(25):
        commit(f"g{number}", {T0: Committed(1)}, owner="User:a")
    with pytest.raises(OffsetsFull, match="principal_share_percent"):
        commit("more", {T0: Committed(1)}, owner="User:a")
    commit("g0", {T0: Committed(2)}, owner="User:a")
    commit("other", {T0: Committed(1)}, owner="User:b")
    world.groups.offsets.forget("g1")
    commit("again", {T0: Committed(1)}, owner="User:a")
    with pytest.raises(OffsetsFull):
        commit("g" * 32_000, {T0: Committed(1)}, owner="User:b")
    with pytest.raises(InvalidGroup):
        world.groups.join("g" * 1_001, joining("User:b"))


def test_leases_are_limited(open_world: Callable[..., GroupWorld]) -> None:
    world = open_world(retention_leases_max=4)
    commit = world.groups.offsets.commit
    for name in ("a", "b"):
        commit(name, {T0: Committed(1, metadata=f"{LEASE}60000")}, owner="User:a")
    with pytest.raises(OffsetsFull, match="retention leases"):
        commit("c", {T0: Committed(1, metadata=f"{LEASE}60000")}, owner="User:a")
    assert "c" not in world.groups.offsets.groups()
    commit("a", {T0: Committed(2, metadata=f"{LEASE}60000")}, owner="User:a")
    commit("b", {T0: Committed(2)}, owner="User:a")
    commit("c", {T0: Committed(1, metadata=f"{LEASE}60000")}, owner="User:a")
    assert set(world.groups.offsets.leaseholders) == {"a", "c"}
