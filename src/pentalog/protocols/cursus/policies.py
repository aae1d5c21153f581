"""`auth_policy`, `read_acl` and `write_acl` of a topic, as a view of the broker's rules.

deny_write, deny_read   a rule that forbids it to everybody
acl                     rules that allow it to those listed; `*` is everybody who has logged in
open                    none of these: other rules decide alone

Only rules for the very topic and from anywhere are part of the view.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pentalog.broker.security import ANONYMOUS, ANY, Kind, Operation, Principal, Rule, Rules

POLICY: Final = ("auth_policy", "read_acl", "write_acl")
_EVERYBODY: Final = Principal("User", ANY)
_LISTS: Final = {"read_acl": Operation.READ, "write_acl": Operation.WRITE}
_DENIALS: Final = {"deny_write": Operation.WRITE, "deny_read": Operation.READ}


def policy_of(rules: Rules, topic: str) -> dict[str, str]:
    """What the rules say of a topic, in Cursus' words."""
    viewed = _viewed(rules, topic)
    allowed = {
        word: ",".join(
            sorted(
                rule.principal.name
                for rule in viewed
                if rule.allowed and rule.operation is operation
            )
        )
        for word, operation in _LISTS.items()
    }
    policy = "acl" if any(allowed.values()) else "open"
    for word, operation in _DENIALS.items():
        if _rule(topic, _EVERYBODY, operation, allowed=False) in viewed:
            policy = word
            break
    return {"auth_policy": policy, **allowed}


def change_policy(rules: Rules, topic: str, wanted: Mapping[str, str]) -> None:
    """Make the rules say what is wanted, and leave what is not named as it is."""
    before = _viewed(rules, topic)
    after = _rules_of(topic, {**policy_of(rules, topic), **wanted})
    rules.remove(list(before - after))
    rules.add(list(after - before))


def _rules_of(topic: str, policy: Mapping[str, str]) -> set[Rule]:
    word = policy["auth_policy"]
    found: set[Rule] = set()
    if word in _DENIALS:
        found.add(_rule(topic, _EVERYBODY, _DENIALS[word], allowed=False))
    if word == "open":
        return found
    for name, operation in _LISTS.items():
        for user in filter(None, (part.strip() for part in policy[name].split(","))):
            found.add(_rule(topic, Principal("User", user), operation, allowed=True))
            if user == ANY:
                found.add(_rule(topic, ANONYMOUS, operation, allowed=False))
    return found


def _viewed(rules: Rules, topic: str) -> set[Rule]:
    return {
        rule
        for rule in rules.all()
        if rule.kind is Kind.TOPIC
        and rule.name == topic
        and not rule.prefixed
        and rule.host == ANY
        and rule.operation in _LISTS.values()
        and (rule.allowed or rule.principal in (_EVERYBODY, ANONYMOUS))
    }


def _rule(topic: str, who: Principal, operation: Operation, *, allowed: bool) -> Rule:
    return Rule(Kind.TOPIC, topic, False, who, ANY, operation, allowed)
