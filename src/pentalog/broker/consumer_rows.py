"""Broker-planned groups as rows of the state file."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from pentalog.broker.assignors import Share
from pentalog.broker.planning import Classic, Consumer, Planning
from pentalog.broker.port import Proposal
from pentalog.broker.reconciliation import Held, Standing, Step
from pentalog.broker.security import Principal, Rules, Sight
from pentalog.broker.state import State

_PUT_GROUP: Final = "INSERT OR REPLACE INTO consumer_groups VALUES (?, ?, ?, ?, ?, ?)"
_PUT_MEMBER: Final = "INSERT OR REPLACE INTO consumer_members VALUES (?, ?, ?)"


def write(state: State, name: str, planning: Planning, changed_ms: int) -> bool:
    """Queue what has changed; False if nothing has."""
    if not planning.changed and not planning.changed_members:
        return False
    if planning.changed:
        state.write(
            _PUT_GROUP,
            name,
            planning.epoch,
            planning.plan_epoch,
            _text({member_id: _share_out(share) for member_id, share in planning.plan.items()}),
            _text({topic.hex: count for topic, count in planning.sizes.items()}),
            changed_ms,
        )
    for member_id in planning.changed_members:
        member = planning.members.get(member_id)
        if member is None:
            state.write(
                "DELETE FROM consumer_members WHERE grp = ? AND member_id = ?", name, member_id
            )
        else:
            state.write(_PUT_MEMBER, name, member_id, _text(_member_out(member)))
    planning.changed = False
    planning.changed_members.clear()
    return True


def erase(state: State, name: str) -> None:
    state.write("DELETE FROM consumer_groups WHERE name = ?", name)
    state.write("DELETE FROM consumer_members WHERE grp = ?", name)


def groups(state: State) -> Sequence[tuple[str, int, int, str, str, int]]:
    return state.rows(
        "SELECT name, epoch, plan_epoch, plan, sizes, changed_ms FROM consumer_groups ORDER BY name"
    )


def members(state: State, rules: Rules) -> Mapping[str, list[Consumer]]:
    found: dict[str, list[Consumer]] = {}
    for name, member_id, fields in state.rows(
        "SELECT grp, member_id, fields FROM consumer_members ORDER BY grp, member_id"
    ):
        found.setdefault(name, []).append(_member_in(member_id, json.loads(fields), rules))
    return found


def restore(planning: Planning, epochs: tuple[int, int], plan: str, sizes: str) -> None:
    planning.epoch, planning.plan_epoch = epochs
    planning.plan = {name: _share_in(share) for name, share in json.loads(plan).items()}
    planning.sizes = {UUID(hex=topic): count for topic, count in json.loads(sizes).items()}


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _share_out(share: Share) -> dict[str, list[int]]:
    return {topic.hex: sorted(indexes) for topic, indexes in share.items()}


def _share_in(share: Mapping[str, list[int]]) -> Share:
    return {UUID(hex=topic): frozenset(indexes) for topic, indexes in share.items()}


def _held_out(held: Held) -> dict[str, list[tuple[int, int]]]:
    return {topic.hex: sorted(indexes.items()) for topic, indexes in held.items()}


def _held_in(held: Mapping[str, list[tuple[int, int]]]) -> Held:
    return {UUID(hex=topic): dict(indexes) for topic, indexes in held.items()}


def _member_out(member: Consumer) -> dict[str, Any]:
    standing = member.standing
    fields: dict[str, Any] = {
        "instance": member.instance_id,
        "rack": member.rack_id,
        "client": member.client_id,
        "host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "topics": sorted(member.topics),
        "pattern": member.pattern,
        "assignor": member.assignor,
        "epoch": standing.epoch,
        "epoch_before": standing.epoch_before,
        "step": standing.step.value,
        "held": _held_out(standing.held),
        "revoking": _held_out(standing.revoking),
    }
    if member.sight is not None:
        fields["sight"] = (str(member.sight.who), member.sight.host)
    if member.classic is not None:
        fields["session_timeout_ms"] = member.classic.session_timeout_ms
        fields["proposals"] = [
            (proposal.name, base64.b64encode(proposal.metadata).decode())
            for proposal in member.classic.proposals
        ]
    return fields


def _member_in(member_id: str, fields: Mapping[str, Any], rules: Rules) -> Consumer:
    topics = frozenset(fields["topics"])
    classic = None
    if "proposals" in fields:
        proposals = [
            Proposal(name, base64.b64decode(metadata), topics)
            for name, metadata in fields["proposals"]
        ]
        classic = Classic(fields["session_timeout_ms"], tuple(proposals))
    sight = None
    if "sight" in fields and rules.enforced:
        who, host = fields["sight"]
        sight = Sight(Principal.parse(who), host, rules)
    return Consumer(
        member_id=member_id,
        instance_id=fields["instance"],
        rack_id=fields["rack"],
        client_id=fields["client"],
        client_host=fields["host"],
        rebalance_timeout_ms=fields["rebalance_timeout_ms"],
        topics=topics,
        pattern=fields["pattern"],
        sight=sight,
        assignor=fields["assignor"],
        classic=classic,
        standing=Standing(
            fields["epoch"],
            fields["epoch_before"],
            Step(fields["step"]),
            _held_in(fields["held"]),
            _held_in(fields["revoking"]),
        ),
    )
