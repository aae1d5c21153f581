"""Which rights each request of Fluvio needs, on either port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pentalog.broker import rights
from pentalog.broker.rights import Need
from pentalog.broker.security import CLUSTER_NAME, Access, Kind, Operation
from pentalog.protocols.fluvio import objects

if TYPE_CHECKING:
    from pentalog.protocols.fluvio.door import Objects, Steps
    from pentalog.protocols.fluvio.session import Call

Needs = Callable[[str, str], tuple[Need, ...]]

_ADMINISTRATION: Final = (Need(Operation.ALTER, Kind.CLUSTER),)
"""For all objects that are no topics: they belong to everybody."""


def _create(label: str, name: str) -> tuple[Need, ...]:
    return (rights.create_topic(name),) if label == objects.TOPIC else _ADMINISTRATION


def _delete(label: str, name: str) -> tuple[Need, ...]:
    return (rights.delete_topic(name),) if label == objects.TOPIC else _ADMINISTRATION


def _update(label: str, name: str) -> tuple[Need, ...]:
    return (rights.alter_topic(name),) if label == objects.TOPIC else _ADMINISTRATION


def _listed(label: str, name: str) -> tuple[Need, ...]:
    """What may not be seen is left out."""
    return ()


SC: Final[Mapping[int, Needs]] = {
    1001: _create,
    1002: _delete,
    1003: _listed,
    1004: _listed,
    1006: _update,
}
"""By request, and by the label and the name of an object."""


def _read(topic: str, consumer_id: str) -> tuple[Need, ...]:
    needs = (rights.read_topic(topic),)
    return (*needs, rights.read_group(consumer_id)) if consumer_id else needs


def _forget(topic: str, consumer_id: str) -> tuple[Need, ...]:
    return (Need(Operation.DELETE, Kind.GROUP, consumer_id), rights.read_topic(topic))


SPU: Final[Mapping[int, Needs]] = {
    0: lambda topic, _: (rights.write_topic(topic),),
    1: _read,
    1002: lambda topic, _: (rights.describe_topic(topic),),
    1003: _read,
    1005: lambda topic, _: (),
    1006: _read,
    1007: _forget,
    1008: _listed,
}
"""By request, and by the topic and the consumer id, or none.

An acknowledgement needs nothing: its stream asks before it goes on.
"""


def check(call: Call, table: Mapping[int, Needs], first: str, second: str = "") -> None:
    """Raise `Unauthorized` unless it may be served.  Asked before anything is looked up."""
    access = call.context.access
    if access.guarded:
        rights.check_for(access, table[call.head.key], first, second)


def visible(access: Access, label: str, found: Objects) -> Steps[Objects]:
    """The objects of a kind that this caller may know of; found out in steps.

    The watches of one connection share them while neither objects nor rules change.
    """
    if not access.guarded:
        return found
    version = access.rules.version
    kept = access.remembered.get((_VISIBLE, label))
    if kept is not None and access.version == version and kept[0] is found:
        seen: Objects = kept[1]
        return seen
    if label in (objects.TOPIC, objects.PARTITION):
        chosen: dict[str, Any] = {}
        for number, (name, each) in enumerate(found.items()):
            if access.sees(Kind.TOPIC, name):
                chosen[name] = each
            if not number % _NAMES_PER_STEP:
                yield
        seen = chosen
    else:
        seen = found if access.sees(Kind.CLUSTER, CLUSTER_NAME) else {}
    if access.version == access.rules.version == version:
        access.remembered[_VISIBLE, label] = found, seen
    return seen


_VISIBLE: Final = "fluvio objects"
_NAMES_PER_STEP: Final = 64
