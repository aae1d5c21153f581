"""All groups that leave planning to the broker: found, made, turned into the other kind."""

from __future__ import annotations

import logging
from typing import Final

from pentalog.broker import consumer_rows, conversion
from pentalog.broker.assignors import ASSIGNORS
from pentalog.broker.consumer_group import JOIN, ConsumerCore
from pentalog.broker.groups import LocalGroups, check_name
from pentalog.broker.mixed_group import ConsumerGroup
from pentalog.broker.port import Beat, Beaten, ConsumersView, Topics
from pentalog.broker.rosters import Roster
from pentalog.broker.security import UNGUARDED, Rules
from pentalog.broker.topic_patterns import TopicPatterns
from pentalog.model.errors import BrokerError, GroupNotFound, UnsupportedAssignor
from pentalog.model.later import Later

_log: Final = logging.getLogger(__name__)


class LocalConsumers:
    """Implements `port.Consumers`; the groups themselves are kept with all others."""

    def __init__(self, groups: LocalGroups, topics: Topics, rules: Rules = UNGUARDED) -> None:
        self._groups = groups
        self._topics = topics
        self._rules = rules
        self._patterns = TopicPatterns(topics)
        self._state = groups.surroundings.state

    def open(self) -> None:
        """Read what the last life left, after the other groups were read."""
        members = consumer_rows.members(self._state, self._rules)
        for name, epoch, plan_epoch, plan, sizes, changed_ms in consumer_rows.groups(self._state):
            group = self._new(name)
            group.changed_ms = changed_ms
            consumer_rows.restore(group.planning, (epoch, plan_epoch), plan, sizes)
            group.restore(members.get(name, ()))
            group.planning.changed_members.clear()
            self._groups.put(group)

    def beat(self, group: str, beat: Beat) -> Later[Beaten]:
        check_name(group)
        if beat.assignor is not None and beat.assignor not in ASSIGNORS:
            raise UnsupportedAssignor(
                f"assignor {beat.assignor!r}; accepted are {', '.join(ASSIGNORS)}"
            )
        found = self._groups.found(group)
        if isinstance(found, ConsumerGroup):
            return found.beat(beat)
        if beat.epoch != JOIN:
            raise _not_found(group)
        made = self._new(group)
        try:
            if isinstance(found, Roster) and not found.empty:
                conversion.upgrade(found, made, self._topics)
            answer = made.beat(beat)
        except BrokerError:
            made.close()
            raise
        self._groups.put(made)
        if found is not None and not found.empty:
            _log.info("group %s is planned by the broker from now on", group)
        return answer

    def view(self, group: str) -> ConsumersView:
        found = self._groups.found(group)
        if isinstance(found, ConsumerGroup):
            return found.describe()
        raise _not_found(group)

    def _new(self, name: str) -> ConsumerGroup:
        return ConsumerGroup(
            name,
            self._groups.surroundings,
            self._topics,
            self._lost,
            self._rules,
            self._patterns,
        )

    def _lost(self, group: ConsumerCore) -> None:
        """Members have gone: if only those of the older protocol are left, they plan again."""
        assert isinstance(group, ConsumerGroup)
        if self._groups.found(group.name) is group and conversion.downgradable(group):
            roster = self._groups.new_roster(group.name)
            conversion.downgrade(group, roster)
            self._groups.put(roster)
            _log.info("group %s plans for itself from now on", group.name)


def _not_found(group: str) -> GroupNotFound:
    return GroupNotFound(
        f"there is no group {group!r} that the broker plans: join one with epoch 0"
    )
