"""What clients share, kind by kind: one takes its share, another one is served, and what is
removed can be used again, also after a restart."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from group_world import GroupWorld
from step_runtime import StepRuntime
from tests.support.blipmq_world import BlipBroker

from pentalog.broker import group_settings, smart_modules
from pentalog.broker.group_settings import SESSION_TIMEOUT_MS
from pentalog.broker.smart_modules import LocalSmartModules
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.transformation import SmartModule
from pentalog.config import Config
from pentalog.model.errors import BrokerError, InvalidConfig, Overloaded

EVE, BOB = "User:eve", "User:bob"
SHARE = "principal_share_percent"


def subscribe(broker: BlipBroker, owner: str, topic: str = "t", charged: str = "") -> int:
    later = broker.subscriptions.open(topic, leased=True, owner=owner, charged=charged)
    broker.runtime.step()
    return later.value


def test_subscriptions(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path, subscriptions_max=6)
    broker.topic("t")
    first, *_ = [subscribe(broker, EVE) for _ in range(3)]
    with pytest.raises(Overloaded, match=f"subscriptions: {EVE} has 3 of the 3.*{SHARE}"):
        subscribe(broker, EVE)
    bobs = subscribe(broker, BOB)
    broker.subscriptions.close(first)
    subscribe(broker, EVE)
    broker.stop()
    again = BlipBroker(tmp_path, subscriptions_max=6)
    with pytest.raises(Overloaded, match=SHARE):
        subscribe(again, EVE)
    assert again.subscriptions.get(bobs) is not None
    subscribe(again, BOB)
    subscribe(again, BOB)
    with pytest.raises(Overloaded, match="6 of 6"):
        subscribe(again, "User:carol")
    again.topics.delete("t")
    again.topic("t")
    subscribe(again, EVE)
    again.stop()


def test_subscriptions_that_are_not_used_are_given_back(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path, subscriptions_max=2, subscription_idle_ms_max=1_000)
    broker.topic("t")
    subscribe(broker, EVE)
    with pytest.raises(Overloaded, match=SHARE):
        subscribe(broker, EVE)
    for _ in range(4):
        broker.runtime.advance(1_000)
    subscribe(broker, EVE)
    broker.stop()


def test_partitions_of_subscriptions(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path, subscriptions_max=4)
    broker.topic("wide", 60)
    number = subscribe(broker, EVE, "wide")
    with pytest.raises(Overloaded, match=f"partitions of subscriptions: {EVE} has 60 of the 100"):
        subscribe(broker, EVE, "wide")
    subscribe(broker, BOB, "wide")
    broker.subscriptions.close(number)
    number = subscribe(broker, EVE, "wide")
    broker.topics.grow("wide", 99)
    found = broker.subscriptions.get(number)
    assert found is not None
    found.stretch()
    broker.topic("narrow")
    subscribe(broker, EVE, "narrow")
    broker.subscriptions.close(number)
    broker.topic("other", 90)
    subscribe(broker, EVE, "other")
    broker.stop()


def test_subscriptions_of_one_principal_at_several_addresses(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path, subscriptions_max=4)
    broker.topic("t")
    anonymous = "User:ANONYMOUS"
    for host in ("10.0.0.1", "10.0.0.2"):
        for _ in range(2):
            subscribe(broker, anonymous, charged=f"{anonymous}@{host}")
    broker.stop()
    again = BlipBroker(tmp_path, subscriptions_max=8)
    for _ in range(4):
        subscribe(again, anonymous, charged=f"{anonymous}@10.0.0.1")
    with pytest.raises(BrokerError):
        subscribe(again, anonymous, charged=f"{anonymous}@10.0.0.2")
    again.stop()


def test_an_adopted_subscription_counts_for_its_new_owner(tmp_path: Path) -> None:
    broker = BlipBroker(tmp_path, subscriptions_max=2)
    broker.topic("t")
    number = subscribe(broker, EVE)
    broker.stop()
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as older:
        older.execute("UPDATE subscriptions SET owner = NULL")
        older.commit()
    again = BlipBroker(tmp_path, subscriptions_max=2)
    found = again.subscriptions.get(number)
    assert found is not None
    found.adopt(BOB)
    with pytest.raises(Overloaded, match=SHARE):
        subscribe(again, BOB)
    subscribe(again, EVE)
    again.stop()


class Modules(LocalSmartModules):
    """Stores programs without compiling them."""

    def store(self, name: str, owner: str, size: int = 10) -> None:
        self._store(SmartModule(name, bytes(size)), owner)


@pytest.fixture
def open_modules(open_state: Callable[[], State], runtime: StepRuntime) -> Callable[[], Modules]:
    def open_one() -> Modules:
        modules = Modules(open_state(), runtime, Config())
        modules.open()
        return modules

    return open_one


def test_stored_modules(
    open_modules: Callable[[], Modules], runtime: StepRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smart_modules, "MODULES_MAX", 4)
    modules = open_modules()
    modules.store("a", EVE)
    modules.store("b", EVE)
    with pytest.raises(Overloaded, match=f"stored SmartModules: {EVE} has 2 of the 2.*{SHARE}"):
        modules.store("c", EVE)
    modules.store("b", EVE, size=20)
    modules.store("c", BOB)
    with pytest.raises(Overloaded, match=SHARE):
        modules.store("c", EVE)
    assert len(modules.get("c").wasm) == 10
    modules.delete("group/a@0.1.0")
    modules.store("d", EVE)
    modules.settle()
    runtime.run()
    again = open_modules()
    assert [module.name for module in again.all()] == ["b", "c", "d"]
    again.store("e", EVE)
    with pytest.raises(Overloaded, match="4 of 4"):
        again.store("f", BOB)


def test_bytes_of_stored_modules(
    open_modules: Callable[[], Modules], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smart_modules, "MODULES_BYTES_MAX", 100)
    modules = open_modules()
    modules.store("a", EVE, 30)
    with pytest.raises(Overloaded, match=f"{EVE} has 30 of the 50"):
        modules.store("b", EVE, 30)
    with pytest.raises(Overloaded, match=f"{EVE} has 0 of the 50"):
        modules.store("a", EVE, 60)
    with pytest.raises(Overloaded, match=f"{EVE} has 30 of the 50"):
        modules.store("b", EVE, 30)
    modules.store("a", EVE, 50)
    modules.store("b", BOB, 50)
    modules.delete("b")
    modules.store("b", BOB, 40)


def test_groups_with_settings(
    open_state: Callable[[], State], runtime: StepRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_settings, "GROUPS_MAX", 4)
    world = GroupWorld(open_state, runtime)
    settings = world.groups.settings

    def give(group: str, owner: str, value: str | None = "50000") -> None:
        world.groups.settings.change(group, {SESSION_TIMEOUT_MS: value}, owner=owner)

    give("a", EVE)
    give("b", EVE)
    with pytest.raises(InvalidConfig, match=f"groups with settings: {EVE} has 2 of the 2"):
        give("c", EVE)
    give("a", EVE, "51000")
    give("c", BOB)
    give("a", BOB, None)
    give("d", EVE)
    assert set(settings.groups()) == {"b", "c", "d"}
    settings.settle()
    runtime.run()
    world = world.again()
    give("e", EVE)
    with pytest.raises(InvalidConfig, match="4 of 4"):
        give("f", BOB)
    give("b", BOB, None)
    give("f", BOB)
