"""DescribeClientQuotas: the quotas that match a filter.

v1 is flexible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pentalog.broker.security import Kind, Operation
from pentalog.protocols.kafka.administration import error_fields, repeated
from pentalog.protocols.kafka.authorization import demand
from pentalog.protocols.kafka.errors import REFUSALS, ErrorCode, Refused
from pentalog.protocols.kafka.messages import Api, Call
from pentalog.protocols.kafka.quotas import ENTITIES, NAMES, wire_entity

_EXACT: Final = 0
_DEFAULT: Final = 1
_ANY: Final = 2

_Test: TypeAlias = Callable[[str | None], bool]


def serve(call: Call) -> None:
    try:
        demand(call.access, Operation.DESCRIBE_SETTINGS, Kind.CLUSTER)
        tests = _tests(call.body.components)
    except REFUSALS as refusal:
        call.answer({**error_fields(refusal), "entries": None})
        return
    entries = []
    for owner, limits in call.context.broker.quotas.all().items():
        named = dict(owner)
        if call.body.strict and named.keys() != tests.keys():
            continue
        if all(kind in named and test(named[kind]) for kind, test in tests.items()):
            values = [{"key": NAMES[quota], "value": value} for quota, value in limits.items()]
            entries.append({"entity": wire_entity(owner), "values": values})
    call.answer({**error_fields(None), "entries": entries})


def _tests(components: Any) -> dict[str, _Test]:
    """What is asked of each kind of entity."""
    for kind in repeated(each.entity_type for each in components):
        raise Refused(
            ErrorCode.invalid_request, f"entity type {kind!r} is asked for twice: ask once"
        )
    kinds = {each.entity_type for each in components}
    if "ip" in kinds and len(kinds) > 1:
        raise Refused(
            ErrorCode.invalid_request, "ip stands alone: ask for users and clients separately"
        )
    return {_kind(each.entity_type): _test(each) for each in components}


def _kind(name: str) -> str:
    if not name:
        raise Refused(ErrorCode.invalid_request, "an entity type is empty: give user or client-id")
    if name not in ENTITIES:
        raise Refused(
            ErrorCode.unsupported_version,
            f"there are no quotas for entity type {name[:100]!r}: ask for user, client-id or ip",
        )
    return ENTITIES[name]


def _test(component: Any) -> _Test:
    match = component.match
    if component.match_type == _EXACT and match is not None:
        return lambda name: name == match
    if component.match_type == _DEFAULT and match is None:
        return lambda name: name is None
    if component.match_type == _ANY and match is None:
        return lambda name: True
    raise Refused(
        ErrorCode.invalid_request,
        f"match type {component.match_type} with the name {match!r}: 0 takes a name, 1 (default) "
        "and 2 (any) take none",
    )


API = Api(48, "DescribeClientQuotas", 0, 1, serve)
