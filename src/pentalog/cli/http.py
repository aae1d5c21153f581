"""What commands ask of a broker's http listener."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from pentalog.cli.advice import advised
from pentalog.cli.client import parse_server
from pentalog.cli.login import client_options
from pentalog.cli.output import Refused

SERVER: Final = "127.0.0.1:9644"
_TIMEOUT_S: Final = 10.0
_SECURED: Final = "https://"


def get(server: str, path: str, *, timeout_s: float = _TIMEOUT_S) -> str:
    """The body of an answer; `Refused` for anything but a success."""
    with closing(_connect(server, timeout_s)) as connection:
        return str(_asked(connection, server, path).read().decode("utf-8", "replace"))


def get_json(server: str, path: str) -> Any:
    text = get(server, path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise Refused(f"{server} does not answer as a pentalog broker does") from error


def lines(server: str, path: str) -> Iterator[str]:
    """The lines of an answer as they come, until it ends."""
    with closing(_connect(server, _TIMEOUT_S)) as connection:
        answer = _asked(connection, server, path)
        if connection.sock is not None:
            connection.sock.settimeout(None)  # the next line may take as long as it likes
        try:
            for line in answer:
                yield line.decode("utf-8", "replace").rstrip("\n")
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"{server} broke off: {error}; look at the broker's own log") from error


def parse(server: str) -> tuple[bool, str, int]:
    """Whether it is to be asked by TLS, and where it is; raises `Misused`."""
    secured = server.startswith(_SECURED)
    plain = server.removeprefix(_SECURED).removeprefix("http://").rstrip("/")
    return (secured, *parse_server(plain, "--http"))


def _connect(server: str, timeout_s: float) -> http.client.HTTPConnection:
    secured, host, port = parse(server)
    if not secured:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    authorities = client_options(0, "").tls_authorities
    try:
        context = ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise Refused(f"cannot read the certificates to trust in {authorities}: {error}") from error
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def _asked(
    connection: http.client.HTTPConnection, server: str, path: str
) -> http.client.HTTPResponse:
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise Refused(
            f"cannot reach the http listener at {server}: {reason}; start a broker with `pentalog "
            "start` or name another one with --http HOST:PORT (https://HOST:PORT if it is http+tls)"
        ) from error
    if answer.status != http.client.OK:
        text = answer.read().decode("utf-8", "replace").strip().partition("\n")[0]
        raise Refused(advised(f"{server} refused {path}: {answer.status} {text}"))
    return answer
