"""Groups and their offsets: joining, heartbeats, commits, listings."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any, Final

from pentalog.broker.port import Committed
from pentalog.broker.security import Kind
from pentalog.broker.sourcing import RosterView, Share
from pentalog.model.errors import (
    BrokerError,
    GroupNotFound,
    StaleGeneration,
    TopicNotFound,
    UnknownMember,
)
from pentalog.model.later import Later, all_of
from pentalog.model.types import Offset, Partition
from pentalog.protocols.cursus import ownership
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.errors import Refused, Unsettled, quoted, shown
from pentalog.protocols.cursus.lookups import ENTRIES_MAX
from pentalog.protocols.cursus.matching import WILD
from pentalog.protocols.cursus.messages import group_named, truth, whole_number
from pentalog.protocols.cursus.reading import GROUP_DEFAULT, topic_named
from pentalog.protocols.cursus.verbs.listings import reply_listing

_NO_GENERATION: Final = -1
_STEP: Final = 200
"""Entries of a long request that are served in one step."""


def register(call: Call) -> None:
    """REGISTER_GROUP, and SUBSCRIBE as the document has it."""
    command = call.command
    topic = _topic(call, command.need("topic"))
    group = group_named(command)
    call.broker.sourcing.rosters.register(group, topic, call.session.context.access.owner)
    what = "subscribed" if command.verb == "SUBSCRIBE" else "registered"
    done = f"OK group={shown(group)} topic={topic} {what}=true"
    call.after(call.broker.sourcing.rosters.settle(), lambda _: call.reply(done))


def join(call: Call) -> None:
    command = call.command
    topic, group, member = _who(call)
    generation = None
    if "generation" in command.parameters:
        generation = command.number("generation", f"invalid_generation command={command.verb}")
    try:
        share, _ = call.broker.sourcing.rosters.join(
            group,
            topic,
            member,
            generation=generation,
            owner=call.session.context.access.owner,
        )
    except BrokerError as refusal:
        raise _explained(call, refusal, topic, group, member, generation or 0) from None
    resumed = "" if generation is None else " resumed=true"
    call.reply(f"OK {_shared(share)}{resumed}")


def sync(call: Call) -> None:
    topic, group, member = _who(call)
    share = _checked(call, topic, group, member, _generation(call))
    call.reply(f"OK {_shared(share)}")


def heartbeat(call: Call) -> None:
    topic, group, member = _who(call, present=True)
    share = _checked(call, topic, group, member, _generation(call))
    call.reply(f"OK member={share.member_id} generation={share.generation}")


def leave(call: Call) -> None:
    command = call.command
    topic, group, member = _who(call, present=True)
    generation = _generation(call) if "generation" in command.parameters else None
    rosters = call.broker.sourcing.rosters
    try:
        if not _sees(call, topic):
            # By the id alone, which nobody can guess; the names of others' members are no secret.
            with contextlib.suppress(StaleGeneration):
                rosters.check(group, topic, member, _NO_GENERATION)
        member_id = rosters.leave(group, topic, member, generation=generation)
    except BrokerError as refusal:
        explained = _explained(call, refusal, topic, group, member, generation or 0)
        if (
            not isinstance(refusal, UnknownMember | GroupNotFound)
            or ownership.elsewhere(call, group) is not None
        ):
            raise explained from None
        _leave_elsewhere(call, topic, group, member, explained)
        return
    done = f"OK group={shown(group)} member={member_id} left=true"
    call.after(rosters.settle(), lambda _: call.reply(done))


def _leave_elsewhere(call: Call, topic: str, group: str, member: str, refusal: Exception) -> None:
    """Of a member whose gateway may be dead."""

    def left(known: bool) -> None:
        if not known:
            raise refusal
        call.reply(f"OK group={shown(group)} member={member} left=true")

    call.after(call.broker.sourcing.rosters.leave_elsewhere(group, topic, member), left)


def status(call: Call) -> None:
    call.run(_status(call, group_named(call.command)))


def _status(call: Call, group: str) -> Iterator[None]:
    rosters = call.broker.sourcing.rosters
    access = call.session.context.access
    wanted = call.command.get("topic")
    view: RosterView | None = None
    # A group may read several topics here; without a name, the one with most members is told of.
    for topic in sorted(rosters.topics(group)):
        yield
        if wanted in ("", topic) and access.sees(Kind.TOPIC, topic):
            found = rosters.view(group, topic)
            if view is None or len(found.members) > len(view.members):
                view = found
    if view is None:
        reason = f"group '{group[:260]}' not found"
        raise Refused(f"group_status_failed reason={quoted(reason)}")
    members: list[str] = []
    for start in range(0, len(view.members), _STEP):
        yield
        members += [
            _json(
                {
                    "member_id": member.member_id,
                    "last_heartbeat": _moment(member.seen_ms),
                    "assignments": list(member.partitions),
                }
            )
            for member in view.members[start : start + _STEP]
        ]
    answer = {
        "status": "OK",
        "group_name": group,
        "topic_name": view.topic,
        "state": "Stable" if members else "Dead",
        "generation": view.generation,
        "member_count": len(members),
        "partition_count": view.partitions,
    }
    rest = _json({"last_rebalance": _moment(view.changed_ms)})
    call.reply(f'{_json(answer)[:-1]},"members":[{",".join(members)}],{rest[1:]}')


def list_groups(call: Call) -> None:
    call.run(_list_groups(call))


def _list_groups(call: Call) -> Iterator[None]:
    access = call.session.context.access
    names: set[str] = set()
    every = call.broker.sourcing.rosters.all()
    for start in range(0, len(every), _STEP):
        names.update(group for group, _ in every[start : start + _STEP])
        yield
    with_offsets = call.broker.groups.offsets.names()
    while some := list(islice(with_offsets, _STEP)):
        names.update(some)
        yield
    runs: list[list[str]] = []
    left = iter(names)
    while some := list(islice(left, _STEP)):
        runs.append(
            sorted(
                name
                for name in some
                if shown(name) == name and "," not in name and access.sees(Kind.GROUP, name)
            )
        )
        yield
    told: list[str] = []
    merged = merge(*runs)
    while some := list(islice(merged, _STEP)):
        told += some
        yield
    reply_listing(call, f"OK count={len(told)} groups={','.join(told)}")


def fetch_offset(call: Call) -> None:
    command = call.command
    topic = command.need("topic")
    command.need("partition")
    group = group_named(command)
    index = command.number("partition", "invalid_partition command=FETCH_OFFSET")
    offsets = call.broker.groups.offsets
    rosters = call.broker.sourcing.rosters
    # Everybody may use the group of those that name none, from the start.
    known = group == GROUP_DEFAULT or rosters.topics(group) or offsets.holds(group)
    settled = offsets.settled(group)
    if not known:
        raise Unsettled(settled, lambda _: f"group_not_found group={shown(group)}")
    at = _partition(call, topic, index)
    committed = offsets.committed(group, (at,)).get(at)
    found = 0 if committed is None else committed.offset
    call.after(settled, lambda _: call.reply(f"OK offset={found}"))


def commit(call: Call) -> None:
    """COMMIT_OFFSET of a member, and COMMIT of nobody in particular, as the document has it."""
    command = call.command
    verb = command.verb
    topic, group = command.need("topic"), group_named(command)
    for name in ("partition", "offset"):
        command.need(name)
    index = command.number("partition", f"invalid_partition command={verb}")
    offset = command.number("offset", f"invalid_offset command={verb}")
    at = _partition(call, topic, index)
    if verb == "COMMIT_OFFSET":
        share = _checked(call, topic, group, command.need("member"), _generation(call))
        _check_owner(share, group, (at,))
        if truth(command.get("ownership_only", "false")):
            call.reply("OK validated=true")
            return
    _check_forward(call, group, {at: offset})
    if truth(command.get("validate_only", "false")):
        call.reply("OK validated=true")
        return
    owner = call.session.context.access.owner
    later = call.broker.groups.offsets.commit(group, {at: Committed(offset)}, owner=owner)
    call.after(later, lambda _: call.reply("OK"))


def batch_commit(call: Call) -> None:
    topic, group, member = _who(call)
    share = _checked(call, topic, group, member, _generation(call))
    call.run(_batch_commit(call, topic, group, share))


def _batch_commit(call: Call, topic: str, group: str, share: Share) -> Iterator[None]:
    wanted: dict[Partition, int] = {}
    yield from pairs(call, topic, group, wanted)
    yield from check_offsets(call, group, share, wanted)
    offsets = call.broker.groups.offsets
    settled: list[Later[Any]] = []
    for some in parted(wanted):
        settled.append(offsets.commit(group, some, owner=call.session.context.access.owner))
        yield
    call.after(all_of(settled), lambda _: call.reply(f"OK batched={len(wanted)}"))


def parted(wanted: Mapping[Partition, int]) -> Iterator[dict[Partition, Committed]]:
    """Cut offsets into parts that one turn can store."""
    left = iter(wanted.items())
    while some := {at: Committed(offset) for at, offset in islice(left, _STEP)}:
        yield some


def pairs(call: Call, topic: str, group: str, found: dict[Partition, int]) -> Iterator[None]:
    """`P0:3,P1:2`, the last loose word; the document leaves its form open: `0:3,1:2` goes too."""
    command = call.command
    text = command.get("offsets") or (command.loose[-1] if command.loose else "")
    entries = [entry for entry in text.split(",", ENTRIES_MAX) if entry]
    if not entries:
        raise Refused(f"no_valid_offsets command={command.verb}")
    if len(entries) > ENTRIES_MAX or "," in entries[-1]:
        count = text.count(",") + 1
        raise Refused(f"invalid_batch_commit_entry count={count} max={ENTRIES_MAX}")
    partitions = call.broker.topics.get(topic).partitions
    for number, entry in enumerate(entries):
        if number % _STEP == _STEP - 1:
            yield
        index, offset = _entry(entry, document=command.document)
        if index >= partitions:
            raise Refused(f"partition_not_found partition={index}")
        at = Partition(topic, index)
        if at in found:
            raise Refused(
                f"duplicate_partition partition={index} group={shown(group)} topic={shown(topic)}"
            )
        found[at] = offset


def _entry(entry: str, *, document: bool) -> tuple[int, int]:
    """Partition and offset of one pair."""
    first, colon, last = entry.partition(":")
    if not colon:
        raise Refused(f"invalid_batch_commit_entry entry={quoted(entry[:100])}")
    if not first.startswith("P") and not document:
        raise Refused(f"invalid_partition entry={quoted(entry[:100])}")
    index, offset = whole_number(first.removeprefix("P")), whole_number(last)
    if index is None or index < 0:
        raise Refused(f"invalid_partition entry={quoted(entry[:100])}")
    if offset is None or not 0 <= offset < 1 << 63:
        raise Refused(f"invalid_offset entry={quoted(entry[:100])}")
    return index, offset


def member_share(call: Call) -> tuple[str, str, Share]:
    """Topic, group and share of a member that commits; raises refusals."""
    topic, group, member = _who(call)
    return topic, group, _checked(call, topic, group, member, _generation(call))


def check_offsets(
    call: Call, group: str, share: Share, wanted: dict[Partition, int]
) -> Iterator[None]:
    left = iter(wanted.items())
    while some := dict(islice(left, _STEP)):
        _check_owner(share, group, some)
        _check_forward(call, group, some)
        yield


def _who(call: Call, *, present: bool = False) -> tuple[str, str, str]:
    """Topic, group and member; `present` for members that need no right to the topic."""
    command = call.command
    topic = command.need("topic")
    if not present or _sees(call, topic) or WILD.search(topic):
        topic = _topic(call, topic)
    return topic, group_named(command), command.need("member")


def _sees(call: Call, topic: str) -> bool:
    return call.session.context.access.sees(Kind.TOPIC, topic)


def _topic(call: Call, name: str) -> str:
    if "*" in name or "?" in name:
        return topic_named(call, name)
    try:
        return call.broker.topics.get(name).name
    except TopicNotFound:
        raise Refused(f"topic_not_found topic={shown(name)}") from None


def _generation(call: Call) -> int:
    call.command.need("generation")
    return call.command.number(
        "generation", f"invalid_generation command={call.command.verb}", least=-1
    )


def _checked(call: Call, topic: str, group: str, member: str, generation: int) -> Share:
    try:
        return call.broker.sourcing.rosters.sync(group, topic, member, generation)
    except BrokerError as refusal:
        raise _explained(call, refusal, topic, group, member, generation) from None


def _explained(
    call: Call, refusal: BrokerError, topic: str, group: str, member: str, generation: int
) -> Exception:
    """The refusal in the words clients look for."""
    rosters = call.broker.sourcing.rosters
    if isinstance(refusal, StaleGeneration):
        document = call.command.document and call.command.verb == "HEARTBEAT"
        current = refusal.current
        if current is None:
            current = rosters.view(group, topic).generation
        return Refused(
            f"{'REBALANCE_REQUIRED' if document else 'GEN_MISMATCH'} "
            f"current={current} requested={generation} "
            f"group={shown(group)} member={shown(member)}"
        )
    if isinstance(refusal, UnknownMember | GroupNotFound):
        other = ownership.elsewhere(call, group)
        if other is not None:
            return other
    # Whether a group reads a topic is not told to those who may not know that the topic exists.
    hidden = isinstance(refusal, GroupNotFound) and not _sees(call, topic)
    if hidden or isinstance(refusal, UnknownMember):
        return Refused(f"member_not_found member={shown(member)} group={shown(group)}")
    if isinstance(refusal, GroupNotFound):
        return Refused(f"group_not_found group={shown(group)}")
    return refusal


def _shared(share: Share) -> str:
    partitions = " ".join(map(str, share.partitions))
    return f"generation={share.generation} member={share.member_id} assignments=[{partitions}]"


def _partition(call: Call, topic: str, index: int) -> Partition:
    name = _topic(call, topic)
    if index >= call.broker.topics.get(name).partitions:
        raise Refused(f"partition_not_found partition={index}")
    return Partition(name, index)


def _check_owner(
    share: Share, group: str, wanted: dict[Partition, int] | tuple[Partition, ...]
) -> None:
    for at in wanted:
        if at.index not in share.partitions:
            raise Refused(
                f"NOT_OWNER partition={at.index} member={share.member_id} "
                f"group={shown(group)} generation={share.generation}"
            )


def _check_forward(call: Call, group: str, wanted: dict[Partition, int]) -> None:
    """Offsets only go forward here, and never beyond the end."""
    offsets = call.broker.groups.offsets
    committed = offsets.committed(group, wanted.keys())
    for at, offset in wanted.items():
        before = committed.get(at)
        if before is not None and offset < before.offset:
            text = partial(_regression, group, at, before.offset, offset)
            raise Unsettled(offsets.settled(group), text)
        if offset > call.broker.log.marks(at).end:
            raise Unsettled(call.broker.log.ends((at,)), partial(_beyond, at, offset))


def _regression(group: str, at: Partition, current: Offset, offset: Offset, _: None) -> str:
    reason = (
        f"offset regression group={group} topic={at.topic} partition={at.index} "
        f"current={current} got={offset}"
    )
    return f"offset_regression reason={quoted(reason)}"


def _beyond(at: Partition, offset: Offset, ends: Mapping[Partition, Offset]) -> str:
    return f"invalid_offset partition={at.index} offset={offset} end={ends.get(at, 0)}"


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _moment(time_ms: int) -> str:
    when = datetime.fromtimestamp(time_ms / 1000, UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}000000Z"
