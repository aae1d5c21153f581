"""The rule book on the local disk: who may do what, decided as Apache Kafka's own rules are.

A denial wins over every permission.  Permission to read, write, delete or alter includes
permission to describe; permission to alter settings includes permission to describe them.  A
denial includes nothing but itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from pentalog.broker.needs import Rows
from pentalog.broker.security import (
    ANY,
    CLUSTER_NAME,
    OPERATIONS,
    Kind,
    Operation,
    Principal,
    Rule,
    Verdict,
)
from pentalog.broker.state import Row
from pentalog.model.errors import InvalidConfig
from pentalog.model.later import Later

_IMPLIED_BY: Final[dict[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_SETTINGS: frozenset({Operation.ALTER_SETTINGS}),
}
_NAME_BYTES_MAX: Final = 1024
_COLUMNS: Final = "kind, name, prefixed, principal, host, operation, allowed"


class LocalRules:
    def __init__(
        self,
        state: Rows,
        *,
        enforced: bool,
        super_users: Collection[Principal] = (),
        everyone_without_rule: bool = False,
    ) -> None:
        """`everyone_without_rule`: a resource that no rule names is open to all."""
        self._state = state
        self._super_users = frozenset(super_users)
        self._everyone_without_rule = everyone_without_rule
        self._rules: set[Rule] = set()
        self._exact: dict[tuple[Kind, str], set[Rule]] = {}
        self._prefixed: dict[Kind, dict[str, set[Rule]]] = {}
        self.enforced = enforced
        self.version = 1

    def open(self) -> None:
        for row in self._state.rows(f"SELECT {_COLUMNS} FROM rules"):
            self._enter(_rule_of(row))

    def judge(
        self, who: Principal, host: str, operation: Operation, kind: Kind, name: str
    ) -> Verdict:
        if who in self._super_users:
            return Verdict(True, "super user")
        permission: Rule | None = None
        named = False
        for rule in self._about(kind, name):
            named = True
            if not _concerns(rule, who, host):
                continue
            if not rule.allowed:
                if rule.operation in (None, operation):
                    return Verdict(False, str(rule))
            elif permission is None and _permits(rule, operation):
                permission = rule
        if permission is not None:
            return Verdict(True, str(permission))
        if not named and self._everyone_without_rule:
            return Verdict(True, "no rule names it")
        return Verdict(False, "no rule allows it")

    def judge_any(self, who: Principal, host: str, operation: Operation, kind: Kind) -> bool:
        if who in self._super_users:
            return True
        permissions: list[Rule] = []
        denials: list[Rule] = []
        for rule in self._rules:
            if rule.kind is not kind or not _concerns(rule, who, host):
                continue
            if rule.allowed:
                if _permits(rule, operation):
                    permissions.append(rule)
            elif rule.operation in (None, operation):
                denials.append(rule)
        if any(_covers_all(denial) for denial in denials):
            return False
        if any(not _covered(rule, denials) for rule in permissions):
            return True
        return self._everyone_without_rule

    def all(self) -> Collection[Rule]:
        return tuple(self._rules)

    def add(self, rules: Sequence[Rule]) -> None:
        for rule in rules:
            _check(rule)
        self._state.check()
        marks = ", ".join("?" * 7)
        for rule in rules:
            if rule not in self._rules:
                self._enter(rule)
                self._state.write(
                    f"INSERT OR IGNORE INTO rules ({_COLUMNS}) VALUES ({marks})", *_row_of(rule)
                )
        self.version += 1

    def remove(self, rules: Sequence[Rule]) -> None:
        self._state.check()
        same = " AND ".join(f"{column} = ?" for column in _COLUMNS.split(", "))
        for rule in rules:
            if rule in self._rules:
                self._leave(rule)
                self._state.write(f"DELETE FROM rules WHERE {same}", *_row_of(rule))
        self.version += 1

    def settle(self) -> Later[None]:
        return self._state.settle()

    def _about(self, kind: Kind, name: str) -> Iterator[Rule]:
        """Every rule that speaks of this resource."""
        yield from self._exact.get((kind, name), ())
        if name != ANY:
            yield from self._exact.get((kind, ANY), ())
        prefixes = self._prefixed.get(kind)
        if prefixes:
            for prefix, rules in prefixes.items():
                if name.startswith(prefix):
                    yield from rules

    def _enter(self, rule: Rule) -> None:
        self._rules.add(rule)
        self._shelf(rule).add(rule)

    def _leave(self, rule: Rule) -> None:
        self._rules.discard(rule)
        self._shelf(rule).discard(rule)
        # A resource that no rule names any more must not look as if one did.
        if not self._shelf(rule):
            if rule.prefixed:
                del self._prefixed[rule.kind][rule.name]
            else:
                del self._exact[rule.kind, rule.name]

    def _shelf(self, rule: Rule) -> set[Rule]:
        if rule.prefixed:
            return self._prefixed.setdefault(rule.kind, {}).setdefault(rule.name, set())
        return self._exact.setdefault((rule.kind, rule.name), set())


def _concerns(rule: Rule, who: Principal, host: str) -> bool:
    return (
        rule.principal.kind == who.kind
        and rule.principal.name in (ANY, who.name)
        and rule.host in (ANY, host)
    )


def _permits(rule: Rule, operation: Operation) -> bool:
    return rule.operation in (None, operation) or rule.operation in _IMPLIED_BY.get(operation, ())


def _covers_all(denial: Rule) -> bool:
    return not denial.prefixed and denial.name == ANY


def _covered(permission: Rule, denials: Iterable[Rule]) -> bool:
    """Do denials leave nothing of what a permission is about?"""
    for denial in denials:
        if denial.prefixed:
            if permission.name != ANY and permission.name.startswith(denial.name):
                return True
        elif not permission.prefixed and permission.name == denial.name:
            return True
    return False


def _check(rule: Rule) -> None:
    if not rule.name or len(rule.name.encode()) > _NAME_BYTES_MAX:
        raise InvalidConfig(
            f"a rule for a {rule.kind.value} of {len(rule.name.encode())} bytes was refused; "
            f"a name has 1 to {_NAME_BYTES_MAX}"
        )
    for word, text in (("principal", str(rule.principal)), ("host", rule.host)):
        if len(text.encode()) > _NAME_BYTES_MAX:
            raise InvalidConfig(
                f"a rule for a {word} of {len(text.encode())} bytes was refused; accepted are up "
                f"to {_NAME_BYTES_MAX}"
            )
    if rule.operation is not None and rule.operation not in OPERATIONS[rule.kind]:
        known = ", ".join(sorted(operation.value for operation in OPERATIONS[rule.kind]))
        raise InvalidConfig(
            f"{rule.operation.value} is nothing one can do with a {rule.kind.value}; "
            f"accepted is all, {known}"
        )
    if rule.kind is Kind.CLUSTER and (rule.prefixed or rule.name != CLUSTER_NAME):
        raise InvalidConfig(
            f"there is no cluster {rule.name!r}; the only one is {CLUSTER_NAME}, literally"
        )


def _row_of(rule: Rule) -> tuple[str, str, int, str, str, str, int]:
    return (
        rule.kind.value,
        rule.name,
        int(rule.prefixed),
        str(rule.principal),
        rule.host,
        "" if rule.operation is None else rule.operation.value,
        int(rule.allowed),
    )


def _rule_of(row: Row) -> Rule:
    kind, name, prefixed, principal, host, operation, allowed = row
    return Rule(
        Kind(kind),
        name,
        bool(prefixed),
        Principal.parse(principal),
        host,
        Operation(operation) if operation else None,
        bool(allowed),
    )
