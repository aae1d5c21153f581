"""What CONSUME and STREAM share: where to read, from which offset, how far, how much at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from pentalog.broker.port import Broker, Opened
from pentalog.broker.security import Kind, Operation
from pentalog.kernels import CursusPage, cursus_page
from pentalog.model.errors import BrokerError, TopicNotFound
from pentalog.model.later import Later, all_of
from pentalog.model.types import Horizon, Marks, Offset, Partition
from pentalog.protocols.cursus import records
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.door import door_of
from pentalog.protocols.cursus.errors import Refused, quoted, shown
from pentalog.protocols.cursus.frames import REPLY_BYTES_MAX
from pentalog.protocols.cursus.matching import MATCHES_MAX, WILD, pattern_of
from pentalog.protocols.cursus.messages import Command, encoded, whole_number

MESSAGES_MAX: Final = 8192
PAGE_BYTES_MAX: Final = 8 << 20
"""A page ends here unless its first record alone is larger."""
GROUP_DEFAULT: Final = "default-group"

_READ_BYTES_MIN: Final = 64 << 10
_READ_BYTES_PER_MESSAGE: Final = 512
_SKIPPED_MAX: Final = 16
"""Records that no message can hold, stepped over in one turn."""
_LATEST: Final = -1
"""An offset that is not known yet."""
_ISOLATIONS: Final = {"read_committed": Horizon.STABLE, "read_uncommitted": Horizon.DURABLE}


class Reading(NamedTuple):
    at: Partition
    offset: Offset
    horizon: Horizon
    messages_max: int
    head: bytes

    @property
    def bytes_max(self) -> int:
        """How much of the log is looked at for one page."""
        return read_bytes_max(self.messages_max)

    def page(self, opened: Opened, skipped: Callable[[Partition, Offset], None]) -> CursusPage:
        """What the batches hold for this reader; calls `skipped` for what no message can hold."""
        page = self._page(opened, self.offset)
        for _ in range(_SKIPPED_MAX):
            if page.unshown_offset < 0:
                break
            skipped(self.at, page.unshown_offset)
            page = self._page(opened, page.unshown_offset + 1)
        return page

    def _page(self, opened: Opened, offset: Offset) -> CursusPage:
        batches = opened.batches
        return cursus_page(
            batches,
            0,
            len(batches),
            self.head,
            offset=offset,
            messages_max=self.messages_max,
            bytes_max=PAGE_BYTES_MAX,
            frame_bytes_max=REPLY_BYTES_MAX,
        )

    def behind(self, page: CursusPage, opened: Opened) -> Reading:
        """Where to go on after this page."""
        return self._replace(
            offset=opened.next_offset if page.next_offset < 0 else page.next_offset
        )


def read_bytes_max(messages_max: int) -> int:
    return min(PAGE_BYTES_MAX, _READ_BYTES_MIN + _READ_BYTES_PER_MESSAGE * messages_max)


def reading_of(call: Call) -> Later[Reading]:
    """Read a CONSUME or a STREAM; raises refusals.

    One that begins at the end, or at a committed offset, is ready when that is durable.
    """
    reading = _reading_of(call)
    if call.command.get("offset"):
        return Later.now(reading)
    asked: list[Later[Any]] = [call.broker.groups.offsets.settled(group_of(call.command))]
    if reading.offset == _LATEST:
        asked.append(call.broker.log.ends((reading.at,)))
    later: Later[Reading] = Later()

    def settled(done: Later[None]) -> None:
        start = reading.offset
        try:
            done.check()
            if start == _LATEST:
                start = call.broker.log.marks(reading.at).at(reading.horizon)
        except BrokerError as refusal:
            later.refuse(refusal)
        else:
            later.fill(reading._replace(offset=start))

    all_of(asked).then(settled)
    return later


def _reading_of(call: Call) -> Reading:
    command = call.command
    horizon = _horizon(command)
    index = _number(command, "partition", most=(1 << 31) - 1)
    if "generation" in command.parameters:
        _number(command, "generation", least=-1)
    topic = topic_named(call, command.get("topic"))
    at = Partition(topic, index)
    partitions = call.broker.topics.get(topic).partitions
    if index >= partitions:
        reason = f"partition {index} out of range for topic '{topic}' (0-{partitions - 1})"
        raise Refused(f"command_failed reason={quoted(reason)}")
    route = call.door.route(encoded(topic), index)
    access = call.session.context.access
    if not access.guarded and not route.options.readable(access.who):
        raise Refused(f"NOT_AUTHORIZED_FOR_TOPIC operation=read topic={shown(topic)}")
    messages_max = MESSAGES_MAX
    if "batch" in command.parameters:
        messages_max = max(1, min(MESSAGES_MAX, _number(command, "batch")))
    head = records.head(encoded(command.get("topic")), index, document=command.document)
    offset = _start(call, at)
    return Reading(at, offset, horizon, messages_max, head)


def group_of(command: Command) -> str:
    group = command.get("group")
    return GROUP_DEFAULT if group in ("", "-") else group


def topic_named(call: Call, name: str) -> str:
    """The topic, also by a pattern that only one topic matches."""
    if WILD.search(name) is None:
        try:
            return call.broker.topics.get(name).name
        except TopicNotFound:
            reason = f"topic '{name[:260]}' does not exist"
            raise Refused(f"command_failed reason={quoted(reason)}") from None
    access = call.session.context.access
    some = matching(call.broker, name)
    found = [topic for topic in some if access.could(Operation.READ, Kind.TOPIC, topic)]
    if not found and len(some) <= MATCHES_MAX:
        reason = f"no topics match pattern '{name[:260]}'"
        raise Refused(f"command_failed reason={quoted(reason)}")
    if len(found) != 1 or len(some) > MATCHES_MAX:
        # As the original: of several, the one the group has joined.
        joined = list(islice(_joined(call, name), MATCHES_MAX))
        found = joined if len(joined) == 1 else found
    if len(found) != 1:
        count = f"more than {MATCHES_MAX}" if len(some) > MATCHES_MAX else str(len(found))
        reason = f"pattern '{name[:260]}' matches {count} topics; join one or name it"
        raise Refused(f"command_failed reason={quoted(reason)}")
    return found[0]


def _joined(call: Call, name: str) -> Iterator[str]:
    """The topics of the command's group that a pattern means and the client may read."""
    access = call.session.context.access
    pattern = pattern_of(name)
    for topic in call.broker.sourcing.rosters.topics(group_of(call.command)):
        if pattern.match(topic) and access.could(Operation.READ, Kind.TOPIC, topic):
            yield topic


