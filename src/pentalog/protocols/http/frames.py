"""Requests of HTTP/1.0 and 1.1 without a body, read where they lie."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

HEAD_BYTES_MAX: Final = 16 << 10
"""Of a request line and its headers."""

_END: Final = b"\r\n\r\n"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Request(NamedTuple):
    method: str
    path: str
    """Without escapes."""
    query: Mapping[str, str]
    host: str
    """As the client wrote it; empty if it did not."""
    keep_alive: bool
    chunks: bool
    """The client understands an answer in chunks."""
    headers: Mapping[str, str]
    """By name in small letters; repeated ones joined."""


class Bad(Exception):
    """A request that cannot be served; the connection ends after this answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def number(request: Request, name: str, default: int) -> int:
    """A number of the query; raises `Bad`."""
    word = request.query.get(name, str(default))
    if not (word.isascii() and word.isdigit() and len(word) < 19):
        raise Bad(400, f"{name}={word[:50]} is not a number; 0 or more is accepted")
    return int(word)


def read(data: memoryview) -> tuple[Request, int] | None:
    """The first request and its size; None if it has not come whole.  Raises `Bad`."""
    head = bytes(data[: HEAD_BYTES_MAX + len(_END)])
    skipped = len(head) - len(head.lstrip(b"\r\n"))
    end = head.find(_END, skipped)
    if end < 0:
        if len(head) > HEAD_BYTES_MAX:
            raise Bad(431, f"the head of the request is longer than {HEAD_BYTES_MAX} bytes")
        return None
    lines = str(head[skipped:end], "latin-1").split("\r\n")
    return _request(lines[0], _headers(lines[1:])), end + len(_END)


def _request(line: str, headers: Mapping[str, str]) -> Request:
    words = line.split(" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]):
        raise Bad(400, "not a request line; send GET /path HTTP/1.1")
    method, target, version = words
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise Bad(505, f"{version[:20]!r} is not served; use HTTP/1.1")
    modern = version == "HTTP/1.1"
    if modern and "host" not in headers:
        raise Bad(400, "the Host header is missing")
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise Bad(400, "requests with a body are not served")
    try:
        where = urlsplit(target)
        query = dict(parse_qsl(where.query, keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise Bad(400, "the target is not a path") from None
    if not where.path.startswith("/"):
        raise Bad(400, "the target is not a path; send GET /path HTTP/1.1")
    wishes = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    keep_alive = "close" not in wishes if modern else "keep-alive" in wishes
    return Request(
        method, unquote(where.path), query, headers.get("host", ""), keep_alive, modern, headers
    )


def _headers(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or _CONTROL.search(value):
            raise Bad(400, "a header is not of the form NAME: VALUE")
        key = name.lower()
        if key == "host" and key in found:
            raise Bad(400, "several Host headers")
        value = value.strip(" \t")
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found
