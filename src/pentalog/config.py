"""Every setting of a broker, in one frozen value, and where each came from.

The order of sources is: default, TOML file, environment (`PENTALOG_` and the name in capitals),
flags; later ones win.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pentalog.security_settings import (
    ConsoleAddress,
    Principals,
    Secrets,
    SecuritySettings,
    mask_urls,
)
from pentalog.security_settings import Listen as Listen
from pentalog.security_settings import setting as _setting

_PREFIX: Final = "PENTALOG_"
_PORT_MAX: Final = 65_535
_INT32_MAX: Final = 2**31 - 1
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
_ENGINE: Final = re.compile(r"kafka(\+sasl)?(\+tls)?://[^/,@\s]+:\d{1,5}(,[^/,@\s]+:\d{1,5})*")
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


class LogFormat(StrEnum):
    """How entries of the log are written."""

    TEXT = "text"
    JSON = "json"


class ConfigError(ValueError):
    """A setting is refused; the text names it, where it came from and what would be accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(SecuritySettings):
    data: Path = _setting(  # noqa: RUF009  # the path is never changed
        Path("pentalog-data"), "Directory that holds everything the broker keeps."
    )
    listen: tuple[Listen, ...] = _setting(
        (), "Listeners to open; none: every door on its own port, on 127.0.0.1."
    )
    advertise: Mapping[str, Listen] = _setting(
        {}, "What clients are told to connect to; absent: the address they have reached us at."
    )
    engine: str = _setting(
        "local",
        "Who keeps the records: `local`, this broker; `kafka://HOST:PORT,...`, a Kafka cluster.",
    )
    node_id: int = _setting(0, "This broker's number in the metadata.", most=_INT32_MAX)
    flush_interval_ms: int = _setting(
        100,
        "Longest time a record may wait for the disk; 0 declares the page cache good enough.",
        most=_INT32_MAX,
    )
    journal_bytes: int = _setting(
        64 << 20,
        "Size of the journal through which acknowledged writes reach the disk.",
        least=1 << 20,
        most=1 << 40,
    )
    journal_batch_bytes_max: int = _setting(
        256 << 10, "Larger writes sync their own file instead of passing through the journal."
    )
    auto_create_topics: bool = _setting(True, "Make a topic when a client first asks for it.")
    default_partitions: int = _setting(
        1, "Partitions of a topic that does not say how many.", least=1, most=10_000
    )
    topic_defaults: Mapping[str, str] = _setting(
        {}, "Topic settings by Kafka's names, for topics that do not set them."
    )
    frame_bytes_max: int = _setting(
        100 << 20, "Largest request a client may send.", least=1 << 10, most=_INT32_MAX
    )
    connections_max: int = _setting(10_000, "Connections at a time.", least=1)
    connections_per_address_max: int = _setting(
        5_000, "Connections at a time from one IPv4 address, or one IPv6 network (/64).", least=1
    )
    connections_max_idle_ms: int = _setting(
        600_000,
        "A connection that is idle for this long is closed, where clients expect that; 0: never.",
        least=-1,
        most=_INT32_MAX,
    )
    hang_up_timeout_ms: int = _setting(
        30_000,
        "Time a client has to read its last answers before its connection is closed.",
        least=1,
        most=_INT32_MAX,
    )
    connection_reply_bytes_max: int = _setting(
        8 << 20,
        "Replies a connection may have queued in memory before reading from it stops.",
        least=1 << 10,
    )
    reply_bytes_max: int = _setting(
        512 << 20, "Unread replies of all connections together.", least=1 << 20
    )
    receive_bytes_max: int = _setting(
        1 << 30, "Receive buffers of all connections together.", least=1 << 20
    )
    housekeeping_interval_ms: int = _setting(
        30_000, "How often compaction looks for work.", least=1, most=_INT32_MAX
    )
    retention_interval_ms: int = _setting(
        300_000,
        "How often retention looks for work, 30 s after the start at first.",
        least=1,
        most=_INT32_MAX,
    )
    marks_interval_ms: int = _setting(
        500,
        "How often readers of the data directory are told how far they may read; 0: at a stop.",
        most=_INT32_MAX,
    )
    shutdown_timeout_ms: int = _setting(
        10_000, "How long a stop waits for accepted requests to finish.", most=_INT32_MAX
    )
    producer_expiration_ms: int = _setting(
        24 * 3600 * 1000,
        "A producer silent for this long on a partition is forgotten there.",
        least=1,
    )
    producers_max: int = _setting(
        200_000,
        "Producers remembered by all partitions together; one partition remembers a twentieth.",
        least=20,
        most=_INT32_MAX,
    )
    group_initial_rebalance_delay_ms: int = _setting(
        3_000, "How long a group's first members wait for others to join.", most=_INT32_MAX
    )
    group_session_timeout_ms_min: int = _setting(
        6_000, "Shortest session timeout a group member may choose.", least=1, most=_INT32_MAX
    )
    group_session_timeout_ms_max: int = _setting(
        1_800_000, "Longest session timeout a group member may choose.", least=1, most=_INT32_MAX
    )
    group_size_max: int = _setting(
        _INT32_MAX, "Members a group may have.", least=1, most=_INT32_MAX
    )
    group_member_bytes_max: int = _setting(
        1 << 20, "What one member of a group may say of itself, or be assigned.", least=1 << 10
    )
    group_bytes_max: int = _setting(256 << 20, "Memory for all groups' members.", least=1 << 16)
    offsets_bytes_max: int = _setting(
        512 << 20, "Memory for the committed offsets of all groups together.", least=1 << 16
    )
    retention_leases_max: int = _setting(
        10_000, "Retention leases that may be held by committed offsets.", least=1
    )
    principal_share_percent: int = _setting(
        50, "Part of a common limit for one principal, or address without login.", least=1, most=100
    )
    consumer_session_timeout_ms: int = _setting(
        45_000,
        "A member of a group the broker plans is taken for dead after this long without a word.",
        least=1,
        most=_INT32_MAX,
    )
    consumer_heartbeat_interval_ms: int = _setting(
        5_000,
        "How often members of a group the broker plans are to be heard of.",
        least=1,
        most=_INT32_MAX,
    )
    consumer_session_timeout_ms_min: int = _setting(
        45_000, "Shortest session timeout one group can be given.", least=1, most=_INT32_MAX
    )
    consumer_session_timeout_ms_max: int = _setting(
        60_000, "Longest session timeout one group can be given.", least=1, most=_INT32_MAX
    )
    consumer_heartbeat_interval_ms_min: int = _setting(
        5_000, "Shortest heartbeat interval one group can be given.", least=1, most=_INT32_MAX
    )
    consumer_heartbeat_interval_ms_max: int = _setting(
        15_000, "Longest heartbeat interval one group can be given.", least=1, most=_INT32_MAX
    )
    offsets_retention_minutes: int = _setting(
        10_080,
        "Committed offsets nobody uses any more are forgotten after this time.",
        least=1,
        most=_INT32_MAX,
    )
    transaction_timeout_ms_max: int = _setting(
        900_000, "Longest time a producer may keep a transaction open.", least=1, most=_INT32_MAX
    )
    transactional_id_expiration_ms: int = _setting(
        7 * 24 * 3600 * 1000, "A transactional id unused for this long is forgotten.", least=1
    )
    transactional_ids_max: int = _setting(
        200_000, "Transactional ids that may be known, in use or not.", least=1, most=_INT32_MAX
    )
    subscriptions_max: int = _setting(
        10_000, "Subscriptions that may be open, in use or not.", least=1, most=_INT32_MAX
    )
    subscription_idle_ms_max: int = _setting(
        7 * 24 * 3600 * 1000, "A subscription nobody has used for this long is closed.", least=1
    )
    rustlog_on_kafka_port: bool = _setting(
        True, "Serve RustLog clients, which have Kafka's port built in, on that port too."
    )
    rustlog_strict_groups: bool = _setting(
        False, "Give a RustLog group that has not committed yet nothing, as the original does."
    )
    cursus_session_timeout_ms: int = _setting(
        30_000,
        "A member of a Cursus group is taken for dead after this long without a word.",
        least=1,
        most=_INT32_MAX,
    )
    blipmq_api_keys: Secrets = _setting(  # noqa: RUF009  # never changed
        Secrets(), "Keys that BlipMQ clients may use; none: `dev-key`, on this machine only."
    )
    smart_module_fuel: int = _setting(
        500_000_000, "Instructions a SmartModule may take for one batch.", least=1
    )
    smart_module_memory_bytes_max: int = _setting(
        32 << 20, "Memory a running SmartModule may have.", least=1 << 16, most=_INT32_MAX
    )
    smart_module_timeout_ms: int = _setting(
        1_000, "Time a SmartModule may take for one batch.", least=1, most=_INT32_MAX
    )
    log_format: LogFormat = _setting(  # noqa: RUF009  # never changed
        LogFormat.TEXT,
        "How the log is written to stderr: `text`, or `json` with one object a line.",
    )
    console: ConsoleAddress = _setting(  # noqa: RUF009  # never changed
        ConsoleAddress("127.0.0.1:9645"),
        "Where the web console is served, if it is installed and there is an http listener; `off`.",
    )
    console_pipelines: tuple[Path, ...] = _setting((), "Pipeline files the console shows.")


