"""Groups that change their kind while members are in them.

A leader-planned group becomes broker-planned when the first member of the newer protocol joins,
and leader-planned again when the last one is gone.  Nobody loses a partition by it: what members
held they hold, and a new plan follows at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from pentalog.broker import embedded
from pentalog.broker.members import Member
from pentalog.broker.mixed_group import ConsumerGroup
from pentalog.broker.planning import Classic, Consumer
from pentalog.broker.port import Topics
from pentalog.broker.reconciliation import Standing
from pentalog.broker.roster_rows import RosterRow
from pentalog.broker.rosters import Roster
from pentalog.model.errors import GroupInconsistent, GroupNotFound, TopicNotFound


def upgrade(roster: Roster, group: ConsumerGroup, topics: Topics) -> None:
    """Fill a new broker-planned group with the members of a leader-planned one.

    Raises `GroupNotFound`, as to those who ask no such group exists, if they cannot share one.
    """
    if roster.protocol_type != embedded.PROTOCOL_TYPE:
        raise GroupNotFound(
            f"group {roster.name!r} has members of type {roster.protocol_type!r}, for which the "
            f"broker cannot plan: stop them, or use another group"
        )
    planning = group.planning
    taken: set[tuple[UUID, int]] = set()
    try:
        members = [_consumer(member, roster, topics, taken) for member in roster.members]
    except GroupInconsistent as flaw:
        raise GroupNotFound(
            f"group {roster.name!r} cannot be planned by the broker: {flaw}"
        ) from flaw
    planning.epoch = planning.plan_epoch = roster.generation
    group.restore(members)
    planning.plan = {
        member.member_id: {
            topic: frozenset(indexes) for topic, indexes in member.standing.held.items()
        }
        for member in members
    }
    planning.changed = True


def _consumer(
    member: Member, roster: Roster, topics: Topics, taken: set[tuple[UUID, int]]
) -> Consumer:
    metadata = member.metadata(roster.protocol) or member.proposals[0].metadata
    told = embedded.subscription(metadata)
    held: dict[UUID, Mapping[int, int]] = {}
    for name, indexes in embedded.assigned(member.assignment).items():
        try:
            topic_id = topics.get(name).topic_id
        except TopicNotFound:
            continue
        # A leader may plan badly; here a partition has one reader.
        mine = {index for index in indexes if (topic_id, index) not in taken}
        taken.update((topic_id, index) for index in mine)
        if mine:
            held[topic_id] = dict.fromkeys(sorted(mine), roster.generation)
    return Consumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=told.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=told.topics,
        owner=member.owner,
        classic=Classic(member.session_timeout_ms, member.proposals),
        standing=Standing(roster.generation, roster.generation, held=held),
    )


def downgradable(group: ConsumerGroup) -> bool:
    """Are members left, and all of them of the older protocol?"""
    members = group.planning.members.values()
    return bool(members) and all(member.classic is not None for member in members)


def downgrade(group: ConsumerGroup, roster: Roster) -> None:
    """Fill a new leader-planned group with the members of a broker-planned one."""
    members: list[Member] = []
    shared: list[str] | None = None
    for consumer in group.planning.members.values():
        assert consumer.classic is not None, "only members of the older protocol can go back"
        names = [proposal.name for proposal in consumer.classic.proposals]
        shared = names if shared is None else [name for name in shared if name in names]
        members.append(_member(consumer, consumer.classic, group))
    row = RosterRow(
        group.name,
        # The epoch members are at: with it their heartbeats are understood and they are asked to
        # join again.  A group epoch beyond it has been told to nobody.
        group.planning.plan_epoch,
        embedded.PROTOCOL_TYPE,
        shared[0] if shared else None,
        members[0].member_id,
        group.changed_ms,
    )
    roster.take_over(row, members)


def _member(consumer: Consumer, classic: Classic, group: ConsumerGroup) -> Member:
    member = Member(
        consumer.member_id,
        consumer.instance_id,
        consumer.client_id,
        consumer.client_host,
        classic.session_timeout_ms,
        consumer.rebalance_timeout_ms,
        classic.proposals,
        consumer.owner,
    )
    member.assignment = group.part(consumer, classic)
    return member
