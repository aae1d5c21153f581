"""Fetches the keys that signed tokens are checked by, from a file or over HTTP."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from pentalog.config import Config, ConfigError
from pentalog.security_settings import mask_urls

_TIMEOUT_S: Final = 5.0
_KEYS_BYTES_MAX: Final = 1 << 20
_THIS_MACHINE: Final = ("127.0.0.1", "::1", "localhost")


def fetcher_of(config: Config) -> Callable[[], bytes]:
    """What fetches the keys each time; raises `ConfigError`."""
    if config.oauth_jwks_file:
        return Path(config.oauth_jwks_file).read_bytes
    url = config.oauth_jwks_url
    if not _trusted(url):
        raise ConfigError(
            f"sasl_mechanisms names OAUTHBEARER and oauth_jwks_url is {mask_urls(url)!r}; "
            "accepted is an https address, or a file in oauth_jwks_file"
        )

    opener = urllib.request.build_opener(_Redirects())

    def fetch() -> bytes:
        try:
            with opener.open(url, timeout=_TIMEOUT_S) as answer:
                content: bytes = answer.read(_KEYS_BYTES_MAX)
        except HTTPError as refusal:
            refusal.close()  # it is the answer, too
            raise
        return content

    return fetch


def _trusted(url: str) -> bool:
    """Is nobody on the way who could put keys of his own there?"""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and host in _THIS_MACHINE)
    )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Followed only to where keys might have been fetched from in the first place."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not _trusted(newurl):
            fp.close()
            raise URLError("keys are not fetched from an address that is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