_SECURITY: Final = {setting.name for setting in fields(SecuritySettings)}
SETTINGS: Final[Mapping[str, Field[Any]]] = MappingProxyType(
    {
        setting.name: setting
        for setting in sorted(fields(Config), key=lambda setting: setting.name in _SECURITY)
    }
)
"""Every setting by its name; `metadata["text"]` says what it is for."""


@dataclass(frozen=True, slots=True)
class Loaded:
    config: Config
    sources: Mapping[str, str]
    """Where each setting came from: `default`, the file, the variable or the flag."""


def load(
    *,
    toml: str = "",
    toml_name: str = "the configuration file",
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Loaded:
    """Settings from all sources.  `flags` holds only those that were given, by setting name."""
    values: dict[str, Any] = {}
    sources = dict.fromkeys(SETTINGS, "default")
    for name, given in _from_toml(toml, toml_name).items():
        _require_known(name, toml_name)
        values[name] = _read(name, given, f"in {toml_name}")
        sources[name] = toml_name
    for name, text in _from_environment(environment or {}).items():
        variable = _PREFIX + name.upper()
        values[name] = _read(name, text, f"from environment variable {variable}")
        sources[name] = variable
    for name, given in (flags or {}).items():
        _require_known(name, "the settings given")
        flag = "--" + name.replace("_", "-")
        values[name] = _read(name, given, f"from {flag}")
        sources[name] = flag
    config = Config(**values)
    _check_together(config)
    return Loaded(config, sources)


def changed(
    config: Config, given: Mapping[str, str], *, topic_defaults: Mapping[str, str]
) -> Config:
    """The same settings with some changed while the broker runs; raises `ConfigError`."""
    values: dict[str, Any] = {"topic_defaults": topic_defaults}
    for name, text in given.items():
        _require_known(name, "the settings to change")
        values[name] = _read(name, text, "changed while running")
    after = replace(config, **values)
    _check_together(after)
    return after


def plain(value: object) -> object:
    """A setting's value as JSON knows it, without the credentials that URLs hold."""
    if isinstance(value, Path | Listen):
        return str(value)
    if isinstance(value, str):
        return mask_urls(value)
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, Secrets):
        return str(value) if value else []
    if isinstance(value, tuple):
        return [plain(entry) for entry in value]
    return value


