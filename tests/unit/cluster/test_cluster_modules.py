"""SmartModules in front of a cluster: changed through any gateway, by whoever owns the state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
from cluster_world import ClusterWorld
from disk_broker import DiskBroker
from fluvio_gateway import FluvioPeer, MemoryUpstream, agreed, asked, until
from fluvio_world import (
    chain,
    create_topic,
    predefined,
    produce,
    read_streamed,
    request,
    stream_fetch,
    their_batch,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "protocols" / "fluvio"))

from test_fluvio_sc import (
    CREATE,
    DELETE,
    create_module,
    delete,
    status,
    text_of,
)
from test_fluvio_spu import PRODUCE, STREAM
from wat_modules import module

from pentalog.broker.council import ALONE
from pentalog.broker.security import (
    ANONYMOUS,
    CLUSTER_NAME,
    Access,
    Kind,
    Operation,
    Principal,
    Rule,
)
from pentalog.protocols.fluvio.codec import Reader
from pentalog.protocols.fluvio.errors import NOT_LEADER
from pentalog.protocols.fluvio.forwarding import name_among
from pentalog.session import Context


@pytest.mark.parametrize("at", [0, 1])
def test_modules_are_stored_through_any_gateway(
    world: ClusterWorld, gateways: list[FluvioPeer], at: int
) -> None:
    here, there = gateways[at], gateways[1 - at]
    sc = here.sc()
    assert status(asked(world, sc, CREATE, create_module("only-a", module("filter")))) == (
        "only-a",
        0,
    )
    assert [kept.name for kept in here.broker.smart_modules.all()] == ["only-a"]
    until(world, gateways, lambda: len(there.broker.smart_modules.all()) == 1)
    here.sc().ask(CREATE, create_topic("fruit"))
    for each in gateways:
        each.spu().ask(PRODUCE, produce("fruit", their_batch(b"apple", b"banana")))
        spu = each.spu()
        spu.request(STREAM, stream_fetch("fruit", modules=chain(predefined("only-a"))))
        ((_, frame),) = spu.pushed()
        values = [value for _, _, value in read_streamed(frame).records]
        assert values == [b"apple"] * (1 + gateways.index(each))
    assert status(asked(world, there.sc(), DELETE, delete("SmartModule", "only-a"))) == (
        "only-a",
        0,
    )
    assert not there.broker.smart_modules.all()
    until(world, gateways, lambda: not here.broker.smart_modules.all())
    rubbish = asked(world, sc, CREATE, create_module("rubbish", b"rubbish"))
    name, code = rubbish.text(), rubbish.i16()
    assert (name, code) == ("rubbish", 6002)


def test_an_owner_that_does_not_answer(world: ClusterWorld, gateways: list[FluvioPeer]) -> None:
    other = gateways[1]
    other.council.caller = None
    sc = other.sc()
    reader = asked(world, sc, CREATE, create_module("m", module("filter")))
    assert status(reader, text_of) == ("m", 2)
    # It is not passed on a second time by one who is asked in the owner's place.
    until(world, gateways, lambda: bool(other.council.secret))
    among = name_among(other.council)
    assert among == name_among(gateways[0].council) != name_among(ALONE)
    for name in (among, among[:-1], name_among(ALONE)):
        sc.feed(request(CREATE, create_module("m", module("filter")), 19, 77, name))
        sc.run()
        ((number, answer),) = sc.frames()
        assert number == 77
        # It says that it is not the owner by a number: the one that asks is to go elsewhere.
        assert status(Reader(memoryview(answer), 0, len(answer), 19)) == ("m", NOT_LEADER)
    assert not other.upstreams


def test_rules_are_asked_where_the_client_is(
    world: ClusterWorld, gateways: list[FluvioPeer], tmp_path: Path
) -> None:
    """The owner does not know who that is."""
    (tmp_path / "guarded").mkdir()
    guarded = DiskBroker(tmp_path / "guarded", authorization=True)
    rules = guarded.broker.rules
    anna = Principal("User", "anna")
    rules.add([Rule(Kind.CLUSTER, CLUSTER_NAME, False, anna, "*", Operation.ALTER, True)])
    owner, other = gateways
    for each, who in ((owner, ANONYMOUS), (other, anna)):
        made = partial(guarded_context, each.door.context, Access(rules, who))
        each.door.context = made  # type: ignore[method-assign]
    store = create_module("m", module("filter"))
    assert status(asked(world, other.sc(), CREATE, store)) == ("m", 0)
    assert status(asked(world, owner.sc(), CREATE, store)) == ("m", 13)
    pretended = owner.sc()
    name = name_among(ALONE) + "guessed"
    pretended.feed(request(CREATE, create_module("n", module("filter")), 19, 78, name))
    pretended.run()
    ((_, answer),) = pretended.frames()
    assert status(Reader(memoryview(answer), 0, len(answer), 19)) == ("n", NOT_LEADER)
    assert [each.name for each in owner.broker.smart_modules.all()] == ["m"]
    guarded.close()


def guarded_context(made: Callable[[str], Context], access: Access, listener: str) -> Context:
    return replace(made(listener), access=access)


class Move(NamedTuple):
    """Of the state, away from its owner while a request is on its way there."""

    owner: FluvioPeer
    asked: FluvioPeer
    """Whose client makes the request."""
    newcomer: FluvioPeer
    """Who is the owner next."""
    bystander: FluvioPeer
    """Of the two others the one that is not asked."""


@pytest.fixture(params=["this", "third"])
def move(world: ClusterWorld, known: dict[str, FluvioPeer], request: pytest.FixtureRequest) -> Move:
    """The gateway that was asked becomes the owner, or a third one does."""
    made = [FluvioPeer(world, name, known) for name in ("one", "two", "three")]
    agreed(world, made)
    owner = next(each for each in made if each.council.owned)
    first, second = sorted((each for each in made if each is not owner), key=number)
    asked, bystander = (first, second) if request.param == "this" else (second, first)
    return Move(owner, asked, first, bystander)


def number(gateway: FluvioPeer) -> int:
    assert gateway.council.me is not None
    return gateway.council.me.number


STORE = (CREATE, create_module("m", module("filter")))
DROP = (DELETE, delete("SmartModule", "m"))


def test_who_owns_no_more_sends_nobody_away(world: ClusterWorld, move: Move) -> None:
    """The gateway that is asked hears later of a new owner than the one it takes for the owner."""
    calls = 0

    def taken_for(peer: FluvioPeer) -> FluvioPeer:
        nonlocal calls
        calls += 1
        if calls == 4:
            move.owner.council.close()
        return peer if move.newcomer.council.owned else move.bystander

    move.asked.taken_for = taken_for
    assert status(asked(world, move.asked.sc(), *STORE)) == ("m", 0)
    assert calls >= 4
    assert move.newcomer.council.owned
    assert [kept.name for kept in move.asked.broker.smart_modules.all()] == ["m"]
    until(world, [move.bystander], lambda: len(move.bystander.broker.smart_modules.all()) == 1)


def test_an_owner_that_dies(world: ClusterWorld, move: Move) -> None:
    def taken_for(peer: FluvioPeer) -> FluvioPeer:
        if not move.owner.dead:
            move.owner.die()
        return peer

    move.asked.taken_for = taken_for
    assert status(asked(world, move.asked.sc(), *STORE)) == ("m", 0)
    assert len(move.asked.upstreams) > 2  # those that were refused
    assert move.newcomer.council.owned


def test_an_owner_that_never_answers(world: ClusterWorld, move: Move) -> None:
    """It is frozen; the wire stays."""
    sc = move.asked.sc()
    sc.request(*STORE)
    with patch.object(MemoryUpstream, "pump", lambda _: False):
        world.runtime.run()
        move.owner.dialer.cut()
        until(world, [move.asked, move.bystander], lambda: move.newcomer.council.owned)
    sc.run()
    while not (answers := sc.frames()):
        sc.run()
    ((_, answer),) = answers
    assert status(Reader(memoryview(answer), 0, len(answer), 19)) == ("m", 0)


def test_what_is_asked_twice_is_done_once(world: ClusterWorld, move: Move) -> None:
    sc = move.asked.sc()
    for what in (STORE, DROP):
        move.owner.lost_answers = 2
        assert status(asked(world, sc, *what)) == ("m", 0)
        assert move.owner.lost_answers == 0
    assert not move.asked.broker.smart_modules.all()
    assert status(asked(world, sc, *DROP), text_of) == ("m", 6001)


def test_no_owner_for_long(world: ClusterWorld, move: Move) -> None:
    """Somebody else is taken for the owner, and goes on saying that he is not."""
    move.asked.taken_for = lambda peer: move.bystander
    reader = asked(world, move.asked.sc(), *STORE)
    assert (reader.text(), reader.i16()) == ("m", 2)
    assert "not the owner" in reader.text()
    calls = len(move.asked.upstreams)
    assert calls <= 40_000 // 100
    world.runtime.advance(10_000)
    assert len(move.asked.upstreams) == calls
