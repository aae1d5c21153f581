"""Answers of HTTP: whole ones, and streams whose end is not known when they begin."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_GUARDS: Final = (
    "Cache-Control: no-store",
    "X-Content-Type-Options: nosniff",
    "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
    "X-Frame-Options: DENY",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Resource-Policy: same-origin",
)
LAST_CHUNK: Final = b"0\r\n\r\n"

_encode: Final = msgspec.json.Encoder().encode


class Answer(NamedTuple):
    status: int
    body: bytes
    kind: str = TEXT
    headers: Mapping[str, str] = {}


def text(status: int, line: str, **headers: str) -> Answer:
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return Answer(status, line.encode() + b"\n", TEXT, named)


def json(value: object, status: int = 200) -> Answer:
    return Answer(status, _encode(value) + b"\n", JSON)


def line(value: object) -> bytes:
    """One line of a stream."""
    return _encode(value) + b"\n"


def encode(answer: Answer, *, keep_alive: bool, bodiless: bool = False) -> bytes:
    head = _head(
        answer.status,
        {"Content-Type": answer.kind, "Content-Length": str(len(answer.body)), **answer.headers},
        keep_alive=keep_alive,
    )
    return head if bodiless else head + answer.body


def stream_head(kind: str, *, chunks: bool, keep_alive: bool) -> bytes:
    headers = {"Content-Type": kind}
    if chunks:
        headers["Transfer-Encoding"] = "chunked"
    return _head(200, headers, keep_alive=keep_alive)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _head(status: int, headers: Mapping[str, str], *, keep_alive: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    # Numbers of the moment, and nothing a page of another site should get hold of.
    lines += _GUARDS
    lines.append(f"Connection: {'keep-alive' if keep_alive else 'close'}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
