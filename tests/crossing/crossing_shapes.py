"""The records that are sent from door to door, and what the document says becomes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "mapping.md"


class Sent(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class Seen(NamedTuple):
    """What a door showed; None for what it does not show at all."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    metadata: str = ""


_MANY: Final = tuple(Sent(b"value %d " % number * 20, b"k%d" % number) for number in range(40))

SHAPES: Final[dict[str, Sequence[Sent]]] = {
    "empty value": (Sent(b""),),
    "one byte": (Sent(b"\x00"), Sent(b"x")),
    "every byte there is": (Sent(bytes(range(256))),),
    "a mebibyte": (Sent(bytes(range(256)) * 4096),),
    "a key": (Sent(b"value", b"key"), Sent(b"", b"key")),
    "an empty key": (Sent(b"value", b""),),
    "headers": (Sent(b"value", b"key", (("a", b"1"), ("b", b"\xff"), ("a", b""))),),
    "a tombstone": (Sent(None, b"key"),),
    "gzip": _MANY,
    "snappy": _MANY,
    "lz4": _MANY,
    "zstd": _MANY,
    "a committed transaction": (Sent(b"committed"),),
    "an aborted transaction": (Sent(b"aborted"),),
}
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
COMMITTED, ABORTED = "a committed transaction", "an aborted transaction"
AFTER: Final = Sent(b"after it")
"""Follows an aborted transaction, so that a reader has something to wait for."""


def table(heading: str) -> dict[str, dict[str, str]]:
    """A table of the document: its cells by row and column."""
    section = DOCUMENT.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    _, *columns = rows[0]
    return {name: dict(zip(columns, cells, strict=True)) for name, *cells in rows[2:]}


WRITES: Final = table("What a door can write")
SHOWS: Final = table("What a door shows")


def expected(shape: str, shown: str) -> list[Seen]:
    """What a cell of the second table means for the records of a shape."""
    if shown == "nothing":
        return [Seen(AFTER.value)]
    return [_view(sent, shown) for sent in SHAPES[shape]]


def _view(sent: Sent, shown: str) -> Seen:
    if shown == "all":
        return Seen(*sent)
    value = sent.value or b""
    if shown == "value":
        return Seen(value)
    if shown == "value, key":
        return Seen(value, sent.key or b"")
    assert shown == "value, key, headers as metadata", shown
    pairs = [[name, _text(content)] for name, content in sent.headers]
    return Seen(
        value, sent.key or b"", metadata=json.dumps({"headers": pairs}, separators=(",", ":"))
    )


def _text(content: bytes) -> str | dict[str, str]:
    return {"base64": "/w=="} if content == b"\xff" else content.decode()