def _from_toml(text: str, name: str) -> Mapping[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}; correct it there") from error


def _from_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for variable, text in environment.items():
        if not variable.startswith(_PREFIX):
            continue
        name = variable[len(_PREFIX) :].lower()
        if name in SETTINGS:
            found[name] = text
            continue
        # Other programs set variables with our prefix (Kubernetes: PENTALOG_SERVICE_HOST), so
        # only what looks like a slip of the pen is refused.
        meant = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.85)
        if meant:
            raise ConfigError(
                f"environment variable {variable} is not a setting; "
                f"did you mean {_PREFIX}{meant[0].upper()}?"
            )
    return found


def _require_known(name: str, source: str) -> None:
    if name in SETTINGS:
        return
    meant = difflib.get_close_matches(name, SETTINGS, n=1)
    hint = f"did you mean {meant[0]}?" if meant else f"known are {', '.join(SETTINGS)}"
    raise ConfigError(f"unknown setting {name!r} in {source}; {hint}")


def _read(name: str, given: object, source: str) -> object:
    try:
        return _READERS[SETTINGS[name].type](given, SETTINGS[name].metadata)
    except _Unacceptable as flaw:
        shown = "not shown" if SETTINGS[name].type == "Secrets" else mask_urls(repr(given))
        raise ConfigError(f"setting {name} {source} is {shown}; accepted is {flaw}") from None


class _Unacceptable(Exception):
    """What would have been accepted."""


def _read_integer(given: object, limits: Mapping[str, Any]) -> int:
    least, most = limits["least"], limits["most"]
    accepted = f"a whole number from {least} to {most}"
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise _Unacceptable(accepted)
    try:
        number = int(given)
    except ValueError:
        raise _Unacceptable(accepted) from None
    if not least <= number <= most:
        raise _Unacceptable(accepted)
    return number


