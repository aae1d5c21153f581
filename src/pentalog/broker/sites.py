"""The directories of topics: made and removed, those of large topics some per turn of the loop."""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pentalog.broker.port import Topic
from pentalog.model.errors import BrokerError, InvalidPartitions, StorageFailed, StorageFull
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.runtime import Runtime, Turns

if TYPE_CHECKING:
    from pentalog.log.store import Store

_log: Final = logging.getLogger(__name__)

DIRECTORIES_PER_TURN: Final = 4
RETRY_MS: Final = 1_000


@dataclass(slots=True, eq=False)
class _Site:
    """Partitions that are being made for a topic, or for its growth."""

    topic: Topic
    left: deque[int]
    made: list[Partition] = field(default_factory=list)
    ready: Later[None] = field(default_factory=Later)
    given_up: bool = False


class Sites:
    """Knows the store and no topic but those that are under construction or being torn down."""

    def __init__(self, store: Store, runtime: Runtime, settle: Callable[[], Later[None]]) -> None:
        """`settle` says when what was decided so far is on the disk."""
        self._store = store
        self._runtime = runtime
        self._settle = settle
        self._turns = Turns(runtime, 1)
        self._building: dict[str, _Site] = {}
        self._doomed: dict[str, deque[Partition]] = {}
        self._deletions: dict[str, Later[None]] = {}
        """Of topics whose deletion is not on the disk yet."""

    def building(self, name: str) -> Later[None] | None:
        """Ready when what is being made for this topic is there."""
        site = self._building.get(name)
        return None if site is None else site.ready

    def deleting(self, name: str) -> Later[None] | None:
        """Ready when the deletion of the last topic of this name is on the disk, or has failed."""
        return self._deletions.get(name)

    def build(self, topic: Topic, indexes: Sequence[int]) -> Later[None]:
        """Make partitions nobody shall see yet; `finish` makes them the topic's."""
        assert topic.name not in self._building
        self._clear(topic.name)
        self._check_room(topic.name, len(indexes))
        site = self._building[topic.name] = _Site(topic, deque(indexes))
        self._turns.do(lambda: self._build_some(site))
        return site.ready

    def finish(self, topic: Topic, indexes: Sequence[int]) -> Topic:
        """Make what is missing of a topic: all, or none if one cannot be made.

        The topic comes back as its directories know it: with the id they were made with.
        """
        self._clear(topic.name)
        site = self._building.get(topic.name)
        if site is None or len(site.made) + len(site.left) != len(indexes):
            self.give_up(topic.name)
            self._check_room(topic.name, len(indexes))
            self.make(topic, indexes)
            return topic
        known = replace(topic, topic_id=site.topic.topic_id)
        try:
            self.make(known, tuple(site.left))
        except BrokerError:
            self.give_up(topic.name)
            raise
        if known.settings != site.topic.settings:
            for at in site.made:
                self._store.configure(at, known.settings)
        self._end(site)
        return known

    def give_up(self, name: str) -> None:
        """Remove what was made for a topic and is not its own yet."""
        site = self._building.get(name)
        if site is not None:
            for at in site.made:
                self.remove_now(at)
            self._end(site)

    def make(self, topic: Topic, indexes: Sequence[int]) -> None:
        """Make the directories of some partitions: all, or none if one cannot be made."""
        made: list[Partition] = []
        try:
            for index in indexes:
                at = Partition(topic.name, index)
                self._store.create(at, topic.topic_id, topic.settings)
                made.append(at)
        except (BrokerError, OSError) as error:
            for at in made:
                self.remove_now(at)
            if isinstance(error, OSError):
                raise _refusal(topic.name, error) from error
            raise

    def remove(self, topic: Topic) -> None:
        """Remove the partitions of a topic that is no longer found by its name.

        Not before the deletion is on the disk: a topic that a crash brings back has its records.
        But nothing that is under way for it finds them from now on, nor takes them for those of
        the next topic of this name.
        """
        places = [Partition(topic.name, index) for index in range(topic.partitions)]
        for at in places:
            self._store.hide(at)
        doomed = deque(places)
        self._doomed[topic.name] = doomed
        deletion = self._deletions[topic.name] = self._settle()
        deletion.then(lambda later: self._deletion_settled(topic.name, later))
        self._remove_settled(topic.name, doomed)

    def _deletion_settled(self, name: str, deletion: Later[None]) -> None:
        if self._deletions.get(name) is deletion:
            del self._deletions[name]

    def _remove_settled(self, name: str, doomed: deque[Partition]) -> None:
        def settled(later: Later[None]) -> None:
            try:
                _ = later.value
            except BrokerError:
                # The deletion is queued still: it reaches the disk when that takes writes again.
                self._runtime.after(RETRY_MS, lambda: self._remove_settled(name, doomed))
            else:
                # Many topics deleted by one request settle together.
                self._turns.wait(lambda: self._remove_some(name, doomed))

        self._settle().then(settled)

    def remove_now(self, at: Partition) -> None:
        """Delete a directory; one that resists is deleted at the next open, by its topic's id."""
        try:
            self._store.delete(at)
        except OSError as error:
            _log.warning("%s stays on disk until the next start: %s", at, error)

    def _check_room(self, name: str, count: int) -> None:
        promised = sum(len(site.left) for site in self._building.values())
        room = max(0, self._store.room - promised)
        if count > room:
            raise InvalidPartitions(
                f"topic {name[:260]!r}: {count} partitions asked for, and there is room for {room} "
                "more: each needs an open file; delete topics, or let the broker's process open "
                "more files (ulimit -Hn) and restart it"
            )

    def _build_some(self, site: _Site) -> None:
        if site.given_up:
            return
        some = [site.left.popleft() for _ in range(min(DIRECTORIES_PER_TURN, len(site.left)))]
        try:
            self.make(site.topic, some)
        except BrokerError as refusal:
            for at in site.made:
                self.remove_now(at)
            site.given_up = True
            del self._building[site.topic.name]
            site.ready.refuse(refusal)
            return
        site.made += [Partition(site.topic.name, index) for index in some]
        if site.left:
            self._turns.wait(lambda: self._build_some(site))
        else:
            site.ready.fill(None)

    def _end(self, site: _Site) -> None:
        site.given_up = True
        del self._building[site.topic.name]
        if not site.ready.ready:
            site.ready.fill(None)

    def _remove_some(self, name: str, doomed: deque[Partition]) -> None:
        for _ in range(min(DIRECTORIES_PER_TURN, len(doomed))):
            self.remove_now(doomed.popleft())
        if doomed:
            self._turns.wait(lambda: self._remove_some(name, doomed))
        elif self._doomed.get(name) is doomed:
            del self._doomed[name]

    def _clear(self, name: str) -> None:
        """A topic of this name is to be made: nothing of an earlier one may be in its way."""
        doomed = self._doomed.pop(name, None)
        while doomed:
            self.remove_now(doomed.popleft())


def _refusal(name: str, error: OSError) -> StorageFailed:
    topic = name[:260]
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no space left to make topic {topic!r}: free some, then try again")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StorageFailed(f"cannot make topic {topic!r}: {error.strerror}; raise that limit")
    return StorageFailed(f"cannot make topic {topic!r}: {error.strerror}; check the data directory")
