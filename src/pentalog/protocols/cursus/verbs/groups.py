"""Groups and their offsets: joining, heartbeats, commits, listings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from pentalog.broker.port import Committed
from pentalog.broker.security import Kind
from pentalog.broker.sourcing import Share
from pentalog.model.errors import (
    BrokerError,
    GroupNotFound,
    StaleGeneration,
    TopicNotFound,
    UnknownMember,
)
from pentalog.model.types import Offset, Partition
from pentalog.protocols.cursus import ownership
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.errors import Refused, Unsettled, quoted, shown
from pentalog.protocols.cursus.messages import truth, whole_number
from pentalog.protocols.cursus.reading import GROUP_DEFAULT, topic_named

ENTRIES_MAX = 10_000


def register(call: Call) -> None:
    """REGISTER_GROUP, and SUBSCRIBE as the document has it."""
    command = call.command
    topic = _topic(call, command.need("topic"))
    group = command.need("group")
    call.broker.sourcing.rosters.register(group, topic)
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
        share, _ = call.broker.sourcing.rosters.join(group, topic, member, generation=generation)
    except BrokerError as refusal:
        raise _explained(call, refusal, topic, group, member, generation or 0) from None
    resumed = "" if generation is None else " resumed=true"
    call.reply(f"OK {_shared(share)}{resumed}")


def sync(call: Call) -> None:
    topic, group, member = _who(call)
    share = _checked(call, topic, group, member, _generation(call))
    call.reply(f"OK {_shared(share)}")


def heartbeat(call: Call) -> None:
    topic, group, member = _who(call)
    share = _checked(call, topic, group, member, _generation(call))
    call.reply(f"OK member={share.member_id} generation={share.generation}")


def leave(call: Call) -> None:
    command = call.command
    topic, group, member = _who(call)
    generation = _generation(call) if "generation" in command.parameters else None
    rosters = call.broker.sourcing.rosters
    try:
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
    group = call.command.need("group")
    rosters = call.broker.sourcing.rosters
    topics = sorted(rosters.topics(group))
    wanted = call.command.get("topic")
    if wanted:
        topics = [topic for topic in topics if topic == wanted]
    if not topics:
        reason = f"group '{group[:260]}' not found"
        raise Refused(f"group_status_failed reason={quoted(reason)}")
    # A group may read several topics here; without a name, the one with most members is told of.
    view = max((rosters.view(group, topic) for topic in topics), key=lambda one: len(one.members))
    members = [
        {
            "member_id": member.member_id,
            "last_heartbeat": _moment(member.seen_ms),
            "assignments": list(member.partitions),
        }
        for member in view.members
    ]
    answer = {
        "status": "OK",
        "group_name": group,
        "topic_name": view.topic,
        "state": "Stable" if members else "Dead",
        "generation": view.generation,
        "member_count": len(members),
        "partition_count": view.partitions,
        "members": members,
        "last_rebalance": _moment(view.changed_ms),
    }
    call.reply(json.dumps(answer, separators=(",", ":")))


def list_groups(call: Call) -> None:
    names = {group for group, _ in call.broker.sourcing.rosters.all()}
    names |= set(call.broker.groups.offsets.groups())
    access = call.session.context.access
    told = sorted(
        name
        for name in names
        if shown(name) == name and "," not in name and access.sees(Kind.GROUP, name)
    )
    call.reply(f"OK count={len(told)} groups={','.join(told)}")


def fetch_offset(call: Call) -> None:
    command = call.command
    topic = command.need("topic")
    command.need("partition")
    group = command.need("group")
    index = command.number("partition", "invalid_partition command=FETCH_OFFSET")
    offsets = call.broker.groups.offsets
    rosters = call.broker.sourcing.rosters
    # Everybody may use the group of those that name none, from the start.
    known = group == GROUP_DEFAULT or rosters.topics(group) or offsets.committed(group)
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
    topic, group = command.need("topic"), command.need("group")
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
    wanted = pairs(call, topic, group)
    _check_owner(share, group, wanted)
    _check_forward(call, group, wanted)
    later = call.broker.groups.offsets.commit(
        group,
        {at: Committed(offset) for at, offset in wanted.items()},
        owner=call.session.context.access.owner,
    )
    call.after(later, lambda _: call.reply(f"OK batched={len(wanted)}"))


def pairs(call: Call, topic: str, group: str) -> dict[Partition, int]:
    """`P0:3,P1:2`, the last loose word; the document leaves its form open: `0:3,1:2` goes too."""
    command = call.command
    text = command.get("offsets") or (command.loose[-1] if command.loose else "")
    entries = [entry for entry in text.split(",") if entry]
    if not entries:
        raise Refused(f"no_valid_offsets command={command.verb}")
    if len(entries) > ENTRIES_MAX:
        raise Refused(f"invalid_batch_commit_entry count={len(entries)} max={ENTRIES_MAX}")
    found: dict[Partition, int] = {}
    for entry in entries:
        told = quoted(entry[:100])
        first, colon, last = entry.partition(":")
        if not colon:
            raise Refused(f"invalid_batch_commit_entry entry={told}")
        if not first.startswith("P") and not command.document:
            raise Refused(f"invalid_partition entry={told}")
        index, offset = whole_number(first.removeprefix("P")), whole_number(last)
        if index is None or index < 0:
            raise Refused(f"invalid_partition entry={told}")
        if offset is None or not 0 <= offset < 1 << 63:
            raise Refused(f"invalid_offset entry={told}")
        at = _partition(call, topic, index)
        if at in found:
            raise Refused(
                f"duplicate_partition partition={index} group={shown(group)} topic={shown(topic)}"
            )
        found[at] = offset
    return found


def member_share(call: Call) -> tuple[str, str, Share]:
    """Topic, group and share of a member that commits; raises refusals."""
    topic, group, member = _who(call)
    return topic, group, _checked(call, topic, group, member, _generation(call))


def check_offsets(call: Call, group: str, share: Share, wanted: dict[Partition, int]) -> None:
    _check_owner(share, group, wanted)
    _check_forward(call, group, wanted)


def _who(call: Call) -> tuple[str, str, str]:
    command = call.command
    topic = _topic(call, command.need("topic"))
    return topic, command.need("group"), command.need("member")


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
        return Refused(
            f"{'REBALANCE_REQUIRED' if document else 'GEN_MISMATCH'} "
            f"current={rosters.view(group, topic).generation} requested={generation} "
            f"group={shown(group)} member={shown(member)}"
        )
    if isinstance(refusal, UnknownMember | GroupNotFound):
        other = ownership.elsewhere(call, group)
        if other is not None:
            return other
    if isinstance(refusal, UnknownMember):
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


def _moment(time_ms: int) -> str:
    when = datetime.fromtimestamp(time_ms / 1000, UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}000000Z"
