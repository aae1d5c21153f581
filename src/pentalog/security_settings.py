"""The settings about security, and addresses; `config.Config` has them among its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

T = TypeVar("T")

MASK: Final = "***"
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)([^\s'\"<>]*[^\s'\"<>.,:;])")
_PORT: Final = re.compile(r"[^:]*|[^:]*:\d*|\[[^]]*\](:\d*)?")
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class Secrets(tuple[str, ...]):
    """Texts that are not shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{len(self)}, not shown"

    __str__ = __repr__


def mask_urls(text: str) -> str:
    """Replace credentials inside URLs: the user and password, and the values of the query."""
    return _URL.sub(_masked, text) if "://" in text else text


def _masked(url: re.Match[str]) -> str:
    scheme, rest = url.groups()
    where, mark, query = rest.partition("?" if "?" in rest else "#")
    if "@" not in where and "@" in rest and not _PORT.fullmatch(where.partition("/")[0]):
        where, mark, query = rest, "", ""  # the question mark is part of a password
    if "@" in where:
        where = f"{MASK}@{where.rpartition('@')[2]}"
    pairs = [pair.partition("=") for pair in re.split("[&#;]", query)]
    shown = "&".join(f"{name}={MASK}" if equals else MASK for name, equals, _ in pairs)
    return f"{scheme}{where}{mark}{shown if mark else ''}"


class Principals(tuple[str, ...]):
    """Who somebody is, `KIND:NAME` each."""

    __slots__ = ()


class ConsoleAddress(str):
    """`HOST:PORT`, or `off`."""

    __slots__ = ()

    @property
    def served(self) -> bool:
        return self != "off"

    @property
    def host(self) -> str:
        return self.rpartition(":")[0].strip("[]")


@dataclass(frozen=True, slots=True)
class Listen:
    """One `NAME=HOST:PORT`; port 0 picks a free one."""

    name: str
    """Of the door, and what is demanded there: `kafka+sasl+tls`."""
    host: str
    port: int

    @property
    def door(self) -> str:
        return self.name.partition("+")[0]

    @property
    def demands(self) -> frozenset[str]:
        return frozenset(self.name.split("+")[1:])

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}={host}:{self.port}"


def setting(default: T, text: str, *, least: int = 0, most: int = _INT64_MAX) -> T:
    metadata = {"text": text, "least": least, "most": most}
    if isinstance(default, dict):
        return cast("T", field(default_factory=dict, metadata=metadata))
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    super_users: Principals = setting(  # noqa: RUF009  # never changed
        Principals(), "Who may do everything, separated by semicolons: `User:admin;User:ops`."
    )
    authorization: bool = setting(
        False, "Ask the rules before anything is done; always so when there are super users."
    )
    allow_everyone_without_rule: bool = setting(
        False, "What no rule names is open to everybody, as allow.everyone.if.no.acl.found says."
    )
    allow_open_listeners: bool = setting(
        False, "Let listeners that ask nobody who he is be reached from other machines."
    )
    listener_principals: Mapping[str, str] = setting(
        {}, "Who everybody is that comes through a listener, `NAME=KIND:NAME` each."
    )
    tls_certificate: str = setting("", "PEM file with the certificate of TLS listeners.")
    tls_key: str = setting("", "PEM file with its key; absent: it is in the certificate's file.")
    tls_client_ca: str = setting("", "PEM file with whoever may sign certificates of clients.")
    tls_client_authentication: str = setting(
        "none", "Certificates of clients are not asked for (none), requested or required."
    )
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT", "Rules that turn the subject of a certificate into a name, in Kafka's syntax."
    )
    tls_handshake_timeout_ms: int = setting(
        10_000, "Time a client has to finish a TLS handshake.", least=1, most=_INT32_MAX
    )
    cursus_tls_accepts_plaintext: bool = setting(
        False, "Serve clients without TLS on Cursus' TLS listeners too, told by their first byte."
    )
    sasl_mechanisms: tuple[str, ...] = setting(
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        "How clients may log in where a listener demands SASL; also OAUTHBEARER and GSSAPI.",
    )
    connections_max_reauth_ms: int = setting(
        0, "A SASL login is good for this long; 0: as long as the connection.", most=_INT32_MAX
    )
    login_timeout_ms: int = setting(
        30_000, "Time a client has to log in where it must.", least=1, most=_INT32_MAX
    )
    console_session_idle_ms: int = setting(
        30 * 60 * 1000,
        "A user of the console who does nothing for this long must log in again.",
        least=1_000,
        most=_INT32_MAX,
    )
    console_session_ms_max: int = setting(
        12 * 3600 * 1000,
        "A user of the console must log in again after this long.",
        least=1_000,
        most=_INT32_MAX,
    )
    oauth_jwks_file: str = setting("", "File with the keys that signed tokens are checked by.")
    oauth_jwks_url: str = setting("", "Where these keys are fetched from instead.")
    oauth_issuer: str = setting("", "The issuer tokens must name; absent: any.")
    oauth_audience: tuple[str, ...] = setting((), "Tokens must be for one of these; absent: any.")
    oauth_scopes: tuple[str, ...] = setting((), "Tokens must carry all of these.")
    oauth_principal_claim: str = setting("sub", "The claim of a token that names its bearer.")
    oauth_clock_skew_ms: int = setting(
        30_000, "How far a token's times may be off.", most=_INT32_MAX
    )
    kerberos_service: str = setting("kafka", "This service's name for Kerberos.")
    kerberos_keytab: str = setting("", "File with this service's Kerberos keys.")
    delegation_token_secret: Secrets = setting(  # noqa: RUF009  # never changed
        Secrets(), "What delegation tokens are made with; none: there are no tokens."
    )
    delegation_token_lifetime_ms_max: int = setting(
        7 * 24 * 3600 * 1000, "Longest life of a delegation token, renewals included.", least=1
    )
    delegation_token_expiry_ms: int = setting(
        24 * 3600 * 1000, "Life of a delegation token between two renewals.", least=1
    )
    delegation_tokens_per_user_max: int = setting(
        1_000, "Delegation tokens that one user may have asked for.", least=1, most=100_000
    )
    engine_ca: str = setting(
        "", "PEM file with whoever may sign the cluster's certificates; absent: as the system has."
    )
    engine_mechanism: str = setting(
        "SCRAM-SHA-512", "How to log in to the cluster: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."
    )
    engine_user: str = setting("", "Who logs in to the cluster.")
    engine_password: Secrets = setting(  # noqa: RUF009  # never changed
        Secrets(), "The password for that."
    )
