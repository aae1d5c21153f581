"""The text of commands, in both dialects, and the text of replies.

    real      VERB name=value name=value ... message=everything that is left
    document  VERB value value ...

A line is in the document's dialect if its first argument does not begin with the name of a known
parameter.  Bytes that are no UTF-8 pass through unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from pentalog.model.buffers import LARGE_BYTES, join_buffers
from pentalog.protocols.cursus.errors import Refused, quoted
from pentalog.protocols.cursus.frames import strip_blanks

HEAD_BYTES_MAX: Final = 1 << 20
"""Of a command without its message."""
KEY_BYTES_MAX: Final = 65_535
NAME_CHARACTERS_MAX: Final = 1_000
"""Of groups and transactional ids, which are kept."""
_WORDS_MAX: Final = 100
"""Of a command without its message: every word of it becomes an object."""

POSITIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "CREATE": ("topic", "partitions"),
    "DELETE": ("topic",),
    "LIST": (),
    "CONSUME": ("topic", "partition", "offset"),
    "SUBSCRIBE": ("topic", "group"),
    "JOIN_GROUP": ("topic", "group", "member"),
    "LEAVE_GROUP": ("topic", "group", "member"),
    "STREAM": ("topic", "partition", "offset"),
    "COMMIT": ("topic", "group", "partition", "offset"),
    "HEARTBEAT": ("topic", "group", "consumer", "member", "generation"),
    "BATCH_COMMIT": ("topic", "group", "member", "generation", "offsets"),
    "SYNC_GROUP": ("topic", "group", "member", "generation"),
}
"""The commands of the document, and what stands where."""

_PARAMETERS: Final = frozenset(
    {
        "acks", "auth_policy", "auth_token", "autoOffsetReset", "batch", "cleanup_policy",
        "consumer", "epoch", "event_sourcing", "event_type", "features", "from_version",
        "generation", "group", "idempotent", "internal_token", "isIdempotent", "isolation",
        "isolation_level", "key", "member", "message", "metadata", "offset", "ownership_only",
        "partition", "partitioner", "partitions", "payload", "principal", "producerId",
        "producer_id", "read_acl", "replication_factor", "require_features", "result",
        "retention_bytes", "retention_hours", "schema_version", "seqNum", "token", "topic",
        "transaction", "transactional_id", "txn", "type", "validate_only", "version", "wait_ms",
        "write_acl",
    }
)  # fmt: skip
_OPAQUE: Final = frozenset({"event_type", "key", "metadata", "producerId"})
_TOO_LONG: Final = "a command is too long; only its message may be"
_NAME: Final = re.compile(r"([A-Za-z_]+)=")
_BLANKS: Final = b" \t\r\n\v\f"
_MESSAGE: Final = b"message="
_VERB: Final = re.compile(rb"\S+")


class Command(NamedTuple):
    verb: str
    """In capitals."""
    text: str
    """As it was sent."""
    parameters: Mapping[str, str]
    loose: tuple[str, ...]
    """Words that are no parameter."""
    document: bool
    """In the document's dialect, and so is the answer."""
    message: bytes | bytearray | None = None
    """Everything behind `message=`, without blanks around it; None if there is none."""

    @property
    def payload(self) -> bytes | bytearray:
        """The message, which must be there and not empty."""
        if not self.message:
            raise Refused(f"missing_message command={self.verb}")
        return self.message

    def get(self, name: str, default: str = "") -> str:
        return self.parameters.get(name, default)

    def need(self, name: str, code: str | None = None) -> str:
        """A parameter that must be there and not empty."""
        value = self.parameters.get(name, "")
        if not value:
            raise Refused(f"{code or 'missing_' + name} command={self.verb}")
        return value

    def number(self, name: str, refusal: str, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """A parameter that must be a whole number; `refusal` is what is answered otherwise."""
        found = whole_number(self.parameters.get(name, ""))
        if found is None or not least <= found <= most:
            raise Refused(refusal)
        return found


def parse(data: memoryview) -> Command:
    """Read one line; its message is copied as it was sent."""
    head = bytes(data[: HEAD_BYTES_MAX + len(_MESSAGE)])
    verb_end = _VERB.match(head)
    start = head.find(_MESSAGE, verb_end.end() if verb_end else 0)
    if start < 0 and len(data) > HEAD_BYTES_MAX:
        raise Refused(f"message_too_large max={HEAD_BYTES_MAX} reason={quoted(_TOO_LONG)}")
    message = None if start < 0 else _message(data[start + len(_MESSAGE) :])
    head = head if start < 0 else head[:start]
    text = head.decode("utf-8", "surrogateescape")
    words = text.split(None, 1)
    if not words:
        raise Refused('malformed_input reason="empty command"')
    verb = words[0].upper()
    rest = words[1] if len(words) > 1 else ""
    first = rest.split(None, 1)[0] if rest.strip() else ""
    named = _NAME.match(first)
    if first and verb in POSITIONS and (named is None or named[1] not in _PARAMETERS):
        return _positional(verb, text, rest)
    return _named(verb, text, rest, message)


def _message(data: memoryview) -> bytes | bytearray:
    if len(data) < LARGE_BYTES:
        return bytes(data).strip(_BLANKS)
    return join_buffers(strip_blanks(data, _BLANKS))


def _positional(verb: str, text: str, rest: str) -> Command:
    names = POSITIONS[verb]
    values = rest.split(None, len(names) + 1)
    if len(values) != len(names):
        wanted = " ".join((verb, *(f"<{name}>" for name in names)))
        raise Refused(f'invalid_{verb.lower()}_syntax expected="{wanted}"')
    parameters = dict(zip(names, values, strict=True))
    _check(parameters)
    return Command(verb, text, parameters, (), True)


def _named(verb: str, text: str, rest: str, message: bytes | bytearray | None) -> Command:
    parameters: dict[str, str] = {}
    loose: list[str] = []
    words = rest.split(None, _WORDS_MAX)
    if len(words) > _WORDS_MAX:
        raise Refused(f'malformed_input reason="more than {_WORDS_MAX} words"')
    for word in words:
        name, is_pair, value = word.partition("=")
        if is_pair:
            parameters[name] = value
        else:
            loose.append(word)
    _check(parameters)
    return Command(verb, text, parameters, tuple(loose), False, message)


def _check(parameters: Mapping[str, str]) -> None:
    """Names must be text; what is only stored may be any bytes."""
    for name, value in parameters.items():
        if name in _OPAQUE or value.isascii():
            continue
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refused(f"malformed_input reason={quoted(f'{name} is not UTF-8')}") from None


def transaction_of(command: Command) -> str:
    """The transactional id in a command, under any of the names it goes by."""
    names = (command.get(name) for name in ("transactional_id", "txn", "transaction"))
    found = next((name for name in names if name), "")
    if len(found) > NAME_CHARACTERS_MAX:
        reason = f"{len(found)} characters; {NAME_CHARACTERS_MAX} are accepted"
        raise Refused(f"invalid_transactional_id reason={quoted(reason)}")
    return found


def group_named(command: Command) -> str:
    """The group in a command, which must be there."""
    group = command.need("group")
    if len(group) > NAME_CHARACTERS_MAX:
        reason = f"{len(group)} characters; {NAME_CHARACTERS_MAX} are accepted"
        raise Refused(f"invalid_group reason={quoted(reason)}")
    return group


def key_of(command: Command) -> bytes:
    """Return the key of a record; refuses one that no message can hold."""
    key = encoded(command.get("key"))
    if len(key) > KEY_BYTES_MAX:
        raise Refused(f'invalid_payload reason="a key of {len(key)} bytes" max={KEY_BYTES_MAX}')
    return key


def whole_number(text: str) -> int | None:
    """A decimal number of at most 20 digits, maybe with a sign."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20:
        return None
    return int(text)


def truth(text: str) -> bool | None:
    """`true` or `false` in the ways they are written; None if it is neither."""
    lowered = text.lower()
    if lowered in ("true", "1", "t"):
        return True
    return False if lowered in ("false", "0", "f") else None


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
