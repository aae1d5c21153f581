"""Which gateway of several is to be asked: for what only their owner keeps, and for groups.

A broker on its own files has no others.
"""

from __future__ import annotations

import hashlib
from typing import Final

from pentalog.broker.port import Broker
from pentalog.model.errors import Overloaded
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.errors import Refused, quoted
from pentalog.protocols.cursus.messages import Command
from pentalog.protocols.cursus.options import wish_of
from pentalog.session import Address

EVENTS: Final = frozenset(
    {"APPEND_STREAM", "STREAM_VERSION", "READ_STREAM", "SAVE_SNAPSHOT", "READ_SNAPSHOT"}
)


def check(call: Call) -> None:
    """Refuse what only the owner can do, and say where it is."""
    broker, command = call.broker, call.command
    if broker.knowledge.current or not _needs_owner(broker, command):
        return
    sourcing = broker.sourcing
    try:
        (sourcing.aggregates if command.verb in EVENTS else sourcing.options).check()
    except Overloaded as refusal:
        owner = broker.council.owner
        place = None if owner is None else owner.address(call.session.context.listener)
        if owner == broker.council.me or place is None:
            # Nobody at the moment, or this one in a moment.
            raise Refused(f"no_raft_leader reason={quoted(str(refusal))}") from None
        raise Refused(f"NOT_LEADER LEADER_IS {Address(*place)}") from None


def leaders(call: Call, partitions: int, *, sourced: bool) -> list[Address]:
    """Where clients shall read and write each partition: the gateways in turns.

    Events are numbered by the owner alone.
    """
    here = call.session.context.advertised("cursus")
    found = _places(call)
    owner = call.broker.council.owner
    place = None if owner is None else owner.address(call.session.context.listener)
    if sourced and found and place is not None:
        return [Address(*place)] * partitions
    if not found:
        return [here] * partitions
    return [found[index % len(found)] for index in range(partitions)]


def coordinator(call: Call, name: str) -> Address:
    """The gateway at which all members of a group, or all of a transaction, shall meet."""
    found = _places(call)
    if not found:
        return call.session.context.advertised("cursus")
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return found[int.from_bytes(digest[:4], "big") % len(found)]


def elsewhere(call: Call, group: str) -> Refused | None:
    """What a stranger is told whose group meets at another gateway."""
    me = call.broker.council.me
    mine = None if me is None else me.address(call.session.context.listener)
    place = coordinator(call, group)
    if mine is None or len(call.broker.council.fleet) < 2 or Address(*mine) == place:
        return None
    return Refused(f"NOT_COORDINATOR host={place.host} port={place.port}")


def _places(call: Call) -> list[Address]:
    listener = call.session.context.listener
    fleet = call.broker.council.fleet
    if len(fleet) < 2:
        return []
    found = [peer.address(listener) for peer in fleet]
    return [Address(*place) for place in found if place is not None]


def _needs_owner(broker: Broker, command: Command) -> bool:
    if command.verb in EVENTS:
        return True
    if command.verb == "DELETE":
        return bool(broker.sourcing.options.get(command.get("topic")))
    if command.verb != "CREATE":
        return False
    wish = wish_of(command)
    wanted = dict(wish.kept)
    if wish.idempotent:
        wanted["idempotent"] = "true"
    if wish.event_sourcing:
        wanted["event_sourcing"] = "true"
    known = broker.sourcing.options.get(wish.topic)
    return any(known.get(name) != value for name, value in wanted.items())
