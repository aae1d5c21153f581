"""Quotas as Kafka's clients name them: entities and keys."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any, Final

from pentalog.broker.operation import Owner, Quota
from pentalog.protocols.kafka.administration import repeated
from pentalog.protocols.kafka.errors import ErrorCode, Refused
from pentalog.protocols.kafka.messages import Call

QUOTAS: Final = {
    "producer_byte_rate": Quota.WRITTEN,
    "consumer_byte_rate": Quota.READ,
    "request_percentage": Quota.WORK,
    "controller_mutation_rate": Quota.CHANGED,
    "connection_creation_rate": Quota.CONNECTED,
}
NAMES: Final = {quota: name for name, quota in QUOTAS.items()}

ENTITIES: Final = {"user": "user", "client-id": "client", "ip": "address"}
_STRICT_SINCE: Final = {19: 6, 20: 5, 37: 3}
"""Versions of the requests that make and delete partitions whose clients understand a refusal."""
_WIRE_ENTITIES: Final = {kind: name for name, kind in ENTITIES.items()}


def owner_of(entity: Iterable[Any]) -> Owner:
    """Whom the entity of a request means; raises `Refused`."""
    parts = list(entity)
    kinds = [part.entity_type for part in parts[: len(ENTITIES) + 1]]
    if not 0 < len(parts) <= len(ENTITIES) or repeated(kinds):
        raise Refused(
            ErrorCode.invalid_request,
            f"entity {kinds[:10]!r}: give a user, a client-id, one of each, or an ip",
        )
    for kind in kinds:
        if kind not in ENTITIES:
            raise Refused(
                ErrorCode.unsupported_version if kind else ErrorCode.invalid_request,
                f"there are no quotas for entity type {kind[:100]!r}: give user, client-id or ip",
            )
    if "ip" in kinds:
        _check_address(parts)
    return frozenset((ENTITIES[part.entity_type], part.entity_name) for part in parts)


def _check_address(parts: list[Any]) -> None:
    if len(parts) > 1:
        raise Refused(
            ErrorCode.invalid_request, "ip stands alone: give users and clients separately"
        )
    name = parts[0].entity_name
    if name is None:
        return
    try:
        ip_address(name)
    except ValueError:
        raise Refused(
            ErrorCode.invalid_request, f"{name[:100]!r} is no IP address: give one in numbers"
        ) from None


def count_change(call: Call, partitions: int) -> None:
    """Count partitions that are about to be made or deleted, for the client's quota.

    A client over it is refused where its version of the request knows that, and is muted
    otherwise, as in Kafka.
    """
    if call.allowance is None:
        return
    meter = call.allowance.meter
    if call.version >= _STRICT_SINCE[call.key]:
        delay_ms = meter.change_delay_ms
        if delay_ms:
            call.throttle(delay_ms)
            raise Refused(
                ErrorCode.throttling_quota_exceeded,
                f"the quota controller_mutation_rate is used up: try again in {delay_ms} ms",
            )
        meter.changed(partitions)
        return
    meter.changed(partitions)
    delay_ms = meter.change_delay_ms
    if delay_ms:
        call.throttle(delay_ms)


def count_implicit_change(call: Call, partitions: int) -> bool:
    """The same for a request that did not ask for them by name; False if they must not be made."""
    if call.allowance is None:
        return True
    meter = call.allowance.meter
    if meter.change_delay_ms:
        return False
    meter.changed(partitions)
    return True


def wire_entity(owner: Owner) -> list[dict[str, str | None]]:
    return [
        {"entity_type": _WIRE_ENTITIES[kind], "entity_name": name}
        for kind, name in sorted(owner, key=lambda part: part[0], reverse=True)
    ]
