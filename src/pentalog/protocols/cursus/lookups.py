"""What the broker must know before a request of Cursus can be served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from pentalog.broker.port import Broker
from pentalog.kernels import CursusFrame
from pentalog.model.errors import TopicNotFound
from pentalog.model.later import Later
from pentalog.model.types import Partition
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.door import door_of
from pentalog.protocols.cursus.errors import Refused
from pentalog.protocols.cursus.matching import WILD, pattern_of
from pentalog.protocols.cursus.messages import (
    Command,
    encoded,
    key_of,
    transaction_of,
    truth,
    whole_number,
)
from pentalog.protocols.cursus.options import options_of
from pentalog.protocols.cursus.ownership import EVENTS
from pentalog.protocols.cursus.reading import (
    MESSAGES_MAX,
    group_of,
    matching,
    read_bytes_max,
)
from pentalog.protocols.cursus.staging import must_recover, open_view, recover, staging_of

ENTRIES_MAX: Final = 10_000
"""Offsets that one command may commit."""
_INDEX_MAX: Final = (1 << 31) - 1
_OFFSET_MAX: Final = (1 << 63) - 1
_SEQUENCES: Final = 1 << 31
RECOVERED: Final = frozenset({"TXN_PUBLISH"})
"""Commands that may need a lookup with the embedded engine too."""
INTERNAL_START: Final = "__"
"""How the names of topics begin that belong to brokers."""

Lookups: TypeAlias = Iterator[Later[None]]
"""What to wait for, one after the other."""


class Asking:
    """What one connection has asked for; its requests wait meanwhile."""

    __slots__ = ("_awaited", "_hold", "_lookups", "current")

    def __init__(self, broker: Broker, hold: Callable[[], Callable[[], None]]) -> None:
        self.current = broker.knowledge.current
        """Nothing need ever be asked for."""
        self._hold = hold
        self._lookups: Lookups | None = None
        self._awaited: Later[None] | None = None

    @property
    def began(self) -> bool:
        """Whether a request waits that is to come again."""
        return self._lookups is not None

    def must_wait(self, lookups: Callable[[], Lookups]) -> bool:
        """Is what a request needs on its way?  Then it is to come again.

        Asked again, raises what stood against knowing it.
        """
        if self._lookups is None:
            self._lookups = lookups()
        awaited, self._awaited = self._awaited, None
        while True:
            try:
                if awaited is not None:
                    awaited.check()
                awaited = next(self._lookups, None)
            except BaseException:
                self._lookups = None
                raise
            if awaited is None:
                self._lookups = None
                return False
            if not awaited.ready:
                break
        self._awaited = awaited
        release = self._hold()
        awaited.then(lambda _: release())
        return True

    def then(self, run: Callable[[], None]) -> None:
        """Call `run` when what is on its way is there."""
        assert self._awaited is not None, "nothing was asked for"
        self._awaited.then(lambda _: run())


def batch_lookups(broker: Broker, read: CursusFrame) -> Lookups:
    """For a frame of records."""
    if read.flaw:
        return
    topic = read.topic.decode("utf-8", "surrogateescape")
    yield broker.knowledge.topic(topic, read.partition)
    if read.idempotent or options_of(broker.sourcing.options.get(topic)).idempotent:
        at = Partition(topic, read.partition)
        yield from _producing(broker, at, read.producer, read.epoch, read.seq_first)


def command_lookups(call: Call, allowed: Callable[[], bool]) -> Lookups:
    """For a line of text; one that is not as it should be is refused for that.

    What changes something elsewhere is begun for those only who may do what they ask for.
    """
    command, broker = call.command, call.broker
    yield from _search(call)
    look = LOOKUPS.get(command.verb)
    if look is not None:
        yield from look(broker, command)
    begin = BEGINNINGS.get(command.verb)
    if begin is None:
        return
    needed = not broker.knowledge.current or must_recover(call, _epoch(command))
    if needed and allowed():
        yield from begin(call)


def must_search(call: Call) -> bool:
    """Return whether the command names its topic by a pattern that takes long to search for."""
    name, door = call.command.get("topic"), call.door
    if WILD.search(name) is None:
        return False
    names = door.names
    return not door.matches.knows(name, names, door.version)


def _search(call: Call) -> Lookups:
    """Search for the topics of a pattern, in steps; again if the result was dropped meanwhile."""
    name, door, session = call.command.get("topic"), call.door, call.session
    if not must_search(call):
        return
    while True:
        names, searched = door.names, Later[None]()
        pattern_of(name)  # refuses

        def done(error: Exception | None, searched: Later[None] = searched) -> None:
            session.jobs.pop(call, None)
            searched.fill(None)
            if error is not None:
                raise error

        abandon = session.context.slices.run(door.matches.search(name, names, door.version), done)
        if not searched.ready:
            session.jobs[call] = abandon
            yield searched
        if door.matches.knows(name, door.names, None):
            return


def _producing(broker: Broker, at: Partition, producer: bytes, epoch: int, seq: int) -> Lookups:
    if producer and seq:
        yield broker.knowledge.producer(at, producer, epoch, (seq - 1) % _SEQUENCES)


def _publish(broker: Broker, command: Command) -> Lookups:
    topic, index = command.get("topic"), _index(command, -1)
    yield broker.knowledge.topic(topic, max(0, index))
    seq = whole_number(command.get("seqNum", "0")) or 0
    epoch = whole_number(command.get("epoch", "0")) or 0
    options = options_of(broker.sourcing.options.get(topic))
    if not truth(command.get("isIdempotent", "false")) and not options.idempotent:
        return
    producer = encoded(command.get("producerId"))
    at = _chosen(broker, command, topic, index)
    if at is not None:
        yield from _producing(broker, at, producer, epoch, seq)


def _chosen(broker: Broker, command: Command, topic: str, index: int) -> Partition | None:
    """The partition named, or the one that will be chosen."""
    if index < 0:
        try:
            found = broker.topics.get(topic)
        except TopicNotFound:
            return None
        by_key = options_of(broker.sourcing.options.get(topic)).partitioner == "hash_key"
        index = door_of(broker).chosen(found, key_of(command), by_key=by_key)
    return Partition(topic, index)


def _transact(broker: Broker, command: Command) -> Lookups:
    yield broker.knowledge.transaction(transaction_of(command), _epoch(command))


def _transaction_status(broker: Broker, command: Command) -> Lookups:
    yield broker.knowledge.transaction(transaction_of(command))


def _transact_publish(broker: Broker, command: Command) -> Lookups:
    yield from _transact(broker, command)
    yield broker.knowledge.topic(command.get("topic"), max(0, _index(command, -1)))


def _stage(call: Call) -> Lookups:
    """Look up the messages of a transaction and add the partition of this one to it."""
    broker, command = call.broker, call.command
    try:
        staging = staging_of(call)
    except Refused:
        return
    yield from recover(call, staging, _epoch(command))
    tried: set[Partition] = set()
    while not staging.topic.startswith(INTERNAL_START):
        # A partition must not be added to a transaction that is not open.
        view = open_view(call, staging.name, _epoch(command))
        if view is None or staging.key in call.transaction(view.name, view.who.epoch).staged:
            return
        at = _chosen(broker, command, staging.topic, staging.asked)
        if at is None or at in tried:
            return
        tried.add(at)
        yield broker.knowledge.enlisting(staging.name, at)


def _aggregate(broker: Broker, command: Command) -> Lookups:
    yield broker.knowledge.topic(command.get("topic"))


def _transact_offsets(broker: Broker, command: Command) -> Lookups:
    yield from _transact(broker, command)
    yield from _batch_commit(broker, command)


def _topics(broker: Broker, command: Command) -> Lookups:
    yield broker.knowledge.topics()


def _topic(broker: Broker, command: Command) -> Lookups:
    """As it is now: others may have changed it."""
    yield broker.knowledge.topics()
    yield broker.knowledge.topic(command.get("topic"))


def _describe(broker: Broker, command: Command) -> Lookups:
    yield from _topic(broker, command)
    yield broker.knowledge.partitions(command.get("topic"))


def _list_offsets(broker: Broker, command: Command) -> Lookups:
    if "partition" in command.parameters:
        yield broker.knowledge.partitions(command.get("topic"), (_index(command, 0),))
    else:
        yield from _describe(broker, command)


def _named(broker: Broker, command: Command) -> Lookups:
    """The topic of a command, also if it is named by a pattern."""
    topic = command.get("topic")
    if WILD.search(topic):
        yield broker.knowledge.topics()
    for name in _names(broker, command):
        yield broker.knowledge.topic(name)


def _names(broker: Broker, command: Command) -> list[str]:
    """None if a pattern means several: that is refused."""
    topic = command.get("topic")
    if WILD.search(topic) is None:
        return [topic]
    found = matching(broker, topic)
    if len(found) > 1:
        joined = broker.sourcing.rosters.topics(group_of(command))
        found = [name for name in found if name in joined]
    return found if len(found) == 1 else []


def _read(broker: Broker, command: Command) -> Lookups:
    yield from _named(broker, command)
    index = _index(command, 0)
    offset = whole_number(command.get("offset")) if command.get("offset") else None
    committed = (command.get("isolation") or command.get("isolation_level")) != "read_uncommitted"
    for topic in _names(broker, command):
        at = Partition(topic, index)
        if offset is not None and committed and 0 <= offset <= _OFFSET_MAX:
            asked = whole_number(command.get("batch", str(MESSAGES_MAX))) or MESSAGES_MAX
            bytes_max = read_bytes_max(max(1, min(MESSAGES_MAX, asked)))
            yield broker.knowledge.records(at, offset, bytes_max=bytes_max, lately=True)
            continue
        yield broker.knowledge.partitions(topic, (index,))
        if offset is None:
            yield broker.knowledge.offsets(group_of(command), (at,))


def _fetch_offset(broker: Broker, command: Command) -> Lookups:
    yield from _named(broker, command)
    group = command.get("group")
    yield broker.knowledge.offsets(group)
    if group and not broker.groups.offsets.committed(group):
        yield broker.knowledge.roster(group)


def _commit(broker: Broker, command: Command) -> Lookups:
    yield from _named(broker, command)
    yield from _committing(broker, command, {_index(command, 0)})


def _batch_commit(broker: Broker, command: Command) -> Lookups:
    yield from _named(broker, command)
    text = command.get("offsets") or (command.loose[-1] if command.loose else "")
    found: set[int] = set()
    for entry in text.split(",", ENTRIES_MAX):
        index = whole_number(entry.partition(":")[0].removeprefix("P"))
        if index is not None and 0 <= index <= _INDEX_MAX:
            found.add(index)
    yield from _committing(broker, command, found)


def _committing(broker: Broker, command: Command, indexes: set[int]) -> Lookups:
    for topic in _names(broker, command):
        yield broker.knowledge.partitions(topic, indexes)
        at = [Partition(topic, index) for index in indexes]
        yield broker.knowledge.offsets(command.get("group"), at)


def _join(call: Call) -> Lookups:
    broker, command = call.broker, call.command
    if "generation" not in command.parameters:
        for topic in _names(broker, command):
            yield broker.knowledge.joining(command.get("group"), topic, command.get("member"))


def _status(broker: Broker, command: Command) -> Lookups:
    yield broker.knowledge.topics()
    if command.get("group"):
        yield broker.knowledge.roster(command.get("group"))


def _list_groups(broker: Broker, command: Command) -> Lookups:
    yield broker.knowledge.groups()


def _epoch(command: Command) -> int | None:
    return whole_number(command.get("epoch", "0"))


def _index(command: Command, default: int) -> int:
    found = whole_number(command.get("partition"))
    if found is None:
        return default
    return max(-1, min(found, _INDEX_MAX))


LOOKUPS: Final[Mapping[str, Callable[[Broker, Command], Lookups]]] = {
    "CREATE": _topic,
    "DELETE": _topic,
    "LIST": _topics,
    "DESCRIBE": _describe,
    "METADATA": _topic,
    "LIST_OFFSETS": _list_offsets,
    "PUBLISH": _publish,
    "CONSUME": _read,
    "STREAM": _read,
    "COMMIT": _commit,
    "COMMIT_OFFSET": _commit,
    "BATCH_COMMIT": _batch_commit,
    "FETCH_OFFSET": _fetch_offset,
    "BEGIN_TXN": _transact,
    "TXN_PUBLISH": _transact_publish,
    "SEND_OFFSETS_TO_TXN": _transact_offsets,
    "END_TXN": _transact,
    "TXN_STATUS": _transaction_status,
    **dict.fromkeys(EVENTS, _aggregate),
    "SUBSCRIBE": _named,
    "REGISTER_GROUP": _named,
    "JOIN_GROUP": _named,
    "SYNC_GROUP": _named,
    "HEARTBEAT": _named,
    "LEAVE_GROUP": _named,
    "GROUP_STATUS": _status,
    "LIST_GROUPS": _list_groups,
}
"""The others ask for nothing, or are themselves answered by the broker's word."""

BEGINNINGS: Final[Mapping[str, Callable[[Call], Lookups]]] = {
    "JOIN_GROUP": _join,
    "TXN_PUBLISH": _stage,
}
"""What changes something elsewhere before the command itself is served."""
