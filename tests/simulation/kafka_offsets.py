"""Clients that ask where the groups of others continue, while those commit."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation import kafka_wire
from tests.simulation.judge import Being, Register, TopicLife

if TYPE_CHECKING:
    from tests.simulation.kafka import KafkaClients


def look_up_offset(clients: KafkaClients, client: str, random: Random) -> Any:
    """Choose a group that commits now, or has committed; None if there is none."""
    judge = clients.world.judge
    alive = {(life.name, life.number): life for life in judge.alive()}
    known = [key for key in judge.registers if isinstance(key, tuple) and key[1:3] in alive]
    if not known:
        return None
    underway = [key for key in known if judge.registers[key].underway]
    group, name, number, index = key = random.choice(underway or known)
    topic = alive[name, number]
    told = f"ask for the offset of {group} in {topic.label}-{index}"
    return told, _look_up(clients, client, group, topic, index, judge.registers[key])


async def _look_up(
    clients: KafkaClients, client: str, group: str, topic: TopicLife, index: int, register: Register
) -> None:
    since = register.certain
    fields = {
        "group_id": group,
        "topics": [{"name": topic.name, "partition_indexes": (index,)}],
        "require_stable": False,
    }
    answer = await clients.ask(client, kafka_wire.OFFSET_FETCH, fields)
    if answer.error_code:
        clients.refused("OffsetFetch", answer.error_code)
        return
    offset = answer.topics[0].partitions[0].committed_offset
    clients.world.tell(f"{register.name} is told to be {offset}")
    if topic.being is Being.ALIVE:
        register.observe(offset, since)
