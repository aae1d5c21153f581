"""Signed tokens of others (JWT), checked by the keys of those who are trusted to sign them.

Which signatures are accepted is fixed here: a token that names no algorithm, or one with a secret
that both sides know, is refused whatever the keys are.

Keys are fetched on a lane of their own: a token with an unknown key waits for them, other tokens do
not wait behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pentalog.broker.credentials import TOKEN_BYTES_MAX, Bearer
from pentalog.broker.security import Principal
from pentalog.config import Config, ConfigError
from pentalog.model.errors import Unauthorized
from pentalog.model.later import Later
from pentalog.runtime import Runtime

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
LANE: Final = "bearers"
KEYS_LANE: Final = "bearer-keys"
_KEYS_GOOD_S: Final = 300.0
_KEYS_INTERVAL_S: Final = 5.0
"""An unknown key has the keys fetched again, but not before this time after the last fetch."""
_NAME_BYTES_MAX: Final = 1024


class _KeyUnknown(Unauthorized):
    """No key that was fetched so far has signed the token."""


class LocalBearers:
    """`credentials.Bearers`; keys are fetched and signatures checked on lanes."""

    def __init__(self, runtime: Runtime, config: Config, fetch: Callable[[], bytes]) -> None:
        """`fetch` gives the keys as they are now (RFC 7517); it may take long."""
        try:
            import jwt
        except ImportError as error:
            raise ConfigError(
                "sasl_mechanisms names OAUTHBEARER, which needs PyJWT: "
                "pip install 'pentalog[oauth]'"
            ) from error
        self.enabled = True
        self._jwt: Any = jwt
        self._runtime = runtime
        self._config = config
        self._fetch = fetch
        self._keys: dict[str, Any] = {}
        """Replaced as a whole, so that the lane may read it."""
        self._fetched_s = -_KEYS_GOOD_S
        """When the last fetch ended."""
        self._trouble = ""
        """Why the last fetch failed."""
        self._waiting: list[Callable[[], None]] | None = None
        """What waits for the fetch under way; None: there is none."""

    def verify(self, token: str) -> Later[Bearer]:
        later: Later[Bearer] = Later()
        if len(token) > TOKEN_BYTES_MAX:
            later.refuse(Unauthorized(f"the token has more than {TOKEN_BYTES_MAX} bytes"))
        elif self._age_s() >= _KEYS_GOOD_S:
            self._fetch_keys(lambda: self._check(token, later, fetched=True))
        else:
            self._check(token, later, fetched=False)
        return later

    def _age_s(self) -> float:
        return self._runtime.monotonic() - self._fetched_s

    def _check(self, token: str, later: Later[Bearer], *, fetched: bool) -> None:
        """`fetched`: no newer keys can be had for this token."""

        def done(bearer: Bearer | None, error: BaseException | None) -> None:
            if bearer is not None:
                later.fill(bearer)
            elif isinstance(error, _KeyUnknown) and not fetched and self._may_fetch():
                self._fetch_keys(lambda: self._check(token, later, fetched=True))
            elif isinstance(error, Unauthorized):
                later.refuse(error)
            else:
                # What the library says of a token may quote it.
                kind = type(error).__name__
                later.refuse(Unauthorized(f"the token could not be checked ({kind})"))

        now_ms = self._runtime.now_ms()
        self._runtime.offload(LANE, partial(self._verify, token, self._keys, now_ms), done)

    def _may_fetch(self) -> bool:
        return self._waiting is not None or self._age_s() >= _KEYS_INTERVAL_S

    def _fetch_keys(self, then: Callable[[], None]) -> None:
        """Fetch the keys, or wait for the fetch under way."""
        if self._waiting is not None:
            self._waiting.append(then)
            return
        self._waiting = [then]
        self._runtime.offload(KEYS_LANE, self._load, self._loaded)

    def _loaded(self, keys: dict[str, Any] | None, error: BaseException | None) -> None:
        waiting, self._waiting = self._waiting or [], None
        self._fetched_s = self._runtime.monotonic()
        self._trouble = "" if error is None else type(error).__name__
        if keys is not None:
            self._keys = keys  # if not, those there are serve on
        for then in waiting:
            then()

    def _verify(self, token: str, keys: Mapping[str, Any], now_ms: int) -> Bearer:
        """On the lane."""
        jwt, config = self._jwt, self._config
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise Unauthorized(f"tokens are signed by one of {', '.join(ALGORITHMS)}")
            key = self._key(header.get("kid"), keys)
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=list(config.oauth_audience) or None,
                issuer=config.oauth_issuer or None,
                leeway=config.oauth_clock_skew_ms / 1000,
                options={
                    "require": ["exp", config.oauth_principal_claim],
                    "verify_aud": bool(config.oauth_audience),
                    "verify_iss": bool(config.oauth_issuer),
                },
            )
        except jwt.PyJWTError as flaw:
            raise Unauthorized(f"the token is refused ({type(flaw).__name__})") from None
        return self._bearer(claims, now_ms)

    def _bearer(self, claims: dict[str, Any], now_ms: int) -> Bearer:
        config = self._config
        scopes = claims.get("scope", claims.get("scp", ()))
        given = set(scopes.split() if isinstance(scopes, str) else scopes)
        if not given.issuperset(config.oauth_scopes):
            raise Unauthorized("the token lacks a scope that oauth_scopes demands")
        name = claims[config.oauth_principal_claim]
        if not isinstance(name, str) or not name:
            raise Unauthorized("the token does not name its bearer")
        if len(name.encode()) > _NAME_BYTES_MAX:
            raise Unauthorized(f"the token names a bearer of more than {_NAME_BYTES_MAX} bytes")
        expires_ms = int(claims["exp"] * 1000) + config.oauth_clock_skew_ms
        return Bearer(Principal("User", name), max(now_ms, expires_ms))

    def _key(self, key_id: object, keys: Mapping[str, Any]) -> Any:
        if key_id is None and len(keys) == 1:
            return next(iter(keys.values()))
        try:
            return keys[key_id]  # type: ignore[index]
        except (KeyError, TypeError):
            trouble = self._trouble
        if not keys and trouble:
            raise _KeyUnknown(f"the keys that sign tokens cannot be had ({trouble})")
        raise _KeyUnknown("the token is signed by a key that is not known here")

    def _load(self) -> dict[str, Any]:
        """On the lane of keys."""
        return self._read(json.loads(self._fetch())["keys"])

    def _read(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """The keys of a set that can check a signature; it may have others, of any kind."""
        keys = {}
        for number, entry in enumerate(entries):
            if entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
                continue
            with suppress(self._jwt.PyJWTError, ValueError):
                keys[str(entry.get("kid", number))] = self._jwt.PyJWK(entry).key
        if entries and not keys:
            raise ValueError("no key of the set can check a signature")
        return keys
