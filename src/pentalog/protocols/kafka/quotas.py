"""Quotas as Kafka's clients name them: entities and keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pentalog.broker.operation import Owner, Quota
from pentalog.protocols.kafka.administration import repeated
from pentalog.protocols.kafka.errors import ErrorCode, Refused

QUOTAS: Final = {
    "producer_byte_rate": Quota.WRITTEN,
    "consumer_byte_rate": Quota.READ,
    "request_percentage": Quota.WORK,
}
NAMES: Final = {quota: name for name, quota in QUOTAS.items()}
NOT_ENFORCED: Final = ("controller_mutation_rate", "connection_creation_rate")
"""Kafka's other quotas; taking them and not acting on them would be a lie."""

ENTITIES: Final = {"user": "user", "client-id": "client"}
_WIRE_ENTITIES: Final = {kind: name for name, kind in ENTITIES.items()}


def owner_of(entity: Iterable[Any]) -> Owner:
    """Whom the entity of a request means; raises `Refused`."""
    parts = list(entity)
    kinds = [part.entity_type for part in parts]
    if not parts or repeated(kinds):
        raise Refused(
            ErrorCode.invalid_request,
            f"entity {kinds!r}: give a user, a client-id, or one of each",
        )
    for kind in kinds:
        if kind == "ip":
            raise Refused(
                ErrorCode.invalid_request,
                "quotas of addresses (ip) are not enforced by this broker, so they are not taken "
                "either: give a user or a client-id",
            )
        if kind not in ENTITIES:
            raise Refused(
                ErrorCode.unsupported_version if kind else ErrorCode.invalid_request,
                f"there are no quotas for entity type {kind[:100]!r}: give user or client-id",
            )
    return frozenset((ENTITIES[part.entity_type], part.entity_name) for part in parts)


def wire_entity(owner: Owner) -> list[dict[str, str | None]]:
    return [
        {"entity_type": _WIRE_ENTITIES[kind], "entity_name": name}
        for kind, name in sorted(owner, key=lambda part: part[0], reverse=True)
    ]
