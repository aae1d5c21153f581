"""The rows that leader-planned groups have in the state file: one per group, one per member."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pentalog.broker.members import Member
from pentalog.broker.port import Proposal
from pentalog.broker.state import Row, State


class RosterRow(NamedTuple):
    """A group as it is after its last finished generation."""

    name: str
    generation: int
    protocol_type: str
    protocol: str | None
    leader: str | None
    changed_ms: int


def load(state: State) -> Iterator[tuple[RosterRow, list[Member]]]:
    """Every group with its members."""
    members: dict[str, list[Row]] = defaultdict(list)
    for found in state.rows("SELECT * FROM group_members ORDER BY grp, member_id"):
        members[found[0]].append(found[1:])
    for found in state.rows("SELECT * FROM groups"):
        row = RosterRow(*found)
        yield row, [_member(row.protocol or "", values) for values in members[row.name]]


def save(
    state: State, row: RosterRow, members: Iterable[Member], plan: Mapping[str, bytes]
) -> None:
    """Put a finished generation in the place of the one before."""
    _save_row(state, row)
    state.write("DELETE FROM group_members WHERE grp = ?", row.name)
    for member in members:
        _save_member(state, row, member, plan.get(member.member_id, b""))


def save_replacement(state: State, row: RosterRow, before: str, member: Member) -> None:
    """Put a static member in the place of its former process, which had the id `before`."""
    _save_row(state, row)
    state.write("DELETE FROM group_members WHERE grp = ? AND member_id = ?", row.name, before)
    _save_member(state, row, member, member.assignment)


def erase(state: State, group: str) -> None:
    state.write("DELETE FROM groups WHERE name = ?", group)
    state.write("DELETE FROM group_members WHERE grp = ?", group)


def _save_row(state: State, row: RosterRow) -> None:
    state.write("INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?, ?, ?)", *row)


def _save_member(state: State, row: RosterRow, member: Member, assignment: bytes) -> None:
    topics = member.topics(row.protocol)
    state.write(
        "INSERT INTO group_members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        row.name,
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        member.metadata(row.protocol),
        None if topics is None else json.dumps(sorted(topics)),
        assignment,
    )


def _member(protocol: str, row: Row) -> Member:
    member_id, instance_id, client_id, host, session_ms, rebalance_ms, metadata, *rest = row
    topics, assignment = rest
    known = None if topics is None else frozenset(json.loads(topics))
    proposals = (Proposal(protocol, metadata, known),)
    member = Member(member_id, instance_id, client_id, host, session_ms, rebalance_ms, proposals)
    member.assignment = assignment
    return member
