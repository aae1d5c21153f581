"""Clients that write outside of a transaction: into another one's, or after its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation import kafka_wire

if TYPE_CHECKING:
    from tests.simulation.judge import TopicLife
    from tests.simulation.kafka import KafkaClients


async def intrude(
    clients: KafkaClients, client: str, name: str, topic: TopicLife, index: int, data: bytes
) -> None:
    """Send a transactional batch that belongs to no transaction of `name`; it must be refused.

    The judge is not told of the batch: where it turns up, it was written by no client.
    """
    frame = kafka_wire.produce(topic.name, index, data, -1, name)
    answer = kafka_wire.produced(await clients.connection(client).ask(frame))
    clients.world.tell(f"a batch under the name of {name} is answered with {answer.code}")
    if not answer.code:
        clients.world.violate("impostor", f"{name} wrote outside of its transaction")
