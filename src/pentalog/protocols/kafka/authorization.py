"""What each Kafka request asks the rules, and in which code it is refused.

`NEEDS` says of every request what may be asked of it; a request without an entry fails a test.
Handlers ask by `demand`, which raises what the item in question is answered with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from pentalog.broker.security import CLUSTER_NAME, OPERATIONS, Access, Kind, Operation
from pentalog.model.types import Partition
from pentalog.protocols.kafka.door import Door
from pentalog.protocols.kafka.errors import Denied, ErrorCode

Need: TypeAlias = tuple[Operation, Kind]

_REFUSALS: Final[Mapping[Kind, ErrorCode]] = {
    Kind.TOPIC: ErrorCode.topic_authorization_failed,
    Kind.GROUP: ErrorCode.group_authorization_failed,
    Kind.CLUSTER: ErrorCode.cluster_authorization_failed,
    Kind.TRANSACTION: ErrorCode.transactional_id_authorization_failed,
    Kind.TOKEN: ErrorCode.delegation_token_authorization_failed,
    Kind.USER: ErrorCode.delegation_token_authorization_failed,
}
WIRE_OPERATIONS: Final[Mapping[Operation, int]] = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.ADMINISTER: 9,
    Operation.DESCRIBE_SETTINGS: 10,
    Operation.ALTER_SETTINGS: 11,
    Operation.WRITE_IDEMPOTENTLY: 12,
    Operation.CREATE_TOKENS: 13,
    Operation.DESCRIBE_TOKENS: 14,
    Operation.COMMIT_IN_TWO_PHASES: 15,
}

_REMEMBERED_MAX: Final = 10_000
_READ_TOPIC: Final = (Operation.READ, Kind.TOPIC)
_WRITE_TOPIC: Final = (Operation.WRITE, Kind.TOPIC)
_CREATE_TOPIC: Final = (Operation.CREATE, Kind.TOPIC)
_DELETE_TOPIC: Final = (Operation.DELETE, Kind.TOPIC)
_ALTER_TOPIC: Final = (Operation.ALTER, Kind.TOPIC)
_SEE_TOPIC: Final = (Operation.DESCRIBE, Kind.TOPIC)
_READ_GROUP: Final = (Operation.READ, Kind.GROUP)
_DELETE_GROUP: Final = (Operation.DELETE, Kind.GROUP)
_SEE_GROUP: Final = (Operation.DESCRIBE, Kind.GROUP)
_WRITE_TRANSACTION: Final = (Operation.WRITE, Kind.TRANSACTION)
_SEE_TRANSACTION: Final = (Operation.DESCRIBE, Kind.TRANSACTION)
_SEE_CLUSTER: Final = (Operation.DESCRIBE, Kind.CLUSTER)
_ALTER_CLUSTER: Final = (Operation.ALTER, Kind.CLUSTER)
_ADMINISTER: Final = (Operation.ADMINISTER, Kind.CLUSTER)
_SEE_SETTINGS: Final = tuple(
    (Operation.DESCRIBE_SETTINGS, kind) for kind in (Kind.TOPIC, Kind.GROUP, Kind.CLUSTER)
)
_ALTER_SETTINGS: Final = tuple(
    (Operation.ALTER_SETTINGS, kind) for kind in (Kind.TOPIC, Kind.GROUP, Kind.CLUSTER)
)

NEEDS: Final[Mapping[int, tuple[Need, ...]]] = {
    0: (_WRITE_TOPIC, _WRITE_TRANSACTION),
    1: (_READ_TOPIC,),
    2: (_SEE_TOPIC,),
    3: (_SEE_TOPIC, _CREATE_TOPIC),
    8: (_READ_GROUP, _READ_TOPIC),
    9: (_SEE_GROUP, _SEE_TOPIC),
    10: (_SEE_GROUP, _SEE_TRANSACTION),
    11: (_READ_GROUP,),
    12: (_READ_GROUP,),
    13: (_READ_GROUP,),
    14: (_READ_GROUP,),
    15: (_SEE_GROUP,),
    16: (_SEE_CLUSTER, _SEE_GROUP),
    17: (),
    18: (),
    19: (_CREATE_TOPIC, (Operation.CREATE, Kind.CLUSTER)),
    20: (_DELETE_TOPIC,),
    21: (_DELETE_TOPIC,),
    22: (_WRITE_TRANSACTION, (Operation.WRITE_IDEMPOTENTLY, Kind.CLUSTER), _WRITE_TOPIC),
    23: (_SEE_TOPIC,),
    24: (_WRITE_TRANSACTION, _WRITE_TOPIC, _ADMINISTER),
    25: (_WRITE_TRANSACTION, _READ_GROUP),
    26: (_WRITE_TRANSACTION,),
    27: (_ADMINISTER, _ALTER_CLUSTER),
    28: (_WRITE_TRANSACTION, _READ_GROUP, _READ_TOPIC),
    29: (_SEE_CLUSTER,),
    30: (_ALTER_CLUSTER,),
    31: (_ALTER_CLUSTER,),
    32: (*_SEE_SETTINGS, _SEE_CLUSTER),
    33: (*_ALTER_SETTINGS, _ALTER_CLUSTER),
    34: (_ALTER_CLUSTER,),
    35: (_SEE_CLUSTER,),
    36: (),
    37: (_ALTER_TOPIC,),
    38: ((Operation.CREATE_TOKENS, Kind.USER),),
    39: (),
    40: (),
    41: ((Operation.DESCRIBE, Kind.TOKEN), (Operation.DESCRIBE_TOKENS, Kind.USER)),
    42: (_DELETE_GROUP,),
    43: (_ALTER_CLUSTER,),
    44: (*_ALTER_SETTINGS, _ALTER_CLUSTER),
    45: (_ALTER_CLUSTER,),
    46: (_SEE_CLUSTER,),
    47: (_DELETE_GROUP, _READ_TOPIC),
    48: ((Operation.DESCRIBE_SETTINGS, Kind.CLUSTER),),
    49: ((Operation.ALTER_SETTINGS, Kind.CLUSTER),),
    50: (_SEE_CLUSTER,),
    51: (_ALTER_CLUSTER,),
    57: (_ALTER_CLUSTER,),
    60: (_SEE_CLUSTER,),
    61: (_READ_TOPIC,),
    65: (_SEE_TRANSACTION, _SEE_TOPIC),
    66: (_SEE_TRANSACTION,),
    68: (_READ_GROUP, _SEE_TOPIC),
    69: (_SEE_GROUP, _SEE_TOPIC),
    74: ((Operation.DESCRIBE_SETTINGS, Kind.CLUSTER),),
    75: (_SEE_TOPIC,),
}
"""Request to what it may need.  Nothing: to log in, to learn what is served, or only one's own."""


