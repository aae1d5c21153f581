"""Fetches the keys that signed tokens are checked by, from a file or over HTTP."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pentalog.config import Config, ConfigError

_TIMEOUT_S: Final = 5.0
_KEYS_BYTES_MAX: Final = 1 << 20


def fetcher_of(config: Config) -> Callable[[], bytes]:
    """What fetches the keys each time; raises `ConfigError`."""
    if config.oauth_jwks_file:
        return Path(config.oauth_jwks_file).read_bytes
    url = config.oauth_jwks_url
    if not url.startswith(("https://", "http://127.0.0.1", "http://localhost")):
        raise ConfigError(
            f"sasl_mechanisms names OAUTHBEARER and oauth_jwks_url is {url!r}; accepted is an "
            "https address, or a file in oauth_jwks_file"
        )

    def fetch() -> bytes:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            content: bytes = answer.read(_KEYS_BYTES_MAX)
        return content

    return fetch
