"""The part of the contract that says who may do what: principals, rules, and the one question.

Every protocol asks the same question, `Access.check`, before it does anything for anybody.  The
answers are kept per connection until a rule changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from pentalog.model.addresses import site_of
from pentalog.model.errors import Unauthorized
from pentalog.model.later import Later


class Operation(Enum):
    """What somebody wants to do with a resource."""

    __hash__ = object.__hash__  # an enumeration's own is slow, and every request asks by it

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    ADMINISTER = "administer"
    """What brokers do for each other, and those who clean up after them."""
    DESCRIBE_SETTINGS = "describe settings"
    ALTER_SETTINGS = "alter settings"
    WRITE_IDEMPOTENTLY = "write idempotently"
    CREATE_TOKENS = "create tokens"
    DESCRIBE_TOKENS = "describe tokens"
    COMMIT_IN_TWO_PHASES = "commit in two phases"


class Kind(Enum):
    """What can be protected."""

    __hash__ = object.__hash__

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    TRANSACTION = "transaction"
    TOKEN = "token"
    USER = "user"


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of its kind, as every tool that makes rules spells it."""
ANY: Final = "*"

OPERATIONS: Final[dict[Kind, frozenset[Operation]]] = {
    Kind.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_SETTINGS,
            Operation.ALTER_SETTINGS,
        }
    ),
    Kind.GROUP: frozenset(
        {
            Operation.READ,
            Operation.DELETE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_SETTINGS,
            Operation.ALTER_SETTINGS,
        }
    ),
    Kind.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.ADMINISTER,
            Operation.DESCRIBE_SETTINGS,
            Operation.ALTER_SETTINGS,
            Operation.WRITE_IDEMPOTENTLY,
        }
    ),
    Kind.TRANSACTION: frozenset(
        {Operation.WRITE, Operation.DESCRIBE, Operation.COMMIT_IN_TWO_PHASES}
    ),
    Kind.TOKEN: frozenset({Operation.DESCRIBE}),
    Kind.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}
"""Which operations make sense for each kind."""


