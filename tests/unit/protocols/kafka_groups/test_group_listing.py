"""DescribeGroups, ListGroups and DeleteGroups, in every version."""

from __future__ import annotations

from typing import Any

import pytest
from group_line import GroupLine, subscription

from pentalog.broker.port import Committed
from pentalog.model.types import Partition

NOT_EMPTY, NO_GROUP = 68, 69
NOT_ASKED = -(1 << 31)


@pytest.fixture
def busy(line: GroupLine) -> GroupLine:
    """`g` has a member, `old` only offsets, `begun` waits for its first generation."""
    line.member()
    line.disk.groups.offsets.commit("old", {Partition("t", 0): Committed(1)})
    line.enter(group_id="begun")
    return line


@pytest.mark.parametrize("version", range(7))
def test_describing(busy: GroupLine, version: int) -> None:
    names = ["g", "old", "begun", "none", ""]
    described = busy.begin(
        15, version, groups=names, include_authorized_operations=version == 3
    ).answer.groups
    assert [group.group_id for group in described] == names
    stable, old, begun, none, nameless = described
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (member,) = stable.members
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"part")
    assert member.client_host.startswith("/")
    assert (old.group_state, old.members) == ("Empty", ())
    assert (begun.group_state, begun.protocol_data) == ("PreparingRebalance", "")
    assert [m.member_assignment for m in begun.members] == [b""]
    assert (none.group_state, none.error_code) == ("Dead", NO_GROUP if version >= 6 else 0)
    if version >= 6:
        assert "none" in none.error_message
    assert nameless.group_state == "Dead"
    if version >= 3:
        asked = stable.authorized_operations != NOT_ASKED
        assert asked == (version == 3)


@pytest.mark.parametrize("version", range(6))
def test_listing(busy: GroupLine, version: int) -> None:
    def listed(**filters: Any) -> dict[str, Any]:
        asked = {"states_filter": [], "types_filter": [], **filters}
        answer = busy.begin(16, version, **asked).answer
        assert answer.error_code == 0
        return {group.group_id: group for group in answer.groups}

    groups = listed()
    assert {name: group.protocol_type for name, group in groups.items()} == {
        "g": "consumer",
        "old": "",
        "begun": "consumer",
    }
    if version >= 4:
        assert {name: group.group_state for name, group in groups.items()} == {
            "g": "Stable",
            "old": "Empty",
            "begun": "PreparingRebalance",
        }
        assert set(listed(states_filter=["stable", "Empty"])) == {"g", "old"}
        assert listed(states_filter=["Nonsense"]) == {}
    if version >= 5:
        assert {group.group_type for group in groups.values()} == {"classic"}
        assert set(listed(types_filter=["Classic"])) == set(groups)
        assert listed(types_filter=["consumer"]) == {}


@pytest.mark.parametrize("version", range(3))
def test_deleting(busy: GroupLine, version: int) -> None:
    results = busy.ask(42, version, groups_names=["g", "old", "none", ""]).results
    assert [(result.group_id, result.error_code) for result in results] == [
        ("g", NOT_EMPTY),
        ("old", 0),
        ("none", NO_GROUP),
        ("", NO_GROUP),
    ]
    assert {view.name for view in busy.disk.groups.all()} == {"g", "begun"}
