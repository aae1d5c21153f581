"""Options of `format("pentalog")`: read once, checked, and then one frozen value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pentalog.clients.kafka import ClientOptions
from pentalog.clients.kafka.authentication import MECHANISMS

DECODINGS: Final = ("none", "utf8", "json", "cursus")
VIEWS: Final = ("records", "offsets")

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIMES: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionRefused(ValueError):
    """An option cannot be used; the text says which, why, and what would be accepted."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    servers: str = ""
    data: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    starting: str = "earliest"
    ending: str = "latest"
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    rows_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    columns: tuple[str, ...] = ()
    decode: str = "none"
    json_schema: str = ""
    rows_per_batch: int = 10_000
    split_bytes: int = 64 << 20
    partitions_min: int = 1
    fail_on_data_loss: bool = True
    group: str = ""
    lease_ms: int = 0
    lease_bytes: int = 10 << 30
    view: str = "records"
    pushdown: bool = False
    """Take filters from Spark; only for a DataFrame that one query uses once."""
    client: ClientOptions = field(default_factory=ClientOptions)


def _number(least: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise OptionRefused(f"{name} = {text!r}: accepted is a number from {least} on")
        return int(text)

    return read


def _size(name: str, text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None or not int(match[1]):
        raise OptionRefused(f"{name} = {text!r}: accepted is a size such as 64m or 1073741824")
    return int(match[1]) * _SIZES[match[2]]


def _time(name: str, text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)?", text.strip().lower())
    if match is None:
        raise OptionRefused(f"{name} = {text!r}: accepted is a time such as 30m or 90000 (ms)")
    return int(match[1]) * _TIMES[match[2] or "ms"]


def _switch(name: str, text: str) -> bool:
    if text.strip().lower() in _TRUE:
        return True
    if text.strip().lower() in _FALSE:
        return False
    raise OptionRefused(f"{name} = {text!r}: accepted are true and false")


def _one_of(*accepted: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text.strip().lower() not in accepted:
            raise OptionRefused(f"{name} = {text!r}: accepted are {', '.join(accepted)}")
        return text.strip().lower()

    return read


def _text(_: str, text: str) -> str:
    return text.strip()


def _as_it_is(_: str, text: str) -> str:
    return text


def _list(_: str, text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


_READ: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "servers": ("servers", _text),
    "data": ("data", _text),
    "topics": ("topics", _list),
    "pattern": ("pattern", _text),
    "starting": ("starting", _text),
    "ending": ("ending", _text),
    "startingTimestampMs": ("starting_timestamp_ms", _number(0)),
    "endingTimestampMs": ("ending_timestamp_ms", _number(0)),
    "maxRowsPerTrigger": ("rows_per_trigger_max", _number(1)),
    "maxBytesPerTrigger": ("bytes_per_trigger_max", _size),
    "columns": ("columns", _list),
    "decode": ("decode", _one_of(*DECODINGS)),
    "schema": ("json_schema", _text),
    "rowsPerBatch": ("rows_per_batch", _number(1)),
    "splitBytes": ("split_bytes", _size),
    "minPartitions": ("partitions_min", _number(1)),
    "failOnDataLoss": ("fail_on_data_loss", _switch),
    "group": ("group", _text),
    "lease": ("lease_ms", _time),
    "leaseBytes": ("lease_bytes", _size),
    "view": ("view", _one_of(*VIEWS)),
    "pushdown": ("pushdown", _switch),
    "isolation": ("isolation", _one_of("committed")),
    "timeoutMs": ("timeout_ms", _number(1)),
    "tls": ("tls", _switch),
    "tlsAuthorities": ("tls_authorities", _text),
    "saslMechanism": ("sasl_mechanism", _text),
    "username": ("username", _text),
    "password": ("password", _as_it_is),
}
_CLIENT: Final = frozenset(
    {"timeout_ms", "tls", "tls_authorities", "sasl_mechanism", "username", "password"}
)
_IGNORED: Final = frozenset({"path"})


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """Names count whatever their case, as everywhere in Spark."""
    known = {name.lower(): name for name in _READ}
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key.lower() in _IGNORED:
            continue
        name = known.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key, _READ, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise OptionRefused(f"there is no option {key!r}{hint} Known: {', '.join(_READ)}")
        field, read = _READ[name]
        values[field] = read(name, text)
    values.pop("isolation", None)
    client = {name: values.pop(name) for name in list(values) if name in _CLIENT}
    options = SourceOptions(**values, client=_client(client))
    _check(options)
    return options


def _client(values: Mapping[str, Any]) -> ClientOptions:
    """What would be left unused is refused: it was given to be safer than without."""
    client = ClientOptions(**values)
    if client.username and not client.sasl_mechanism:
        raise OptionRefused(
            f"username needs saslMechanism as well: accepted are {', '.join(MECHANISMS)}"
        )
    if client.tls_authorities and not client.tls:
        raise OptionRefused("tlsAuthorities needs tls = true: the connection is not encrypted")
    return client


def _check(options: SourceOptions) -> None:
    if not options.servers and not options.data:
        raise OptionRefused(
            "name where to read: servers = HOST:PORT,... (a Kafka door) or data = DIRECTORY"
        )
    if bool(options.topics) == bool(options.pattern):
        raise OptionRefused(
            "name what to read: either topics = a,b or pattern = a regular expression"
        )
    if options.pattern:
        try:
            re.compile(options.pattern)
        except re.error as error:
            raise OptionRefused(f"pattern = {options.pattern!r}: {error}") from error
    if options.decode == "json" and not options.json_schema:
        raise OptionRefused(
            "decode = json needs a schema, for example schema = 'id BIGINT, a DOUBLE'"
        )
    if options.group and not options.servers:
        raise OptionRefused(
            "group needs servers as well: offsets are committed through the Kafka door"
        )
    if options.lease_ms and not options.group:
        raise OptionRefused("lease needs a group: the lease is written with the group's offsets")


def client_options(given: Mapping[str, str]) -> ClientOptions:
    """Those of the connection alone, as writing has them."""
    known = {name.lower(): name for name, (field, _) in _READ.items() if field in _CLIENT}
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = known.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key, known.values(), 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise OptionRefused(
                f"there is no option {key!r} for writing{hint} Known: servers, topic, query,"
                f" batch, transactionTimeoutMs, {', '.join(known.values())}"
            )
        field, read = _READ[name]
        values[field] = read(name, text)
    return _client(values)
