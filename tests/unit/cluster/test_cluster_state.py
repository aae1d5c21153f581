"""The state that gateways share: what is settled is in the topic, and only the owner writes it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from cluster_world import ClusterWorld, is_produce
from council_world import Gateway, pass_time

from pentalog.broker.logins import PASSWORD, Proof
from pentalog.broker.operation import Quota
from pentalog.broker.security import ANY, Kind, Operation, Principal, Rule
from pentalog.cluster import state_topic, state_writing
from pentalog.cluster.desk import Desk
from pentalog.cluster.refusals import Refused
from pentalog.cluster.state_rows import Change, Tables
from pentalog.cluster.state_topic import AT, Tenure
from pentalog.cluster.steps import Steps, begin
from pentalog.model import batch
from pentalog.model.errors import BrokerError, Overloaded, StorageFailed
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.model.types import Record

PUT = "INSERT OR REPLACE INTO topic_options VALUES ('t', ?, ?)"
OPTIONS = "SELECT name, value FROM topic_options"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ClusterWorld]:
    made = ClusterWorld(tmp_path)
    yield made
    made.close()


def owning(world: ClusterWorld, *gateways: Gateway) -> Tenure:
    """The rows of whoever owns, once somebody does."""
    pass_time(world, list(gateways), lambda: any(each.engine.state.owned for each in gateways))
    (tenure,) = [each.engine.state.tenure for each in gateways if each.engine.state.owned]
    assert tenure is not None
    return tenure


def options(gateway: Gateway) -> dict[str, str]:
    return dict(gateway.engine.state.rows.rows(OPTIONS))


def test_rows_survive_their_owner(world: ClusterWorld) -> None:
    one = Gateway(world, "one")
    tenure = owning(world, one)
    tenure.write(PUT, "a", "1")
    tenure.write(PUT, "b", "2")
    tenure.write("INSERT INTO smart_modules VALUES ('m', ?, ?)", bytes(range(256)) * 999, b"")
    world.until(tenure.settle())
    tenure.write("DELETE FROM topic_options WHERE name = 'a'")
    world.until(tenure.put(PUT, [("c", "3"), ("b", "4")]))
    world.until(one.council.close())
    assert not one.engine.state.owned
    with pytest.raises(Overloaded):
        tenure.check()
    other = Gateway(world, "other")
    assert options(other) == {"b": "4", "c": "3"}, "read before it serves anybody"
    tenure = owning(world, other)
    assert dict(tenure.rows(OPTIONS)) == {"b": "4", "c": "3"}
    assert tenure.rows("SELECT wasm FROM smart_modules") == [(bytes(range(256)) * 999,)]
    assert world.until(tenure.look_up(OPTIONS + " WHERE name = ?", "c")) == [("c", "3")]


def test_others_follow_and_cannot_write(world: ClusterWorld) -> None:
    one, other = gateways = [Gateway(world, "one"), Gateway(world, "other")]
    tenure = owning(world, *gateways)
    follower = other if one.engine.state.owned else one
    told: list[dict[str, str]] = []
    rules: list[None] = []
    follower.engine.state.watch(["topic_options"], lambda: told.append(options(follower)))
    follower.engine.state.watch(["rules"], lambda: rules.append(None))
    pass_time(world, gateways, lambda: follower.council.owner is not None)
    before = len(told)
    world.until(tenure.put(PUT, [("a", "1")]))
    pass_time(world, gateways, lambda: options(follower) == {"a": "1"}, 5_000)
    assert told[before:] == [{"a": "1"}]
    assert len(rules) == before
    with pytest.raises(Overloaded, match="gateway 1 owns the state"):
        Desk(follower.engine.state).check()


def test_nothing_is_settled_before_the_cluster_has_it(world: ClusterWorld) -> None:
    tenure = owning(world, Gateway(world, "one"))
    assert tenure.settle().ready, "nothing is under way"
    refused = 0

    def trouble(frame: bytes) -> str | None:
        nonlocal refused
        refused += is_produce(frame)
        return "before" if is_produce(frame) and refused < 4 else None

    world.trouble = trouble
    settled = tenure.put(PUT, [("a", "1")])
    world.runtime.run()
    assert not settled.ready
    later = tenure.put(PUT, [("b", "2")])
    for step in range(200):
        world.runtime.advance(10)
        assert settled.ready or refused < 4 or step < 190
    assert refused == 5, "what came meanwhile is one more batch"
    assert settled.value is None
    assert later.value is None


def test_a_late_write_of_an_earlier_owner_is_refused(world: ClusterWorld) -> None:
    one, other = gateways = [Gateway(world, "one"), Gateway(world, "other")]
    tenure = owning(world, *gateways)
    owner, heir = (one, other) if one.engine.state.owned else (other, one)
    world.until(tenure.put(PUT, [("a", "1")]))
    owner.dialer.cut()
    waiting = tenure.put(PUT, [("b", "2")])
    pass_time(world, gateways, lambda: waiting.ready)
    with pytest.raises(Overloaded):
        _ = waiting.value
    pass_time(world, gateways, lambda: heir.engine.state.owned)
    owner.dialer.away = False
    writer = tenure._writer
    assert writer is not None
    late = begin(writer.write([Record(b"{}", b'["topic_options","t","b"]')], lambda: True))
    with pytest.raises(Refused) as refused:
        world.until(late)
    assert refused.value.code is ErrorCode.invalid_producer_epoch
    assert options(heir) == {"a": "1"}


def test_an_owner_whose_id_the_cluster_forgot_is_fenced_all_the_same(world: ClusterWorld) -> None:
    one, other = gateways = [Gateway(world, "one"), Gateway(world, "other")]
    tenure = owning(world, *gateways)
    owner, heir = (one, other) if one.engine.state.owned else (other, one)
    world.until(tenure.put(PUT, [("a", "1")]))
    owner.dialer.cut()
    with patch.object(state_writing, "TRANSACTIONAL_ID", "pentalog-state-anew"):
        pass_time(world, gateways, lambda: heir.engine.state.owned)
    owner.dialer.away = False
    assert heir.engine.state.tenure is not None
    assert heir.engine.state.tenure.who is not None
    assert tenure.who is not None
    assert heir.engine.state.tenure.who.producer_id != tenure.who.producer_id
    writer = tenure._writer
    assert writer is not None
    with pytest.raises(Refused) as refused:
        world.until(
            begin(writer.write([Record(b"{}", b'["topic_options","t","b"]')], lambda: True))
        )
    assert refused.value.code is ErrorCode.invalid_producer_epoch
    world.until(heir.engine.state.tenure.put(PUT, [("c", "3")]))
    assert options(heir) == {"a": "1", "c": "3"}


class Lodger:
    """Counts who is in."""

    def __init__(self) -> None:
        self.tenures: list[Tenure] = []
        self.inside = False

    def move_in(self, tenure: Tenure) -> Steps[None]:
        self.tenures.append(tenure)
        self.inside = True
        return
        yield  # type: ignore[unreachable]  # a generator that waits for nothing

    def move_out(self) -> None:
        self.inside = False


def test_a_change_that_is_not_taken_begins_a_new_tenure(world: ClusterWorld) -> None:
    one = Gateway(world, "one")
    lodger = Lodger()
    one.engine.state.tenants.append(lodger)
    tenure = owning(world, one)
    pass_time(world, [one], lambda: lodger.inside)
    world.until(tenure.put(PUT, [("a", "1")]))
    refused = tenure.put("INSERT INTO topic_options VALUES (NULL, NULL, ?)", [("x",)])
    world.runtime.run()
    with pytest.raises(BrokerError):
        _ = refused.value
    assert not lodger.inside
    pass_time(world, [one], lambda: lodger.inside)
    assert lodger.tenures[0] is tenure
    assert lodger.tenures[1] is not tenure
    assert options(one) == {"a": "1"}
    with pytest.raises(Overloaded):
        _ = tenure.settle().value


def test_a_topic_of_a_newer_version_is_refused(world: ClusterWorld) -> None:
    one = Gateway(world, "one")
    with patch.object(state_topic, "SCHEMA", 999):
        owning(world, one)
    with pytest.raises(StorageFailed, match="newer pentalog"):
        Gateway(world, "other")


@pytest.mark.parametrize("seed", range(5))
def test_what_was_settled_is_there_whatever_breaks(world: ClusterWorld, seed: int) -> None:
    chance = random.Random(seed)
    gateways = [Gateway(world, name) for name in ("one", "two")]
    owning(world, *gateways)
    calm = False

    def trouble(frame: bytes) -> str | None:
        if calm:
            return None
        return chance.choice([None] * 12 + ["before", "after"])

    world.trouble = trouble
    settled: dict[str, int] = {}
    sent: dict[str, int] = {}
    count = 0

    def write(tenure: Tenure) -> None:
        nonlocal count
        count += 1
        name, value = chance.choice("abc"), count
        later = tenure.put(PUT, [(name, str(value))])
        sent[name] = value

        def done(outcome: Later[None]) -> None:
            try:
                _ = outcome.value
            except BrokerError:
                return
            settled[name] = max(value, settled.get(name, 0))

        later.then(done)

    for _ in range(120):
        if chance.random() < 0.06:
            chance.choice(gateways).dialer.cut()
        else:
            chance.choice(gateways).dialer.away = False
        for gateway in gateways:
            tenure = gateway.engine.state.tenure
            if tenure is not None and chance.random() < 0.8:
                write(tenure)
        until_ms = world.runtime.time_ms + chance.randrange(10, 1_000)
        pass_time(world, gateways, lambda until_ms=until_ms: world.runtime.time_ms > until_ms)
    calm = True
    for gateway in gateways:
        gateway.dialer.away = False
    tenure = owning(world, *gateways)
    world.until(tenure.settle())
    kept = {name: int(value) for name, value in tenure.rows(OPTIONS)}
    assert settled
    for name, value in settled.items():
        assert value <= kept[name] <= sent[name]
    pass_time(world, gateways, lambda: options(gateways[0]) == options(gateways[1]))


def test_users_and_rules_are_known_to_all(world: ClusterWorld) -> None:
    one, other = gateways = [Gateway(world, "one"), Gateway(world, "other")]
    owning(world, *gateways)
    pass_time(world, gateways, lambda: all(each.council.owner is not None for each in gateways))
    owner, follower = (one, other) if one.engine.state.owned else (other, one)
    rule = Rule(Kind.TOPIC, "t", False, Principal("User", "ann"), ANY, Operation.READ, True)
    with pytest.raises(Overloaded):
        follower.broker.rules.add([rule])
    asked = ("ann", Operation.READ, Kind.TOPIC)
    version = follower.broker.rules.version
    owner.broker.rules.add([rule])
    world.until(owner.broker.rules.settle())
    world.until(owner.broker.users.set_password("ann", "secret"))
    key = owner.broker.users.add_key("ann", "laptop")
    world.until(owner.broker.users.settle())
    pass_time(world, gateways, lambda: follower.broker.users.by_key(key.encode()) is not None)
    assert world.until(follower.broker.users.verify("ann", "secret"))
    assert not world.until(follower.broker.users.verify("ann", "guess"))
    who, operation, kind = asked
    for name, allowed in (("t", True), ("u", False)):
        verdict = follower.broker.rules.judge(Principal("User", who), "", operation, kind, name)
        assert verdict.allowed is allowed
    assert follower.broker.rules.version > version, "answers given before are not good any more"
    client = frozenset({("user", "ann")})
    owner.broker.quotas.change(client, {Quota.WRITTEN: 100.0})
    world.until(owner.broker.quotas.settle())
    pass_time(world, gateways, lambda: follower.broker.quotas.active)
    assert follower.broker.quotas.all() == {client: {Quota.WRITTEN: 100.0}}
    ended: list[str] = []
    follower.broker.users.logins.enter(Proof(PASSWORD, "ann"), lambda: ended.append("ann"))
    owner.broker.users.drop("ann")
    world.until(owner.broker.users.settle())
    pass_time(world, gateways, lambda: ended == ["ann"])


def test_what_commands_write_past_the_owner_is_known_to_it_too(world: ClusterWorld) -> None:
    one, other = gateways = [Gateway(world, "one"), Gateway(world, "other")]
    owning(world, *gateways)
    pass_time(world, gateways, lambda: all(each.council.owner is not None for each in gateways))
    owner = one if one.engine.state.owned else other
    tables = Tables()
    rule = ("topic", "t", 0, "User:ann", "*", "read", 1)
    marks = ", ".join("?" * 7)
    told = tables.change([Change(f"INSERT INTO rules VALUES ({marks})", rule)])
    told += tables.change([Change("INSERT INTO subscription_ids VALUES (0, 99)", ())])
    written = bytearray(batch.build(told, timestamp_ms=1))
    world.disk.broker.log.append(AT, memoryview(written))
    pass_time(world, gateways, lambda: all(len(each.broker.rules.all()) == 1 for each in gateways))
    # What only the owner may write it does not take from others.
    assert owner.engine.state.rows.rows("SELECT next_id FROM subscription_ids") != [(99,)]
    owner.broker.rules.remove(list(owner.broker.rules.all()))
    world.until(owner.broker.rules.settle())
    pass_time(world, gateways, lambda: not any(each.broker.rules.all() for each in gateways))


def test_rows_become_records_and_rows_again() -> None:
    tables, copy = Tables(), Tables()
    records = tables.change(
        [
            Change("INSERT INTO aggregates VALUES ('t', 1, ?, 1, 2, 3)", (b"k\xff",)),
            Change("INSERT INTO quotas VALUES ('o', 'n', 1.5)", ()),
            Change("INSERT INTO subscription_ids VALUES (0, 9)", ()),
            Change("INSERT OR REPLACE INTO subscription_ids VALUES (0, 10)", ()),
        ]
    )
    assert [record.key for record in records] == [
        b'["aggregates","t",1,{"base64":"a/8="}]',
        b'["quotas","o","n"]',
        b'["subscription_ids",0]',
    ]
    assert copy.apply(records) == {"aggregates", "quotas", "subscription_ids"}
    assert copy.rows("SELECT * FROM aggregates") == [("t", 1, b"k\xff", 1, 2, 3)]
    names = ["aggregates", "quotas", "subscription_ids"]
    assert copy.all(names) == tables.all(names) == records
    moved = tables.change(
        [
            Change("UPDATE quotas SET owner = 'p'", ()),
            Change("DELETE FROM aggregates", ()),
        ]
    )
    assert {(record.key, record.value is None) for record in moved} == {
        (b'["quotas","o","n"]', True),
        (b'["quotas","p","n"]', False),
        (b'["aggregates","t",1,{"base64":"a/8="}]', True),
    }
    copy.apply(moved)
    assert copy.all(names) == tables.all(names)
    newer = Record(b'{"owner":"q","name":"n","value":2,"since":3}', b'["quotas","q","n"]')
    assert copy.apply([newer, Record(b"{}", b'["inventions",1]')]) == {"quotas"}
    assert copy.rows("SELECT * FROM quotas WHERE owner = 'q'") == [("q", "n", 2.0)]


def test_the_topic_is_a_compacted_one(world: ClusterWorld) -> None:
    owning(world, Gateway(world, "one"))
    topic = world.disk.broker.topics.get(AT.topic)
    assert topic.partitions == 1
    assert topic.overrides["cleanup.policy"] == "compact"
