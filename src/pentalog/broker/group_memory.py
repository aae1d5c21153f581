"""What members of groups take in memory: estimated from what they say of themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pentalog.broker.port import Joining, Proposal
from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.config import Config
from pentalog.model.errors import GroupFull, GroupInconsistent

PROTOCOLS_MAX: Final = 100
"""Protocols that a member may propose; clients have one to five."""
RESERVED_BYTES: Final = 1_500
"""An id that was given out and is not used yet, with its timer and its part of a group."""
_MEMBER_BYTES: Final = 4_000
_PROPOSAL_BYTES: Final = 300
_NAME_BYTES: Final = 150
"""A name in a set, besides its characters."""


def limits(config: Config) -> PrincipalLimits:
    return PrincipalLimits(
        "bytes of group members",
        config.group_bytes_max,
        share_percent=config.principal_share_percent,
        setting="group_bytes_max",
        refusal=GroupFull,
    )


def check_joining(joining: Joining, config: Config) -> None:
    """Raise if a member says more of itself than one member may."""
    if len(joining.proposals) > PROTOCOLS_MAX:
        raise GroupInconsistent(
            f"{len(joining.proposals)} protocols; a member may propose {PROTOCOLS_MAX}"
        )
    check_bytes(sum(len(p.name) + len(p.metadata) for p in joining.proposals), config)


def check_bytes(size: int, config: Config) -> None:
    most = config.group_member_bytes_max
    if size > most:
        raise GroupFull(
            f"a member's protocols, topics or assignment of {size} bytes; {most} are accepted: "
            "subscribe to less, or raise group_member_bytes_max"
        )


def proposals_bytes(proposals: Sequence[Proposal]) -> int:
    return sum(
        _PROPOSAL_BYTES + len(p.name) + len(p.metadata) + names_bytes(p.topics or ())
        for p in proposals
    )


def names_bytes(names: Collection[str]) -> int:
    return _NAME_BYTES * len(names) + sum(map(len, names))


def texts_bytes(*texts: str | None) -> int:
    """Of a member's ids and what else names it."""
    return _MEMBER_BYTES + sum(len(text) for text in texts if text)
