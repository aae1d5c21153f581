"""What one subscription may cost others: steps of a search, and states of deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.blipmq_world import BlipBroker
from tests.unit.broker.test_subscriptions import AT, acknowledge, subscribe, take

from pentalog.broker import subscriptions
from pentalog.broker.deliveries import Searching, Stretch
from pentalog.broker.port import TopicSpec
from pentalog.broker.windows import WINDOW_OFFSETS_MIN
from pentalog.model.later import Later
from pentalog.model.types import Partition


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BlipBroker]:
    broker = BlipBroker(tmp_path)
    yield broker
    broker.stop()


def test_many_partitions_are_searched_in_steps(broker: BlipBroker) -> None:
    """Each search looks at every partition, also if another one is made between its steps."""
    broker.topics.create(TopicSpec(name="wide", partitions=700))
    subscription = subscribe(broker, "wide")
    search = subscription.stretch()
    assert isinstance(search, Searching)
    broker.append(Partition("wide", 3), b"behind the first search")
    steps = 0
    other: Stretch | Later[None] | None = subscription.stretch()
    while isinstance(other, Searching):
        steps += 1
        broker.runtime.step()
        other = subscription.stretch(other.search)
    assert isinstance(other, Stretch), f"nothing was found in {steps} steps"
    found: Stretch | Later[None] | None = search
    while isinstance(found, Searching):
        broker.runtime.step()
        found = subscription.stretch(found.search)
    assert found is None, "partition 3 was looked at before it had a record"
    assert list(take(broker, subscription, 1).values()) == [b"behind the first search"]


def test_states_of_all_subscriptions_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with too many gets a few deliveries at a time; another one is not affected."""
    monkeypatch.setattr(subscriptions, "_STATES_MAX", 2_000)
    broker = BlipBroker(tmp_path)
    broker.topic("t")
    greedy = [subscribe(broker) for _ in range(3)]
    later = broker.subscriptions.open("t", leased=True, owner="User:other")
    broker.runtime.step()
    modest = broker.subscriptions.get(later.value)
    assert modest is not None
    broker.append(AT, *[b"x"] * 1_000)
    first, *others = (take(broker, each, 1_000) for each in greedy)
    assert (len(first), [len(each) for each in others]) == (1_000, [WINDOW_OFFSETS_MIN] * 2)
    assert len(take(broker, modest, 100)) == 100
    assert acknowledge(greedy[0], *first) == []
    assert len(take(broker, greedy[1], 1_000)) == 1_000 - WINDOW_OFFSETS_MIN
    broker.subscriptions.close(greedy[1].subscription_id)
    assert len(take(broker, greedy[2], 1_000)) == 1_000 - WINDOW_OFFSETS_MIN
    broker.stop()
