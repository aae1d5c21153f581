"""Delegation tokens: let their holders log in as their owners, for a while.

What a holder proves is computed from the token's id and the broker's secret, so that no copy of
the state file is enough to log in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Final

from pentalog.broker.credentials import NAME_BYTES_MAX, Mechanism, TokenView, Verifier
from pentalog.broker.logins import TOKEN, Logins, Proof
from pentalog.broker.needs import Rows
from pentalog.broker.security import Principal
from pentalog.broker.users import LANE, make_verifier
from pentalog.config import Config
from pentalog.model.errors import InvalidConfig, Overloaded, Unauthorized, UserNotFound
from pentalog.model.ids import new_id, spell_id
from pentalog.model.later import Later
from pentalog.runtime import Runtime, Timer

TOKENS_MAX: Final = 100_000
RENEWERS_MAX: Final = 20
"""Of one token."""
_SECRET_BYTES: Final = 64
_COLUMNS: Final = "token_id, owner, requester, renewers, issued_ms, expires_ms, expires_ms_max"
_SWEEP_INTERVAL_MS: Final = 3600 * 1000


class LocalTokens:
    def __init__(self, state: Rows, runtime: Runtime, config: Config) -> None:
        self._state = state
        self._runtime = runtime
        self._config = config
        self._master = ",".join(config.delegation_token_secret).encode()
        self._tokens: dict[str, TokenView] = {}
        self._of: dict[Principal, dict[str, None]] = {}
        """The tokens that each principal owns, has asked for or may renew."""
        self._by_secret: dict[bytes, str] = {}
        """Hash of the secret to the token's id; how long a look takes says nothing of secrets."""
        self._swept_ms = runtime.now_ms()
        self.enabled = bool(self._master)
        self.logins = Logins(self._entered)
        self._ending: Timer | None = None
        """Runs when the first token by which somebody is logged in expires."""
        self._ending_ms = 0

    def open(self) -> None:
        for token_id, owner, requester, renewers, *times in self._state.rows(
            f"SELECT {_COLUMNS} FROM tokens"
        ):
            self._index(
                TokenView(
                    token_id,
                    Principal.parse(owner),
                    Principal.parse(requester),
                    tuple(Principal.parse(text) for text in json.loads(renewers)),
                    *times,
                )
            )

    def create(
        self,
        owner: Principal,
        requester: Principal,
        renewers: Sequence[Principal],
        lifetime_ms: int,
    ) -> TokenView:
        renewers = tuple(dict.fromkeys(renewers))
        _check_names(owner, renewers)
        self._state.check()
        self._sweep()
        if len(self._tokens) >= TOKENS_MAX:
            raise Overloaded(f"{TOKENS_MAX} delegation tokens are good: expire some of them")
        self._check_room(requester)
        longest_ms = self._config.delegation_token_lifetime_ms_max
        lifetime_ms = longest_ms if lifetime_ms < 0 else min(lifetime_ms, longest_ms)
        now_ms = self._runtime.now_ms()
        token = TokenView(
            spell_id(new_id()),
            owner,
            requester,
            renewers,
            now_ms,
            now_ms + min(lifetime_ms, self._config.delegation_token_expiry_ms),
            now_ms + lifetime_ms,
        )
        self._keep(token)
        return token

    def secret(self, token_id: str) -> bytes:
        return hmac.digest(self._master, token_id.encode(), "sha512")

    def by_secret(self, secret: bytes) -> TokenView | None:
        if not self.enabled or len(secret) != _SECRET_BYTES:
            return None  # without a secret of ours anyone could compute those of tokens
        token_id = self._by_secret.get(hashlib.sha256(secret).digest(), "")
        return self._tokens.get(token_id)

    def get(self, token_id: str) -> TokenView | None:
        found = self._tokens.get(token_id)
        return found if found is not None and self._good(found) else None

    def all(self) -> Iterator[TokenView]:
        return self._still_good(list(self._tokens))

    def of(self, who: Principal) -> Iterator[TokenView]:
        return self._still_good(list(self._of.get(who, ())))

    def _still_good(self, token_ids: Collection[str]) -> Iterator[TokenView]:
        """The caller may take a rest between two of them, in which tokens come and go."""
        for token_id in token_ids:
            token = self.get(token_id)
            if token is not None:
                yield token

    def prolong(self, token_id: str, period_ms: int) -> TokenView:
        token = self.get(token_id)
        if token is None:
            raise UserNotFound("there is no such token any more: make another one")
        self._state.check()
        if period_ms < 0:
            period_ms = self._config.delegation_token_expiry_ms
        expires_ms = min(token.expires_ms_max, self._runtime.now_ms() + period_ms)
        token = token._replace(expires_ms=expires_ms)
        self._keep(token)
        proof = Proof(TOKEN, token_id)
        if not self._good(token):
            self.logins.end(proof)
        elif proof in self.logins.proofs():
            self._entered(proof)
        return token

    def drop(self, token_id: str) -> None:
        self._state.check()
        token = self._tokens.pop(token_id, None)
        if token is not None:
            for party in _parties(token):
                own = self._of[party]
                del own[token_id]
                if not own:
                    del self._of[party]
            self._by_secret.pop(self._hash(token_id), None)
            self._state.write("DELETE FROM tokens WHERE token_id = ?", token_id)
            self.logins.end(Proof(TOKEN, token_id))

    def drop_of(self, name: str) -> None:
        """Drop the tokens of a user that has been deleted."""
        owner = Principal("User", name)
        for token_id in list(self._of.get(owner, ())):
            if self._tokens[token_id].owner == owner:
                self.drop(token_id)

    def verifier(self, token_id: str, mechanism: Mechanism) -> Later[Verifier]:
        """Made of the id alone, so that neither it nor the time taken says what tokens exist."""
        later: Later[Verifier] = Later()
        password = base64.b64encode(self.secret(token_id)).decode()
        salt = hmac.digest(self._master, f"{mechanism.value} {token_id}".encode(), "sha256")

        def done(made: Verifier | None, error: BaseException | None) -> None:
            if made is None:
                later.refuse(Unauthorized(f"no verifier could be made ({type(error).__name__})"))
            else:
                later.fill(made)

        self._runtime.offload(LANE, partial(make_verifier, mechanism, password, salt), done)
        return later

    def settle(self) -> Later[None]:
        return self._state.settle()

    def _end_logins(self) -> None:
        """End those whose tokens are good no more, and the others in their time."""
        self.logins.end_unless(lambda proof: self.get(proof.name) is not None)
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        for proof in self.logins.proofs():
            self._entered(proof)

    def _entered(self, proof: Proof) -> None:
        token = self._tokens.get(proof.name)
        if token is None or (self._ending is not None and self._ending_ms <= token.expires_ms):
            return
        if self._ending is not None:
            self._ending.cancel()
        self._ending_ms = token.expires_ms
        delay_ms = token.expires_ms - self._runtime.now_ms() + 1
        self._ending = self._runtime.after(max(1, delay_ms), self._end_logins)

    def _hash(self, token_id: str) -> bytes:
        return hashlib.sha256(self.secret(token_id)).digest()

    def _good(self, token: TokenView) -> bool:
        return self._runtime.now_ms() < min(token.expires_ms, token.expires_ms_max)

    def _keep(self, token: TokenView) -> None:
        self._index(token)
        marks = ", ".join("?" * 7)
        self._state.write(
            f"INSERT OR REPLACE INTO tokens ({_COLUMNS}) VALUES ({marks})",
            token.token_id,
            str(token.owner),
            str(token.requester),
            json.dumps([str(renewer) for renewer in token.renewers]),
            token.issued_ms,
            token.expires_ms,
            token.expires_ms_max,
        )

    def _index(self, token: TokenView) -> None:
        self._tokens[token.token_id] = token
        self._by_secret[self._hash(token.token_id)] = token.token_id
        for party in _parties(token):
            self._of.setdefault(party, {})[token.token_id] = None

    def _check_room(self, requester: Principal) -> None:
        """Raise `Overloaded` if a user has asked for as many tokens as one may."""
        most = self._config.delegation_tokens_per_user_max
        own = self._of.get(requester, {})
        if len(own) < most:
            return
        asked_for = [self._tokens[each] for each in own]
        asked_for = [token for token in asked_for if token.requester == requester]
        if len(asked_for) < most:
            return
        expired = [token for token in asked_for if not self._good(token)]
        for token in expired:
            self.drop(token.token_id)
        if not expired:
            raise Overloaded(
                f"{requester} has {most} delegation tokens; expire some of them, or raise "
                "delegation_tokens_per_user_max"
            )

    def _sweep(self) -> None:
        """Forget those that are good no more, now and then."""
        now_ms = self._runtime.now_ms()
        if now_ms - self._swept_ms < _SWEEP_INTERVAL_MS and len(self._tokens) < TOKENS_MAX:
            return
        self._swept_ms = now_ms
        for token in list(self._tokens.values()):
            if not self._good(token):
                self.drop(token.token_id)


def _parties(token: TokenView) -> set[Principal]:
    return {token.owner, token.requester, *token.renewers}


def _check_names(owner: Principal, renewers: Sequence[Principal]) -> None:
    if len(renewers) > RENEWERS_MAX:
        raise InvalidConfig(
            f"a delegation token with {len(renewers)} renewers was refused; accepted are up to "
            f"{RENEWERS_MAX}"
        )
    for name in (owner.name, *(renewer.name for renewer in renewers)):
        if len(name) > NAME_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX:
            raise InvalidConfig(
                f"a delegation token with a user name of {len(name)} characters was refused; "
                f"accepted are up to {NAME_BYTES_MAX} bytes"
            )
