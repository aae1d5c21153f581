"""Clients that commit offsets, and others that ask for them meanwhile."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation import kafka_wire
from tests.simulation.judge import Being, TopicLife, Transaction
from tests.simulation.register import Register

if TYPE_CHECKING:
    from tests.simulation.kafka import KafkaClients


_UNKNOWN_TOPIC: Final = 3


def commit_offset(clients: KafkaClients, client: str, topic: TopicLife, random: Random) -> Any:
    index = random.randrange(topic.partitions)
    told = f"commit an offset in {topic.label}-{index}"
    return told, _commit(clients, client, topic, index, random)


async def _commit(
    clients: KafkaClients, client: str, topic: TopicLife, index: int, random: Random
) -> None:
    group = f"group of {client}"
    offset = clients.next_number()
    register = clients.register(group, topic, index)
    number = register.attempt(offset)
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": kafka_wire.committed_topics(topic.name, index, offset),
    }
    key = kafka_wire.OFFSET_COMMIT
    reply = clients.connection(client).ask(kafka_wire.request(key, fields))
    if random.random() < 0.3:
        # Another client asks while the commit is on its way to the disk.
        await _look_up(clients, f"{client} beside", group, topic, index, register)
    answer = kafka_wire.answer(key, await reply)
    code = answer.topics[0].partitions[0].error_code
    if code:
        moved = topic.being is not Being.ALIVE
        clients.refused("OffsetCommit", code, *((_UNKNOWN_TOPIC,) if moved else ()))
        return
    register.confirm(number)
    clients.world.tell(f"{register.name} is {offset}")


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
    """Ask for a committed offset, which may change meanwhile."""
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
        if register.certain > since and clients.world.random.random() < 0.3:
            # What was under way has been told: it must be on the disk.
            clients.world.crash_soon(1)


async def stage_offsets(
    clients: KafkaClients,
    client: str,
    identity: dict[str, Any],
    place: tuple[TopicLife, int],
    random: Random,
    staged: list[tuple[Register, int]],
) -> bool:
    """Send offsets of one partition and one or several groups with a transaction."""
    topic, index = place
    groups = [f"group of {client}"]
    if random.random() < 0.4:
        groups += [f"group {number} of {client}" for number in range(random.choice((2, 6)))]
    for group in groups:
        fields = {**identity, "group_id": group}
        answer = await clients.ask(client, kafka_wire.ADD_OFFSETS, fields)
        if answer.error_code:
            clients.refused("AddOffsetsToTxn", answer.error_code, 51)
            return False
        offset = clients.next_number()
        fields |= {
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": kafka_wire.committed_topics(topic.name, index, offset),
        }
        answer = await clients.ask(client, kafka_wire.TXN_OFFSET_COMMIT, fields)
        code = answer.topics[0].partitions[0].error_code
        if code:
            moved = topic.being is not Being.ALIVE
            clients.refused("TxnOffsetCommit", code, *((_UNKNOWN_TOPIC,) if moved else ()))
            return False
        staged.append((clients.register(group, topic, index), offset))
    return True


def confirm_offsets(transaction: Transaction) -> None:
    """Note that the offsets of a committed transaction must be there from now on."""
    for register, number in transaction.offsets:
        register.confirm(number)
