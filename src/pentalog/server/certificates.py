"""Certificates: the broker's own, looked at again when their files change, and what a client's say.

The subject of a client's certificate becomes a name by rules in the syntax of Kafka's
`ssl.principal.mapping.rules`.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pentalog.broker.security import ANONYMOUS, Principal
from pentalog.config import Config, ConfigError

_log = logging.getLogger("pentalog.server")

_LOOK_INTERVAL_S: Final = 1.0
_VERIFICATION: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_RULE: Final = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_SHORT: Final[Mapping[str, str]] = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""What RFC 2253 calls the parts of a name."""


class NoName(Exception):
    """A certificate whose subject no rule makes a name of."""


class Certificates:
    """What TLS listeners need, as the files say now."""

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        """Raises `ConfigError` if the files cannot be used."""
        self._config = config
        self._clock = clock
        self._looked_s = clock()
        self._stamps = self._stamp()
        self._context = _make_context(config)
        self._rules = MappingRules(config.ssl_principal_mapping_rules)

    def context(self) -> ssl.SSLContext:
        """For the next handshake.  Files that changed are read; if they are no good, the old ones
        serve on."""
        now = self._clock()
        if now - self._looked_s >= _LOOK_INTERVAL_S:
            self._looked_s = now
            stamps = self._stamp()
            if stamps != self._stamps:
                self._stamps = stamps
                self._reload()
        return self._context

    def principal(self, certificate: Mapping[str, Any] | None) -> Principal:
        """Who the bearer of a certificate is; raises `NoName`."""
        if not certificate:
            return ANONYMOUS
        return Principal("User", self._rules.name_of(subject_of(certificate)))

    def _reload(self) -> None:
        try:
            self._context = _make_context(self._config)
        except ConfigError as error:
            _log.error("TLS goes on with the certificates it had: %s", error)
        else:
            _log.info("TLS certificates were read again: their files had changed")

    def _stamp(self) -> list[tuple[int, int] | None]:
        config = self._config
        found: list[tuple[int, int] | None] = []
        for name in (config.tls_certificate, config.tls_key, config.tls_client_ca):
            try:
                status = os.stat(name) if name else None
            except OSError:
                status = None
            found.append(None if status is None else (status.st_mtime_ns, status.st_ino))
        return found


def _make_context(config: Config) -> ssl.SSLContext:
    if not config.tls_certificate:
        raise ConfigError("a TLS listener needs tls_certificate, a PEM file with its certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Nobody comes back by a ticket: a certificate is looked at each time.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"setting tls_certificate is {config.tls_certificate!r}"
            f"{f' and tls_key {config.tls_key!r}' if config.tls_key else ''}, which cannot be "
            f"used: {_cause(error)}; accepted are PEM files of a certificate and its key"
        ) from None
    context.verify_mode = _VERIFICATION[config.tls_client_authentication]
    if config.tls_client_ca:
        try:
            context.load_verify_locations(config.tls_client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"setting tls_client_ca is {config.tls_client_ca!r}, which cannot be used: "
                f"{_cause(error)}; accepted is a PEM file of certificates"
            ) from None
    return context


def _cause(error: OSError) -> str:
    return error.strerror or str(error)


def subject_of(certificate: Mapping[str, Any]) -> str:
    """The subject as RFC 2253 writes it, which is what mapping rules are written for."""
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in several)
        for several in reversed(certificate.get("subject", ()))
    )


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    if text.endswith(" ") and len(text) > 1:
        text = text[:-1] + "\\ "
    return text


class _MappingRule(NamedTuple):
    pattern: re.Pattern[str] | None
    """None: the subject itself is the name."""
    replacement: str = ""
    fold: str = ""

    def name_of(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None
        name = re.sub(
            r"\\(.)|\$(\d+)",
            lambda mark: mark[1] if mark[1] is not None else found.group(int(mark[2])) or "",
            self.replacement,
        )
        return name.lower() if self.fold == "L" else name.upper() if self.fold == "U" else name


class MappingRules:
    """`RULE:PATTERN/REPLACEMENT/[LU]` and `DEFAULT`, separated by commas; the first one wins."""

    def __init__(self, text: str) -> None:
        """Raises `ConfigError`."""
        self._rules = _parse(text.strip() or "DEFAULT")

    def name_of(self, subject: str) -> str:
        for rule in self._rules:
            name = rule.name_of(subject)
            if name:
                return name
        raise NoName(f"no rule of ssl_principal_mapping_rules is about {subject!r}")


def _parse(text: str) -> list[_MappingRule]:
    rules: list[_MappingRule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise _refusal(text, position, "it is neither DEFAULT nor RULE:PATTERN/REPLACEMENT/")
        if found[1]:
            rules.append(_MappingRule(None))
        else:
            try:
                pattern = re.compile(found[2])
            except re.error as flaw:
                raise _refusal(text, position, str(flaw)) from None
            for number in re.findall(r"(?<!\\)\$(\d+)", found[3]):
                if int(number) > pattern.groups:
                    raise _refusal(text, position, f"the pattern has no group {number}")
            rules.append(_MappingRule(pattern, found[3], found[4]))
        position = found.end()
        comma = re.compile(r"\s*(,\s*|$)").match(text, position)
        if comma is None:
            raise _refusal(text, position, "rules are separated by commas")
        position = comma.end()
    return rules


def _refusal(text: str, position: int, flaw: str) -> ConfigError:
    return ConfigError(
        f"setting ssl_principal_mapping_rules is wrong at {text[position : position + 40]!r}: "
        f"{flaw}; accepted is for example RULE:^CN=(.*?),.*$/$1/L,DEFAULT"
    )
