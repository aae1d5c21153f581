"""Read everything there is through Kafka's door and hand it to the judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation import kafka_wire
from tests.simulation.judge import UNPLACED, Being, Outcome, TopicLife
from tests.simulation.kafka_admin import DERIVED
from tests.simulation.kafka_offsets import confirm_offsets
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

_CLIENT = "audit"
_PIECE_BYTES = 1 << 20
DEAD_LETTERS = ".dlq"
"""Names of topics that the broker creates by itself end with this."""


def audit(world: World, *, restart: bool) -> None:
    """Compare everything with the model; nothing may be under way.

    `restart` says that the broker has just been started, so what it serves has been synced.
    """
    world.judge.wall_ms = world.clock.latest_ms
    world.call("audit", _audit(world, restart))
    world.counts["audits"] += 1


async def _audit(world: World, restart: bool) -> None:
    judge = world.judge
    connection = world.kafka.connection(_CLIENT)
    metadata = kafka_wire.answer(kafka_wire.METADATA, await connection.ask(kafka_wire.metadata()))
    listed = {
        topic.name: (topic.topic_id, len(topic.partitions))
        for topic in metadata.topics
        if not (topic.is_internal or topic.name.endswith(DEAD_LETTERS) or topic.name == DERIVED)
    }
    judge.reconcile(listed)
    for life in judge.alive():
        await _audit_topic(world, life, restart)
    await _audit_groups(world)


async def _offsets(world: World, life: TopicLife, when: int, *, committed: bool) -> list[int]:
    frame = kafka_wire.list_offsets(life.name, range(life.partitions), when, committed=committed)
    answer = kafka_wire.answer(
        kafka_wire.LIST_OFFSETS, await world.kafka.connection(_CLIENT).ask(frame)
    )
    found = sorted(answer.topics[0].partitions, key=lambda entry: entry.partition_index)
    for entry in found:
        if entry.error_code:
            world.kafka.refused(f"ListOffsets of {life.label}", entry.error_code)
    return [entry.offset for entry in found]


async def _audit_topic(world: World, life: TopicLife, restart: bool) -> None:
    starts = await _offsets(world, life, kafka_wire.EARLIEST, committed=False)
    ends = await _offsets(world, life, kafka_wire.LATEST, committed=False)
    stables = await _offsets(world, life, kafka_wire.LATEST, committed=True)
    for index in range(life.partitions):
        start, end, stable = starts[index], ends[index], stables[index]
        if min(start, end, stable) < 0:
            continue  # an error that was allowed
        world.judge.check_bounds(life, index, start, end)
        await _read(world, life, index, start, end, committed=False, restart=restart)
        await _read(world, life, index, start, stable, committed=True, restart=restart)
        if stable < end and not is_open(world, life, index):
            # Markers that a crash kept from being written follow in the background.
            await world.wait(5_000)
            stables = await _offsets(world, life, kafka_wire.LATEST, committed=True)
            _check_stable(world, life, index, stables[index], end)
    if not world.had_fault:
        world.judge.finish_reading(life, UNPLACED, {}, restart=restart)


def is_open(world: World, life: TopicLife, index: int) -> bool:
    """May a transaction keep consumers waiting?"""
    return any(
        entry.broken or entry.outcome in (Outcome.OPEN, Outcome.UNKNOWN)
        for entry in world.judge.transactions_in(life, index)
    )


def _check_stable(world: World, life: TopicLife, index: int, stable: int, end: int) -> None:
    """Without an open transaction, consumers must get everything."""
    if stable < end:
        raise Violation(
            "stuck", f"the last stable offset of {life.label}-{index} is {stable}, its end {end}"
        )


async def _read(
    world: World,
    life: TopicLife,
    index: int,
    start: int,
    end: int,
    *,
    committed: bool,
    restart: bool,
) -> None:
    judge = world.judge
    offset = start
    found: dict[int, bytes] = {}
    while offset < end:
        frame = kafka_wire.fetch(
            life.name, index, offset, committed=committed, bytes_max=_PIECE_BYTES
        )
        frame = await world.kafka.connection(_CLIENT).ask(frame)
        answer = kafka_wire.fetched(frame, offset)
        if answer.code:
            allowed = (1,) if life.retention else ()
            world.kafka.refused(f"fetch of {life.label}-{index} at {offset}", answer.code, *allowed)
            return
        if answer.next_offset == offset:
            if answer.start > offset or life.compact or committed:
                break
            judge.observe(life, index, (), start=offset, end=end)
            break
        if committed:
            kept = kafka_wire.committed_only(answer)
            judge.observe_committed(
                life, index, kept, start=offset, end=min(end, answer.next_offset)
            )
        else:
            found |= judge.observe(
                life, index, answer.records, start=offset, end=answer.next_offset
            )
        offset = answer.next_offset
    if not committed:
        judge.finish_reading(life, index, found, restart=restart)


async def _audit_groups(world: World) -> None:
    judge = world.judge
    for entry in world.kafka.committing if judge.synced else ():
        if entry.visible and not entry.broken:
            # Its records were read, whether the client was told or not: so its offsets are real.
            confirm_offsets(entry)
    by_group: dict[str, list[tuple[TopicLife, int]]] = {}
    for group, name, number, index in [key for key in judge.registers if isinstance(key, tuple)]:
        life = judge.current(name)
        if life is not None and life.number == number and life.being is Being.ALIVE:
            by_group.setdefault(group, []).append((life, index))
    for group, places in by_group.items():
        topics: dict[str, list[int]] = {}
        for life, index in places:
            topics.setdefault(life.name, []).append(index)
        fields = {
            "group_id": group,
            "topics": [
                {"name": name, "partition_indexes": tuple(indexes)}
                for name, indexes in topics.items()
            ],
            "require_stable": False,
        }
        answer = await world.kafka.ask(_CLIENT, kafka_wire.OFFSET_FETCH, fields)
        if answer.error_code:
            world.kafka.refused(f"OffsetFetch of {group}", answer.error_code)
            continue
        committed = {
            (topic.name, entry.partition_index): entry.committed_offset
            for topic in answer.topics
            for entry in topic.partitions
        }
        for life, index in places:
            register = judge.registers[(group, life.name, life.number, index)]
            register.observe(committed[life.name, index], register.certain)