def _read_log_format(given: object, _: Mapping[str, Any]) -> LogFormat:
    try:
        return LogFormat(str(given).strip().lower())
    except ValueError:
        raise _Unacceptable(" or ".join(LogFormat)) from None


def _read_boolean(given: object, _: Mapping[str, Any]) -> bool:
    if isinstance(given, bool):
        return given
    word = given.strip().lower() if isinstance(given, str) else ""
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise _Unacceptable("true or false")


def _read_path(given: object, _: Mapping[str, Any]) -> Path:
    if isinstance(given, Path):
        return given
    if isinstance(given, str) and given.strip() and "\0" not in given:
        return Path(given)
    raise _Unacceptable("the name of a directory")


def _read_paths(given: object, meta: Mapping[str, Any]) -> tuple[Path, ...]:
    return tuple(_read_path(entry, meta) for entry in _entries(given, "a list of files"))


def _read_console(given: object, _: Mapping[str, Any]) -> ConsoleAddress:
    text = str(given).strip()
    if given is False or text.lower() in ("off", "false", "no"):
        return ConsoleAddress("off")
    try:
        listen = parse_listen(f"console={text}")
    except _Unacceptable:
        raise _Unacceptable("HOST:PORT, for example 127.0.0.1:9645, or off") from None
    return ConsoleAddress(str(listen).partition("=")[2])


def _read_listen(given: object, _: Mapping[str, Any]) -> tuple[Listen, ...]:
    return tuple(parse_listen(entry) for entry in _entries(given, "a list of NAME=HOST:PORT"))


def _read_advertise(given: object, _: Mapping[str, Any]) -> Mapping[str, Listen]:
    entries = [parse_listen(entry) for entry in _entries(given, "a list of NAME=HOST:PORT")]
    for entry in entries:
        if not entry.host:
            raise _Unacceptable("NAME=HOST:PORT with the host that clients are to connect to")
    return {entry.name: entry for entry in entries}


def _entries(given: object, accepted: str) -> Sequence[object]:
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    if isinstance(given, list | tuple):
        return given
    if isinstance(given, Mapping):
        return list(given.values())
    raise _Unacceptable(accepted)


