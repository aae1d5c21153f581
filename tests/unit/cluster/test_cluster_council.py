"""Gateways that agree on an owner: there is one soon, and never two."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_world import ClusterWorld
from council_world import STEP_MS, Gateway, pass_time

from pentalog.broker.council import Peer
from pentalog.cluster import agreement
from pentalog.cluster.agreement import Candidate
from pentalog.cluster.council import BEAT_MS, GROUP, MARGIN_MS, SESSION_MS

COUNCIL_KEYS = (10, 11, 12, 14)
HEARTBEAT = 12


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ClusterWorld]:
    made = ClusterWorld(tmp_path)
    yield made
    made.close()


def settled(gateways: list[Gateway]) -> bool:
    """Everyone knows everyone, and who owns."""
    names = sorted(each.name for each in gateways)
    owners = [each.name for each in gateways if each.council.owned]
    return (
        len(owners) == 1
        and all(sorted(p.gateway_id for p in each.council.fleet) == names for each in gateways)
        and all(each.council.owner is not None for each in gateways)
        and {each.council.owner.gateway_id for each in gateways if each.council.owner}
        == {owners[0]}
    )


def test_one_alone_is_the_owner(world: ClusterWorld) -> None:
    one = Gateway(world, "one")
    assert [peer.gateway_id for peer in one.council.fleet] == ["one"]
    assert not one.council.owned
    pass_time(world, [one], lambda: one.council.owned)
    assert one.council.me == Peer("one", 1, {"blipmq": ("one.example", 5555)})
    assert one.council.owner == one.council.me
    assert list(one.council.fleet) == [one.council.me]
    pass_time(world, [one], lambda: world.runtime.time_ms % 20_000 < STEP_MS)
    assert one.council.owned


def test_everyone_knows_everyone_and_the_owner_stays(world: ClusterWorld) -> None:
    gateways = [Gateway(world, "one")]
    pass_time(world, gateways, lambda: settled(gateways))
    for name in ("two", "three"):
        gateways.append(Gateway(world, name))
        pass_time(world, gateways, lambda: settled(gateways))
        assert gateways[0].council.owned
    assert {peer.number for peer in gateways[2].council.fleet} == {1, 2, 3}
    assert gateways[1].council.fleet == gateways[2].council.fleet
    assert [each.council.me.number for each in gateways if each.council.me] == [1, 2, 3]


def test_an_owner_that_leaves_is_followed_at_once(world: ClusterWorld) -> None:
    one, other = gateways = [Gateway(world, "one"), Gateway(world, "other")]
    pass_time(world, gateways, lambda: settled(gateways))
    owner, heir = (one, other) if one.council.owned else (other, one)
    told: list[bool] = []
    owner.council.watch(lambda: told.append(owner.council.owned))
    world.until(owner.council.close())
    assert not owner.council.owned
    assert told == [False]
    assert pass_time(world, gateways, lambda: heir.council.owned) <= 2 * BEAT_MS


def test_an_owner_that_is_cut_off_gives_up_before_another_begins(world: ClusterWorld) -> None:
    one, other = gateways = [Gateway(world, "one"), Gateway(world, "other")]
    pass_time(world, gateways, lambda: settled(gateways))
    owner, heir = (one, other) if one.council.owned else (other, one)
    owner.dialer.cut()
    told: list[bool] = []
    stop = owner.council.watch(lambda: told.append(owner.council.owned))
    given_up_ms = pass_time(world, gateways, lambda: bool(told))
    assert given_up_ms <= SESSION_MS - MARGIN_MS + STEP_MS
    assert owner.council.owner is None
    waited_ms = pass_time(world, gateways, lambda: heir.council.owned)
    assert waited_ms <= SESSION_MS
    assert told == [False]
    stop()
    owner.dialer.away = False
    pass_time(world, gateways, lambda: settled(gateways))
    assert heir.council.owned
    assert told == [False]


def test_an_owner_stays_though_a_connection_falls_silent(world: ClusterWorld) -> None:
    one = Gateway(world, "one")
    pass_time(world, [one], lambda: one.council.owned)
    silenced: list[bytes] = []

    def trouble(frame: bytes) -> str | None:
        if frame[5] == HEARTBEAT and not silenced:
            silenced.append(frame)
            return "silence"
        return None

    world.trouble = trouble
    for _ in range(0, 2 * SESSION_MS, STEP_MS):
        world.runtime.run()
        assert one.council.owned
        world.runtime.advance(STEP_MS)
    assert silenced


def test_kafka_sees_who_owns(world: ClusterWorld) -> None:
    one = Gateway(world, "one")
    pass_time(world, [one], lambda: one.council.owned)
    view = world.disk.broker.groups.view(GROUP)
    assert view.protocol_type == "consumer"
    (member,) = view.members
    assert b"__pentalog_state\0\0\0\1\0\0\0\0" in member.assignment


@pytest.mark.parametrize("seed", range(6))
def test_never_two_whatever_breaks(world: ClusterWorld, seed: int) -> None:
    chance = random.Random(seed)
    gateways = [Gateway(world, name) for name in ("one", "two", "three")]
    for gateway in gateways:
        gateway.engine.state.close()  # which asks for more all the time
    rough = True

    def trouble(frame: bytes) -> str | None:
        if not rough or int.from_bytes(frame[4:6], "big") not in COUNCIL_KEYS:
            return None
        return chance.choice([None] * 8 + ["before", "after"])

    world.trouble = trouble
    for _ in range(30):
        gateway = chance.choice(gateways)
        if chance.random() < 0.3:
            gateway.dialer.cut()
        else:
            gateway.dialer.away = False
        until_ms = world.runtime.time_ms + chance.randrange(100, 8_000)
        pass_time(world, gateways, lambda until_ms=until_ms: world.runtime.time_ms > until_ms)
    rough = False
    for gateway in gateways:
        gateway.dialer.away = False
    pass_time(world, gateways, lambda: settled(gateways))


def candidate(name: str, number: int = 0, since: int = -1, doors: int = 1) -> Candidate:
    return Candidate(Peer(name, number, {f"d{each}": ("h", each) for each in range(doors)}), since)


def test_numbers_and_owners_are_kept() -> None:
    agreed = agreement.agree(
        [candidate("a"), candidate("b", 2), candidate("c", 2), candidate("d", 7, since=4)]
    )
    assert {peer.gateway_id: peer.number for peer in agreed.fleet} == {
        "a": 1,
        "b": 2,
        "c": 3,
        "d": 7,
    }
    assert agreed.owner_id == "d"
    assert agreement.agree([candidate("a", 1), candidate("b", 2, doors=3)]).owner_id == "b"
    newer = agreement.agree([candidate("a", 1, since=3), candidate("b", 2, since=5)])
    assert newer.owner_id == "b"
    assert agreement.agree([]) == agreement.Agreement((), "")


def test_what_gateways_tell_each_other_survives_the_wire() -> None:
    told = candidate("a", 3, since=9, doors=2)
    assert agreement.read_subscription(agreement.subscription(told)) == told
    agreed = agreement.agree([told])
    for owner in (True, False):
        data = agreement.assignment(agreed, owner=owner)
        assert agreement.read_assignment(data) == (agreed, owner)
        for size in range(len(data)):
            with pytest.raises(ValueError, match="cannot be read"):
                agreement.read_assignment(data[:size])
    assert agreement.read_subscription(b"\0\0\xff\xff\xff\xff\0\0\0\2[]") is None


def test_a_peer_is_found_by_its_door() -> None:
    peer = Peer("a", 1, {"cursus+tls": ("h", 1), "cursus": ("h", 2), "blipmq+tls": ("h", 3)})
    assert peer.address("cursus") == ("h", 2)
    assert peer.address("cursus+tls") == ("h", 1)
    assert peer.address("blipmq") == ("h", 3)
    assert peer.address("fluvio") is None
