"""What commands ask of a broker's http listener."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from pentalog.cli.advice import advised
from pentalog.cli.client import parse_server
from pentalog.cli.output import Refused

SERVER: Final = "127.0.0.1:9644"
_TIMEOUT_S: Final = 10.0


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


def _connect(server: str, timeout_s: float) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(*parse_server(server, "--http"), timeout=timeout_s)


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
            "start` or name another one with --http HOST:PORT"
        ) from error
    if answer.status != http.client.OK:
        text = answer.read().decode("utf-8", "replace").strip().partition("\n")[0]
        raise Refused(advised(f"{server} refused {path}: {answer.status} {text}"))
    return answer