class Principal(NamedTuple):
    """Who somebody is."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """`User:alice`; raises `ValueError`."""
        kind, colon, name = text.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"{text!r} is not KIND:NAME, for example User:alice")
        return cls(kind, name)


ANONYMOUS: Final = Principal("User", "ANONYMOUS")


class Rule(NamedTuple):
    """One line of the rule book."""

    kind: Kind
    name: str
    """Of the resource; `*` stands for all, and with `prefixed` the beginning of names."""
    prefixed: bool
    principal: Principal
    """The name `*` stands for everybody of this kind."""
    host: str
    """An address, or `*`."""
    operation: Operation | None
    """None: all of them."""
    allowed: bool

    def __str__(self) -> str:
        verb = "allow" if self.allowed else "deny"
        what = "all" if self.operation is None else self.operation.value
        end = "*" if self.prefixed else ""
        return f"{verb} {self.principal} from {self.host} {what} {self.kind.value} {self.name}{end}"


class Verdict(NamedTuple):
    allowed: bool
    reason: str
    """The rule that decided, or why none did."""


class Rules(Protocol):
    """The rule book."""

    enforced: bool
    """False: everybody may do everything, and no rule can be added."""
    version: int
    """Grows with every change: verdicts given before it are out of date."""

    def judge(
        self, who: Principal, host: str, operation: Operation, kind: Kind, name: str
    ) -> Verdict: ...

    def judge_any(self, who: Principal, host: str, operation: Operation, kind: Kind) -> bool:
        """Is there any resource of this kind for which it is allowed?"""

    def all(self) -> Collection[Rule]: ...

    def add(self, rules: Sequence[Rule]) -> None:
        """Durable with `settle`; one that is there already stays as it is."""

    def remove(self, rules: Sequence[Rule]) -> None: ...

    def settle(self) -> Later[None]:
        """Ready as soon as every change made so far is on the disk."""


class Unguarded:
    """The rules of a broker that has none: everybody may do everything."""

    enforced = False
    version = 0

    def judge(
        self, who: Principal, host: str, operation: Operation, kind: Kind, name: str
    ) -> Verdict:
        return Verdict(True, "nothing is guarded")

    def judge_any(self, who: Principal, host: str, operation: Operation, kind: Kind) -> bool:
        return True

    def all(self) -> Collection[Rule]:
        return ()

    def add(self, rules: Sequence[Rule]) -> None:
        raise Unauthorized("this broker keeps no rules: ask one with a data directory")

    def remove(self, rules: Sequence[Rule]) -> None:
        raise Unauthorized("this broker keeps no rules: ask one with a data directory")

    def settle(self) -> Later[None]:
        return Later.now(None)


UNGUARDED: Final = Unguarded()


class Shut(Unguarded):
    """The rules for somebody whose login was taken back: nothing is allowed to him."""

    enforced = True
    version = -1

    def judge(
        self, who: Principal, host: str, operation: Operation, kind: Kind, name: str
    ) -> Verdict:
        return Verdict(False, "the login was taken back")

    def judge_any(self, who: Principal, host: str, operation: Operation, kind: Kind) -> bool:
        return False


SHUT: Final = Shut()

KEPT_MAX: Final = 10_000
"""Answers kept for one connection."""
KEPT_CHARACTERS_MAX: Final = 256
"""Longer names are those of nothing there is, and would fill the memory."""


class Audit(Protocol):
    """Where it is written down who did what, and who was not let."""

    def denied(
        self,
        access: Access,
        operation: Operation,
        kind: Kind,
        name: str,
        verdict: Verdict,
    ) -> None: ...

    def acted(self, access: Access, action: str, what: str, outcome: str) -> None:
        """Somebody administered something: `action` in our own words, `what` names it."""

    def logged_in(self, access: Access, mechanism: str) -> None: ...

    def turned_away(self, access: Access, mechanism: str, name: str, reason: str) -> None:
        """Somebody claimed to be `name` and did not prove it."""

    def close(self) -> None:
        """Write down what was only counted so far."""


class Unaudited:
    """Nothing is written down."""

    def denied(
        self, access: Access, operation: Operation, kind: Kind, name: str, verdict: Verdict
    ) -> None: ...

    def acted(self, access: Access, action: str, what: str, outcome: str) -> None: ...

    def logged_in(self, access: Access, mechanism: str) -> None: ...

    def turned_away(self, access: Access, mechanism: str, name: str, reason: str) -> None: ...

    def close(self) -> None: ...


class Attempt(Protocol):
    """One attempt to log in, from when it is asked for to its verdict."""

    def begin(self, run: Callable[[], None], size: int = 0) -> bool:
        """Call `run` when its address may make another attempt: at once, or later.

        Returns False if too many wait already; `size` is what it keeps in memory meanwhile.
        """

    def failed(self) -> int:
        """Count a failure; returns how long the refusal is to be held back, in ms."""

    def succeeded(self, name: str) -> None:
        """Record that the user has logged in."""

    def cancel(self) -> None:
        """Leave the queue; does nothing to an attempt that has begun."""

    def close(self) -> None:
        """End without a verdict an attempt that has begun."""


class Attempts(Protocol):
    """Admits login attempts, fewer and later the more of an address failed."""

    def open(self, host: str, name: str) -> Attempt: ...


class FreeAttempt:
    """An attempt that neither waits nor counts."""

    def begin(self, run: Callable[[], None], size: int = 0) -> bool:
        run()
        return True

    def failed(self) -> int:
        return 0

    def succeeded(self, name: str) -> None: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class Untiring:
    """Attempts that are not counted."""

    def open(self, host: str, name: str) -> Attempt:
        return _FREE


_FREE: Final = FreeAttempt()
UNAUDITED: Final = Unaudited()
UNTIRING: Final = Untiring()


@dataclass(frozen=True, slots=True)
class Sight:
    """Which topics somebody may know of, asked anew each time: rules change."""

    who: Principal
    host: str
    rules: Rules = field(compare=False)

    def sees(self, topic: str) -> bool:
        return self.rules.judge(self.who, self.host, Operation.DESCRIBE, Kind.TOPIC, topic).allowed


class Access:
    """Who is at the other end of one connection, and what he may do.

    Asked by every handler of every protocol.
    """

    __slots__ = (
        "_attempt",
        "_attempts",
        "_audit",
        "_kept",
        "_open_rules",
        "by_token",
        "guarded",
        "host",
        "listener",
        "proven",
        "remembered",
        "rules",
        "version",
        "who",
    )

    def __init__(
        self,
        rules: Rules = UNGUARDED,
        who: Principal = ANONYMOUS,
        host: str = "",
        *,
        listener: str = "",
        audit: Audit = UNAUDITED,
        attempts: Attempts = UNTIRING,
    ) -> None:
        self.who = who
        self.host = host
        """The peer's address, without its port."""
        self.listener = listener
        self.proven = False
        """A login on this connection has succeeded."""
        self.by_token = False
        """Logged in by a delegation token, which must not make others."""
        self.guarded = rules.enforced
        """False: everybody may do everything, and nothing need be asked."""
        self.rules = rules
        self._open_rules = rules
        self._audit = audit
        self._attempts = attempts
        self._attempt: Attempt = _FREE
        self.version = rules.version
        """Of the rules, when they were asked last."""
        self.remembered: dict[Any, Any] = {}
        """What a protocol made of the answers; good while the rules have this version."""
        self._kept: dict[tuple[Operation, Kind, str], Verdict] = {}

    @property
    def stamp(self) -> object:
        """Answers given to one stamp may be given again to an equal one; None: to everybody."""
        rules = self.rules
        return (self.who, self.host, rules.version) if self.guarded else None

    @property
    def owner(self) -> str:
        """What is kept for the client is charged to this: its principal, if it has logged in.

        All others are one principal, so their addresses tell them apart.
        """
        return str(self.who) if self.who != ANONYMOUS else self.owner_here

    @property
    def owner_here(self) -> str:
        """The principal at its address, where many clients are the same principal."""
        return f"{self.who}@{site_of(self.host)}"

    @property
    def sight(self) -> Sight | None:
        """What it may see, for those who ask when it is gone; None: everything."""
        return Sight(self.who, self.host, self.rules) if self.guarded else None

    def become(self, who: Principal, mechanism: str, *, by_token: bool = False) -> None:
        """The connection has logged in."""
        self.who = who
        self.proven = True
        self.by_token = by_token
        self._ask(self._open_rules)
        attempt, self._attempt = self._attempt, _FREE
        attempt.succeeded(who.name)
        self._audit.logged_in(self, mechanism)

    def leave(self) -> None:
        """The connection is nobody's any more."""
        self.who = ANONYMOUS
        self.by_token = False
        self._ask(self._open_rules)

    def shut(self) -> None:
        """What it logged in by is good no more: nothing is allowed, until it logs in anew."""
        self._ask(SHUT)

    def _ask(self, rules: Rules) -> None:
        self.rules = rules
        self.guarded = rules.enforced
        self.renew()

    def renew(self) -> None:
        """Forget every answer: the rules, or who asks them, are others now."""
        self.version = self.rules.version
        self._kept.clear()
        self.remembered.clear()

    def attempt(self, name: str, run: Callable[[], None], size: int) -> bool:
        """Call `run`, which checks a login, when the address may make another attempt.

        The attempt ends with `become`, `turned_away` or `end_attempt`, whichever comes first.
        Returns False if too many wait already: the connection must be closed.
        """
        self._attempt = self._attempts.open(self.host, name)
        return self._attempt.begin(run, size)

    def cancel_attempt(self) -> None:
        """Leave the queue of attempts: the connection closes."""
        self._attempt.cancel()

    def end_attempt(self) -> None:
        """End an attempt that has led to no verdict."""
        self._attempt.close()

    def turned_away(self, mechanism: str, name: str, reason: str) -> int:
        """A login failed; returns for how long the refusal is to be held back, in ms."""
        self._audit.turned_away(self, mechanism, name, reason)
        attempt, self._attempt = self._attempt, _FREE
        if attempt is _FREE:
            attempt = self._attempts.open(self.host, name)
        return attempt.failed()

    def record(self, action: str, what: str, outcome: str = "done") -> None:
        """Write down something administrative that was done."""
        self._audit.acted(self, action, what, outcome)

    def allows(self, operation: Operation, kind: Kind, name: str = CLUSTER_NAME) -> bool:
        """May it?  A denial is written to the audit."""
        if not self.guarded:
            return True
        if self.version != self.rules.version:
            self.renew()
        question = (operation, kind, name)
        verdict = self._kept.get(question)
        if verdict is None:
            verdict = self.rules.judge(self.who, self.host, operation, kind, name)
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            if len(name) <= KEPT_CHARACTERS_MAX:
                self._kept[question] = verdict
        allowed = verdict.allowed
        if not allowed:
            self._audit.denied(self, operation, kind, name, verdict)
        return allowed

    def sees(self, kind: Kind, name: str) -> bool:
        """May it know that this is there?  Asked by listings, so a no is not worth a line."""
        return self.could(Operation.DESCRIBE, kind, name)

    def could(self, operation: Operation, kind: Kind, name: str = CLUSTER_NAME) -> bool:
        """May it, if it wanted to?  Nothing is written down."""
        if not self.guarded:
            return True
        return self.rules.judge(self.who, self.host, operation, kind, name).allowed

    def allows_any(self, operation: Operation, kind: Kind) -> bool:
        """May it do this with any resource of this kind at all?"""
        return not self.guarded or self.rules.judge_any(self.who, self.host, operation, kind)

    def check(self, operation: Operation, kind: Kind, name: str = CLUSTER_NAME) -> None:
        """Raise `Unauthorized` unless it may."""
        if not self.allows(operation, kind, name):
            raise self.refusal(operation, kind, name)

    def refusal(self, operation: Operation, kind: Kind, name: str) -> Unauthorized:
        """What is raised for a denial."""
        return Unauthorized(
            f"{self.who} may not {operation.value} {kind.value} {name[:260]!r}: "
            "ask an administrator for a rule that allows it"
        )
