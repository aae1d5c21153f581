"""What gateways tell each other as members of one consumer group, and what its leader decides.

Both go in the user data of Kafka's own consumer protocol, so that Kafka's tools can read the rest:
everyone subscribes to the state topic, and its one partition is assigned to the owner.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pentalog.broker.council import Peer

STATE_TOPIC: Final = "__pentalog_state"

_VERSION: Final = 0
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")


class Candidate(NamedTuple):
    """A member as it presents itself."""

    peer: Peer
    """Number 0: it has none yet."""
    owned_since: int
    """The generation that made it the owner it still is; -1 if it is not."""


class Agreement(NamedTuple):
    fleet: tuple[Peer, ...]
    owner_id: str
    """Empty: nobody."""


def subscription(candidate: Candidate) -> bytes:
    told = {**_peer_fields(candidate.peer), "owned_since": candidate.owned_since}
    return _wrap((STATE_TOPIC,), None, told)


def read_subscription(data: bytes) -> Candidate | None:
    """None if no gateway of ours wrote it."""
    try:
        told = json.loads(_user_data(data, assigned=False)[1])
        return Candidate(_peer(told), int(told["owned_since"]))
    except (ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None


def agree(candidates: Sequence[Candidate]) -> Agreement:
    """The owner stays the owner, and numbers are kept; what is missing is given out."""
    taken: dict[int, Candidate] = {}
    for each in candidates:
        if each.peer.number > 0:
            taken.setdefault(each.peer.number, each)
    free = iter(set(range(1, len(candidates) + len(taken) + 1)) - taken.keys())
    fleet = [
        each.peer if taken.get(each.peer.number) is each else each.peer._replace(number=next(free))
        for each in sorted(candidates, key=lambda each: each.peer.gateway_id)
    ]
    fleet.sort(key=lambda peer: peer.number)
    if not fleet:
        return Agreement((), "")
    newest = max(candidates, key=lambda each: each.owned_since)
    if newest.owned_since >= 0:
        return Agreement(tuple(fleet), newest.peer.gateway_id)
    # Others forward to the owner's doors, so whoever has the most of them is best.
    best = max(fleet, key=lambda peer: (len(peer.addresses), -peer.number))
    return Agreement(tuple(fleet), best.gateway_id)


def assignment(agreement: Agreement, *, owner: bool) -> bytes:
    told = {
        "gateways": [_peer_fields(peer) for peer in agreement.fleet],
        "owner": agreement.owner_id,
    }
    return _wrap((STATE_TOPIC,) if owner else (), 0, told)


def read_assignment(data: bytes) -> tuple[Agreement, bool]:
    """(what was agreed, is it this member that owns?); raises `ValueError`."""
    try:
        topics, raw = _user_data(data, assigned=True)
        told = json.loads(raw)
        fleet = tuple(_peer(each) for each in told["gateways"])
        return Agreement(fleet, str(told["owner"])), STATE_TOPIC in topics
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as flaw:
        raise ValueError(f"what the gateways agreed on cannot be read: {flaw!r}") from flaw


def _peer_fields(peer: Peer) -> dict[str, Any]:
    return {"id": peer.gateway_id, "number": peer.number, "addresses": dict(peer.addresses)}


def _peer(told: Any) -> Peer:
    addresses = {
        str(name): (str(host), int(port)) for name, (host, port) in told["addresses"].items()
    }
    return Peer(str(told["id"]), int(told["number"]), addresses)


def _wrap(topics: Sequence[str], partition: int | None, told: dict[str, Any]) -> bytes:
    out = bytearray(_I16.pack(_VERSION) + _I32.pack(len(topics)))
    for topic in topics:
        name = topic.encode()
        out += _I16.pack(len(name)) + name
        if partition is not None:
            out += _I32.pack(1) + _I32.pack(partition)
    raw = json.dumps(told, separators=(",", ":"), sort_keys=True).encode()
    return bytes(out + _I32.pack(len(raw)) + raw)


def _user_data(data: bytes, *, assigned: bool) -> tuple[list[str], bytes]:
    """(topics, user data); with `assigned` every topic is followed by its partitions."""
    topics: list[str] = []
    (count,) = _I32.unpack_from(data, _I16.size)
    position = _I16.size + _I32.size
    for _ in range(count):
        (size,) = _I16.unpack_from(data, position)
        position += _I16.size
        topics.append(str(data[position : position + max(size, 0)], "utf-8"))
        position += max(size, 0)
        if assigned:
            (partitions,) = _I32.unpack_from(data, position)
            position += _I32.size * (1 + max(partitions, 0))
    (size,) = _I32.unpack_from(data, position)
    position += _I32.size
    return topics, data[position : position + max(size, 0)]