def demand(access: Access, operation: Operation, kind: Kind, name: str = CLUSTER_NAME) -> None:
    """Raise `Denied`, with the code for this kind, unless it may."""
    if not access.allows(operation, kind, name):
        raise Denied(
            _REFUSALS[kind],
            f"{access.who} may not {operation.value} {kind.value} {name[:260]!r}: "
            "ask an administrator for a rule that allows it",
        )


def demand_source(access: Access, settings: Mapping[str, str | None]) -> None:
    """Whoever derives a topic from another shows its records: he must be allowed to read them."""
    source = settings.get("derived.from")
    if source:
        demand(access, Operation.READ, Kind.TOPIC, source)


def refusal_of(access: Access, operation: Operation, kind: Kind, name: str = CLUSTER_NAME) -> int:
    """The code of the refusal; 0 if it may."""
    return 0 if access.allows(operation, kind, name) else int(_REFUSALS[kind])


def find(
    access: Access, door: Door, topic: bytes, index: int, operation: Operation, *, by_id: bool
) -> Partition:
    """The partition, if it may; whoever may not is not told whether it is there."""
    if not access.guarded:
        return door.routes.find(topic, index, by_id=by_id)
    question = (operation, by_id, topic, index)
    kept: tuple[int, Partition] | None = access.remembered.get(question)
    if kept is not None and access.version == access.rules.version:
        version, at = kept
        if version == door.topics.version:
            return at
    if not by_id:
        demand(access, operation, Kind.TOPIC, str(topic, "utf-8", "replace"))
    at = door.routes.find(topic, index, by_id=by_id)
    if by_id:
        demand(access, operation, Kind.TOPIC, at.topic)
    if len(access.remembered) >= _REMEMBERED_MAX:
        access.remembered.clear()
    access.remembered[question] = (door.topics.version, at)
    return at


def operations_on(access: Access, kind: Kind, name: str = CLUSTER_NAME) -> int:
    """The bits of what it may do with a resource."""
    return sum(
        1 << WIRE_OPERATIONS[operation]
        for operation in OPERATIONS[kind]
        if operation is not Operation.COMMIT_IN_TWO_PHASES and access.could(operation, kind, name)
    )


def cluster_operations(access: Access) -> int:
    """The bits of what it may do with the cluster; none unless it may see it."""
    if not access.could(Operation.DESCRIBE, Kind.CLUSTER):
        return 0
    return operations_on(access, Kind.CLUSTER)