def parse_listen(given: object) -> Listen:
    """`NAME=HOST:PORT`, with brackets around an IPv6 host; an empty host means all there are."""
    if isinstance(given, Listen):
        return given
    accepted = "NAME=HOST:PORT, for example kafka=127.0.0.1:9092 (port 0 picks a free one)"
    if not isinstance(given, str):
        raise _Unacceptable(accepted)
    name, equals, where = given.strip().partition("=")
    host, colon, port = where.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not (name and equals and colon) or (":" in host and not bracketed):
        raise _Unacceptable(accepted)
    if not (port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise _Unacceptable(accepted)
    return Listen(name, host[1:-1] if bracketed else host, int(port))


def _read_secrets(given: object, _: Mapping[str, Any]) -> Secrets:
    accepted = "a list of texts, separated by commas"
    entries = _entries(given, accepted)
    if any(not isinstance(entry, str) for entry in entries):
        raise _Unacceptable(accepted)
    return Secrets(text for entry in entries if (text := str(entry).strip()))


def _read_text(given: object, _: Mapping[str, Any]) -> str:
    if not isinstance(given, str) or not given.isprintable():
        raise _Unacceptable("one line of text")
    return given.strip()


def _read_texts(given: object, _: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_read_secrets(given, {}))


def _read_principals(given: object, _: Mapping[str, Any]) -> Principals:
    accepted = "KIND:NAME, several separated by semicolons, for example User:admin;User:ops"
    entries = given.split(";") if isinstance(given, str) else _entries(given, accepted)
    found = Principals(str(entry).strip() for entry in entries if str(entry).strip())
    if not all(principal.partition(":")[0] and principal.partition(":")[2] for principal in found):
        raise _Unacceptable(accepted)
    return found


def _read_topic_defaults(given: object, _: Mapping[str, Any]) -> Mapping[str, str]:
    accepted = 'settings by Kafka\'s names, for example "retention.ms=1000,segment.bytes=1048576"'
    if isinstance(given, Mapping):
        return dict(_flatten(given, "", accepted))
    found: dict[str, str] = {}
    last = ""
    for entry in _entries(given, accepted):
        if not isinstance(entry, str):
            raise _Unacceptable(accepted)
        name, equals, value = entry.partition("=")
        if equals and name:
            last = name.strip()
            found[last] = value.strip()
        elif last and not equals:
            # A value with a comma in it: cleanup.policy=compact,delete
            found[last] += "," + entry
        else:
            raise _Unacceptable(accepted)
    return found


def _flatten(table: Mapping[Any, object], prefix: str, accepted: str) -> list[tuple[str, str]]:
    """`retention.ms = 1` without quotes is a table in a table for TOML; both mean the same."""
    found: list[tuple[str, str]] = []
    for name, value in table.items():
        if isinstance(value, Mapping):
            found += _flatten(value, f"{prefix}{name}.", accepted)
        elif isinstance(value, bool):
            found.append((f"{prefix}{name}", str(value).lower()))
        elif isinstance(value, str | int | float):
            found.append((f"{prefix}{name}", str(value)))
        else:
            raise _Unacceptable(accepted)
    return found


_READERS: Final[Mapping[Any, Callable[[object, Mapping[str, Any]], object]]] = {
    "Path": _read_path,
    "int": _read_integer,
    "bool": _read_boolean,
    "tuple[Listen, ...]": _read_listen,
    "Mapping[str, Listen]": _read_advertise,
    "Mapping[str, str]": _read_topic_defaults,
    "Secrets": _read_secrets,
    "LogFormat": _read_log_format,
    "ConsoleAddress": _read_console,
    "tuple[Path, ...]": _read_paths,
    "Principals": _read_principals,
    "str": _read_text,
    "tuple[str, ...]": _read_texts,
}


def _check_together(config: Config) -> None:
    _check_security(config)
    if config.engine != "local" and not _ENGINE.fullmatch(config.engine):
        raise ConfigError(
            f"setting engine is {mask_urls(config.engine)!r}; accepted is local, or "
            "kafka://HOST:PORT,... with nodes of a Kafka cluster, also as kafka+tls, kafka+sasl or "
            "kafka+sasl+tls; engine_user and engine_password say who logs in"
        )
    for name, count in Counter(listen.name for listen in config.listen).items():
        if count > 1:
            raise ConfigError(f"setting listen names {name} twice; give each listener once")
    if config.receive_bytes_max < config.frame_bytes_max:
        raise ConfigError(
            f"setting receive_bytes_max is {config.receive_bytes_max}; accepted is at least "
            f"frame_bytes_max, {config.frame_bytes_max}"
        )
    if config.group_session_timeout_ms_max < config.group_session_timeout_ms_min:
        raise ConfigError(
            f"setting group_session_timeout_ms_max is {config.group_session_timeout_ms_max}; "
            f"accepted is at least group_session_timeout_ms_min, "
            f"{config.group_session_timeout_ms_min}"
        )
    if config.journal_batch_bytes_max > config.journal_bytes // 2:
        raise ConfigError(
            f"setting journal_batch_bytes_max is {config.journal_batch_bytes_max}; accepted is at "
            f"most half of journal_bytes, {config.journal_bytes // 2}"
        )
    if config.consumer_heartbeat_interval_ms >= config.consumer_session_timeout_ms:
        raise ConfigError(
            f"setting consumer_heartbeat_interval_ms is {config.consumer_heartbeat_interval_ms}; "
            "accepted is less than consumer_session_timeout_ms, "
            f"{config.consumer_session_timeout_ms}"
        )


def _check_security(config: Config) -> None:
    for listener, principal in config.listener_principals.items():
        if not (principal.partition(":")[0] and principal.partition(":")[2]):
            raise ConfigError(
                f"setting listener_principals says {principal!r} for {listener}; "
                "accepted is NAME=KIND:NAME, for example rustlog=User:edge"
            )
    if config.tls_client_authentication not in ("none", "requested", "required"):
        raise ConfigError(
            f"setting tls_client_authentication is {config.tls_client_authentication!r}; "
            "accepted is none, requested or required"
        )
    if config.tls_client_authentication != "none" and not config.tls_client_ca:
        raise ConfigError(
            f"setting tls_client_authentication is {config.tls_client_authentication}, which "
            "needs tls_client_ca: the file with whoever may sign certificates of clients"
        )
    for mechanism in config.sasl_mechanisms:
        if mechanism not in SASL_MECHANISMS:
            raise ConfigError(
                f"setting sasl_mechanisms names {mechanism!r}; "
                f"accepted are {', '.join(SASL_MECHANISMS)}"
            )
