"""Signed tokens of others (JWT), checked by the keys of those who are trusted to sign them.

Which signatures are accepted is fixed here: a token that names no algorithm, or one with a secret
that both sides know, is refused whatever the keys are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pentalog.broker.credentials import Bearer
from pentalog.broker.security import Principal
from pentalog.config import Config, ConfigError
from pentalog.model.errors import Unauthorized
from pentalog.model.later import Later
from pentalog.runtime import Runtime

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
LANE: Final = "bearers"
TOKEN_BYTES_MAX: Final = 64 << 10
_KEYS_GOOD_S: Final = 300.0
_KEYS_INTERVAL_S: Final = 5.0
"""An unknown key makes us ask again, but not more often than this."""


class LocalBearers:
    """`credentials.Bearers`; keys are fetched and signatures checked on a lane."""

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
        self._fetched_s = -_KEYS_GOOD_S

    def verify(self, token: str) -> Later[Bearer]:
        later: Later[Bearer] = Later()

        def done(bearer: Bearer | None, error: BaseException | None) -> None:
            if bearer is not None:
                later.fill(bearer)
            elif isinstance(error, Unauthorized):
                later.refuse(error)
            else:
                # What the library says of a token may quote it.
                kind = type(error).__name__
                later.refuse(Unauthorized(f"the token could not be checked ({kind})"))

        now_s = self._runtime.monotonic()
        now_ms = self._runtime.now_ms()
        self._runtime.offload(LANE, partial(self._verify, token, now_s, now_ms), done)
        return later

    def _verify(self, token: str, now_s: float, now_ms: int) -> Bearer:
        """On the lane, which is the only one to touch the keys."""
        jwt, config = self._jwt, self._config
        if len(token) > TOKEN_BYTES_MAX:
            raise Unauthorized(f"the token has more than {TOKEN_BYTES_MAX} bytes")
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise Unauthorized(f"tokens are signed by one of {', '.join(ALGORITHMS)}")
            key = self._key(header.get("kid"), now_s)
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
        expires_ms = int(claims["exp"] * 1000) + config.oauth_clock_skew_ms
        return Bearer(Principal("User", name), max(now_ms, expires_ms))

    def _key(self, key_id: object, now_s: float) -> Any:
        age_s = now_s - self._fetched_s
        known = bool(self._keys) if key_id is None else key_id in self._keys
        if age_s >= _KEYS_GOOD_S or (not known and age_s >= _KEYS_INTERVAL_S):
            self._load(now_s)
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        try:
            return self._keys[key_id]  # type: ignore[index]
        except (KeyError, TypeError):
            raise Unauthorized("the token is signed by a key that is not known here") from None

    def _load(self, now_s: float) -> None:
        self._fetched_s = now_s
        try:
            keys = self._read(json.loads(self._fetch())["keys"])
        except Exception as error:  # whatever the other side sent
            if self._keys:
                return  # those there are serve on
            raise Unauthorized(
                f"the keys that sign tokens cannot be had ({type(error).__name__})"
            ) from error
        self._keys = keys

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
