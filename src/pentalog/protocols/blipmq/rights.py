"""Which rights each frame of BlipMQ needs, by the topic it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pentalog.broker import rights
from pentalog.broker.deliveries import Subscription
from pentalog.broker.rights import Need
from pentalog.broker.security import Access, Kind, Operation
from pentalog.protocols.blipmq.frames import FrameType


def _reading(topic: str) -> tuple[Need, ...]:
    return (rights.read_topic(topic),)


def _nothing(topic: str) -> tuple[Need, ...]:
    return ()


NEEDS: Final[Mapping[FrameType, Callable[[str], tuple[Need, ...]]]] = {
    FrameType.HELLO: _nothing,
    FrameType.AUTH: _nothing,
    FrameType.PUBLISH: lambda topic: (rights.write_topic(topic),),
    FrameType.SUBSCRIBE: _reading,
    FrameType.ACK: _reading,
    FrameType.NACK: _nothing,
    FrameType.PING: _nothing,
    FrameType.PONG: _nothing,
    FrameType.POLL: _reading,
}
"""A topic that is made because it is named must also be allowed to be created."""


def check(access: Access, kind: FrameType, topic: str) -> None:
    """Raise `Unauthorized` unless it may be done.  Asked before anything is looked up."""
    if access.guarded:
        rights.check_for(access, NEEDS[kind], topic)


def owns(access: Access, subscription: Subscription) -> bool:
    """May this client use the subscription as its own?  Administrators may use every one."""
    owner, who = subscription.owner, str(access.who)
    if owner == who:
        return True
    if owner is None:
        if not access.could(Operation.READ, Kind.TOPIC, subscription.topic):
            return False
        subscription.adopt(who)
        return True
    return access.guarded and access.could(Operation.ALTER, Kind.CLUSTER)


def check_creation(access: Access, topic: str) -> None:
    if access.guarded:
        rights.check(access, (rights.create_topic(topic),))
