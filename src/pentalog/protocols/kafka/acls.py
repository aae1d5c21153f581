"""Rules as Kafka's clients see them: codes of resources, patterns and permissions, and filters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import compress
from typing import Any, Final

from pentalog.broker.security import ANY, Kind, Operation, Principal, Rule
from pentalog.protocols.kafka.authorization import WIRE_OPERATIONS
from pentalog.protocols.kafka.errors import ErrorCode, Refused
from pentalog.protocols.kafka.messages import Call, Steps

_ANY: Final = 1
_ALL: Final = 2
_MATCH: Final = 2
_LITERAL: Final = 3
_PREFIXED: Final = 4
_DENY: Final = 2
_ALLOW: Final = 3
_KINDS: Final[Mapping[Kind, int]] = {
    Kind.TOPIC: 2,
    Kind.GROUP: 3,
    Kind.CLUSTER: 4,
    Kind.TRANSACTION: 5,
    Kind.TOKEN: 6,
    Kind.USER: 7,
}
_KINDS_BY_CODE: Final = {code: kind for kind, code in _KINDS.items()}
_OPERATIONS_BY_CODE: Final[Mapping[int, Operation | None]] = {
    _ALL: None,
    **{code: operation for operation, code in WIRE_OPERATIONS.items()},
}


def check_guarded(call: Call) -> None:
    """Without rules in force there is nothing to list or to change."""
    if not call.access.guarded:
        raise Refused(
            ErrorCode.security_disabled,
            "this broker asks no rules: start it with super_users, or with authorization on",
        )


def rule_of(creation: Any) -> Rule:
    """The rule somebody wants to make; raises `Refused`."""
    kind = _KINDS_BY_CODE.get(creation.resource_type)
    if kind is None:
        raise _invalid(f"resource type {creation.resource_type}; give one of 2 to 7")
    if creation.resource_pattern_type not in (_LITERAL, _PREFIXED):
        raise _invalid(
            f"pattern type {creation.resource_pattern_type}; literal is 3, prefixed is 4"
        )
    if creation.operation not in _OPERATIONS_BY_CODE:
        raise _invalid(f"operation {creation.operation}; give 2 (all) to 15")
    if creation.permission_type not in (_DENY, _ALLOW):
        raise _invalid(f"permission type {creation.permission_type}; 2 denies, 3 allows")
    if not creation.host:
        raise _invalid("no host; give an address, or * for all")
    try:
        principal = Principal.parse(creation.principal)
    except ValueError as flaw:
        raise _invalid(f"principal {flaw}") from None
    return Rule(
        kind,
        creation.resource_name,
        creation.resource_pattern_type == _PREFIXED,
        principal,
        creation.host,
        _OPERATIONS_BY_CODE[creation.operation],
        creation.permission_type == _ALLOW,
    )


def matching(call: Call, rules: Collection[Rule], wanted: Any) -> Steps[list[Rule]]:
    """Find the rules that a filter is about; raises `Refused` if it says nothing we know."""
    if wanted.resource_type_filter != _ANY and wanted.resource_type_filter not in _KINDS_BY_CODE:
        raise _invalid(f"resource type {wanted.resource_type_filter}; give 1 (any) to 7")
    pattern = getattr(wanted, "pattern_type_filter", _LITERAL)
    if pattern not in (_ANY, _MATCH, _LITERAL, _PREFIXED):
        raise _invalid(f"pattern type {pattern}; give 1 (any) to 4")
    if wanted.operation != _ANY and wanted.operation not in _OPERATIONS_BY_CODE:
        raise _invalid(f"operation {wanted.operation}; give 1 (any) to 15")
    if wanted.permission_type not in (_ANY, _DENY, _ALLOW):
        raise _invalid(f"permission type {wanted.permission_type}; give 1 (any) to 3")
    every = list(rules)
    about = yield from call.each(every, lambda rule: _is_about(rule, wanted, pattern))
    return (yield from call.sort(list(compress(every, about)), _order))


def _order(rule: Rule) -> tuple[str, str, bool, str]:
    return rule.kind.value, rule.name, rule.prefixed, str(rule)


def _is_about(rule: Rule, wanted: Any, pattern: int) -> bool:
    return (
        wanted.resource_type_filter in (_ANY, _KINDS[rule.kind])
        and _names(rule, wanted.resource_name_filter, pattern)
        and wanted.host_filter in (None, rule.host)
        and wanted.operation in (_ANY, _operation(rule))
        and wanted.permission_type in (_ANY, _permission(rule))
        and (wanted.principal_filter is None or wanted.principal_filter == str(rule.principal))
    )


def _operation(rule: Rule) -> int:
    return _ALL if rule.operation is None else WIRE_OPERATIONS[rule.operation]


def _permission(rule: Rule) -> int:
    return _ALLOW if rule.allowed else _DENY


def _names(rule: Rule, name: str | None, pattern: int) -> bool:
    if pattern == _LITERAL and rule.prefixed:
        return False
    if pattern == _PREFIXED and not rule.prefixed:
        return False
    if name is None:
        return True
    if pattern == _MATCH:
        return name.startswith(rule.name) if rule.prefixed else rule.name in (name, ANY)
    return rule.name == name


def resource_fields(rule: Rule) -> dict[str, Any]:
    return {
        "resource_type": _KINDS[rule.kind],
        "resource_name": rule.name,
        "pattern_type": _PREFIXED if rule.prefixed else _LITERAL,
    }


def acl_fields(rule: Rule) -> dict[str, Any]:
    return {
        "principal": str(rule.principal),
        "host": rule.host,
        "operation": _operation(rule),
        "permission_type": _permission(rule),
    }


def _invalid(text: str) -> Refused:
    return Refused(ErrorCode.invalid_request, text)
