"""Users, keys, tokens, rules and quotas of all gateways: rows of the state topic, read by each."""

from __future__ import annotations

import hmac
import secrets

from pentalog.broker.decoys import SECRET_BYTES
from pentalog.broker.quotas import LocalQuotas
from pentalog.broker.rules import LocalRules
from pentalog.broker.security import Principal
from pentalog.broker.tokens import LocalTokens
from pentalog.broker.users import LocalUsers
from pentalog.cluster.desk import Desk
from pentalog.cluster.state_topic import ClusterState
from pentalog.config import Config
from pentalog.runtime import Runtime


class ClusterUsers(LocalUsers):
    """Implements `credentials.Users`."""

    def __init__(self, state: ClusterState, runtime: Runtime, config: Config) -> None:
        self._own_secret = secrets.token_bytes(SECRET_BYTES)
        self._shared = [*config.delegation_token_secret, *config.engine_password]
        super().__init__(Desk(state), runtime)
        state.watch(("verifiers", "keys"), self._read)

    def _decoy_secret(self) -> bytes:
        """Of what all gateways know, so that they show the same; else each has its own."""
        if not self._shared:
            return self._own_secret
        return hmac.digest("\0".join(self._shared).encode(), b"decoys", "sha256")

    def _read(self) -> None:
        self._verifiers = {}
        self._keys = {}
        self.open()
        self.version += 1
        self.logins.end_unless(self._good)


class ClusterTokens(LocalTokens):
    """Implements `credentials.Tokens`."""

    def __init__(self, state: ClusterState, runtime: Runtime, config: Config) -> None:
        super().__init__(Desk(state), runtime, config)
        state.watch(("tokens",), self._read)

    def _read(self) -> None:
        self._tokens = {}
        self._by_secret = {}
        self._of = {}
        self.open()
        self._end_logins()


class ClusterRules(LocalRules):
    """Implements `security.Rules`."""

    def __init__(self, state: ClusterState, config: Config) -> None:
        super().__init__(
            Desk(state),
            enforced=config.authorization or bool(config.super_users),
            super_users=[Principal.parse(text) for text in config.super_users],
            everyone_without_rule=config.allow_everyone_without_rule,
        )
        state.watch(("rules",), self._read)

    def _read(self) -> None:
        self._rules = set()
        self._exact = {}
        self._prefixed = {}
        self.open()
        self.version += 1


class ClusterQuotas(LocalQuotas):
    """Implements `operation.Quotas`; each gateway counts what passes through it."""

    def __init__(self, state: ClusterState, runtime: Runtime) -> None:
        super().__init__(Desk(state), runtime)
        state.watch(("quotas",), self._read)

    def _read(self) -> None:
        self._limits.clear()
        self.open()
        self.version += 1