def matching(broker: Broker, name: str) -> list[str]:
    """The topics that a pattern means, in their order; refuses a pattern that costs too much."""
    door = door_of(broker)
    return door.matches.find(name, door.names)


def check_range(reading: Reading, marks: Marks) -> None:
    if reading.offset < marks.start:
        raise Refused(out_of_range(reading, marks))


def out_of_range(reading: Reading, marks: Marks) -> str:
    return (
        f"OFFSET_OUT_OF_RANGE requested={reading.offset} earliest={marks.start} "
        f"latest={marks.at(reading.horizon)}"
    )


def _horizon(command: Command) -> Horizon:
    wanted = command.get("isolation") or command.get("isolation_level") or "read_committed"
    found = _ISOLATIONS.get(wanted)
    if found is None:
        raise Refused(f"invalid_isolation isolation={shown(wanted)}")
    return found


def _number(command: Command, name: str, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
    text = command.get(name)
    found = whole_number(text)
    if found is None or not least <= found <= most:
        if command.document:
            raise Refused(f"invalid_{name} command={command.verb}")
        raise Refused(f"command_failed reason={quoted(f'invalid {name} value: {text[:40]}')}")
    return found


def _start(call: Call, at: Partition) -> Offset:
    """The offset asked for; else where the group goes on; else as `autoOffsetReset` says."""
    command = call.command
    if command.get("offset"):
        return _number(command, "offset")
    reset = command.get("autoOffsetReset", "earliest")
    if reset not in ("earliest", "latest"):
        raise Refused(f"invalid_auto_offset_reset value={shown(reset)}")
    committed = call.broker.groups.offsets.committed(group_of(command), (at,)).get(at)
    if committed is not None:
        return committed.offset
    return call.broker.log.marks(at).start if reset == "earliest" else _LATEST
