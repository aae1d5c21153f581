"""One connection to one Kafka broker, with the versions both sides know."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pentalog.clients import trust
from pentalog.clients.kafka import messages
from pentalog.clients.kafka.authentication import MECHANISMS, authenticate
from pentalog.clients.kafka.errors import Incompatible, KafkaFailed, Refused, Unreachable
from pentalog.model.kio_schemas import ErrorCode

_LENGTH: Final = struct.Struct(">I")
_CORRELATION: Final = struct.Struct(">i")
_ANSWER_BYTES_MAX: Final = 256 << 20
_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to reach a cluster."""

    timeout_ms: int = 30_000
    client_id: str = "pentalog"
    tls: bool = False
    tls_authorities: str | None = None
    """A file of certificates to trust; None: those of the system."""
    tls_certificate: str | None = None
    """In PEM, the one certificate to trust instead, whatever name it is for."""
    sasl_mechanism: str = ""
    """One of `MECHANISMS`; empty: none."""
    username: str = ""
    password: str = ""

    def __post_init__(self) -> None:
        if self.sasl_mechanism and self.sasl_mechanism not in MECHANISMS:
            known = ", ".join(MECHANISMS)
            raise KafkaFailed(f"SASL mechanism {self.sasl_mechanism!r} is not one of {known}")

    def __repr__(self) -> str:
        return f"ClientOptions(timeout_ms={self.timeout_ms}, client_id={self.client_id!r})"


def parse_servers(text: str) -> list[tuple[str, int]]:
    """`HOST:PORT,...`, with brackets around an IPv6 address."""
    found: list[tuple[str, int]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise KafkaFailed(f"{part!r} is not HOST:PORT, for example 127.0.0.1:9092")
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not found:
        raise KafkaFailed("no server is named; give HOST:PORT, for example 127.0.0.1:9092")
    return found


def _trusting(options: ClientOptions) -> ssl.SSLContext:
    if options.tls_certificate:
        return trust.only(options.tls_certificate)
    try:
        return ssl.create_default_context(cafile=options.tls_authorities)
    except OSError as error:
        raise KafkaFailed(
            f"{options.tls_authorities}: {error.strerror or error}; name a file of certificates"
            " in PEM"
        ) from error


class Connection:
    def __init__(self, host: str, port: int, options: ClientOptions) -> None:
        self.name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.broken = False
        self._options = options
        self._client_id = options.client_id.encode()
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {messages.API_VERSIONS: (0, 0)}
        context = _trusting(options) if options.tls else None
        try:
            self._socket = socket.create_connection((host, port), timeout=options.timeout_ms / 1000)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLError as error:
            self._socket.close()
            raise Unreachable(
                f"{self.name} does not answer in TLS as it should: {error}; name a TLS listener,"
                " and the authorities that its certificate is of"
            ) from error
        except OSError as error:
            raise Unreachable(
                f"cannot reach {self.name}: {error.strerror or error}; start a broker there or "
                "name another one"
            ) from error
        try:
            answer = self.ask(messages.API_VERSIONS, {})
            self._versions |= {
                key.api_key: (key.min_version, key.max_version) for key in answer.api_keys
            }
            if options.sasl_mechanism:
                self._authenticate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.broken = True
        self._socket.close()

    def _authenticate(self) -> None:
        options = self._options
        doing = f"authenticating to {self.name} by {options.sasl_mechanism}"
        answer = self.ask(_SASL_HANDSHAKE, {"mechanism": options.sasl_mechanism})
        if answer.error_code:
            raise Refused(doing, answer.error_code, ", ".join(answer.mechanisms))

        def exchange(token: bytes) -> bytes:
            said = self.ask(_SASL_AUTHENTICATE, {"auth_bytes": token})
            if said.error_code:
                raise Refused(doing, said.error_code, said.error_message)
            return bytes(said.auth_bytes)

        authenticate(options.sasl_mechanism, options.username, options.password, exchange)

    def ask(self, key: int, fields: Mapping[str, Any], *, silent: bool = False) -> Any:
        """Send a request made of plain values and give back the decoded answer."""
        version = self.version(key)
        correlation_id = self._next_correlation_id()
        self.send(messages.request(key, version, correlation_id, self._client_id, fields))
        if silent:
            return None
        return messages.answer(key, version, bytes(self.receive(correlation_id)))

    def send_raw(self, key: int, body: bytes) -> int:
        """Send a request whose body is written already; its correlation id."""
        correlation_id = self._next_correlation_id()
        version = self.version(key)
        self.send(messages.head(key, version, correlation_id, self._client_id) + body)
        return correlation_id

    def send(self, frame: bytes) -> None:
        try:
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
        except OSError as error:
            raise self._broke_off(error) from error

    def receive(self, correlation_id: int, into: bytearray | None = None) -> memoryview:
        """The next answer, its correlation id included; in `into` if it is large enough."""
        try:
            (size,) = _LENGTH.unpack(self._exactly(bytearray(_LENGTH.size), _LENGTH.size))
            if not _CORRELATION.size <= size <= _ANSWER_BYTES_MAX:
                self.close()
                raise KafkaFailed(
                    f"{self.name} announced an answer of {size} bytes: not a Kafka broker?"
                )
            buffer = bytearray(size) if into is None or len(into) < size else into
            data = self._exactly(buffer, size)
        except OSError as error:
            raise self._broke_off(error) from error
        if _CORRELATION.unpack_from(data)[0] != correlation_id:
            self.close()
            raise KafkaFailed(f"{self.name} answered another request than the one that was sent")
        return data

    def version(self, key: int) -> int:
        """The newest version of a request that both sides know."""
        ours_min, ours_max = messages.VERSIONS[key]
        theirs_min, theirs_max = self._versions.get(key, (0, -1))
        version = min(ours_max, theirs_max)
        if version < max(ours_min, theirs_min):
            offered = f"{theirs_min}..{theirs_max}" if theirs_max >= 0 else "nothing"
            raise Incompatible(
                f"{self.name} offers {offered} of {messages.NAMES[key]}; needed is a version in "
                f"{ours_min}..{ours_max}"
            )
        return version

    def _next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _exactly(self, buffer: bytearray, size: int) -> memoryview:
        view, received = memoryview(buffer)[:size], 0
        while received < size:
            step = self._socket.recv_into(view[received:])
            if not step:
                raise ConnectionError("the connection was closed")
            received += step
        return view

    def _broke_off(self, error: OSError) -> Unreachable:
        self.close()
        why = error.strerror or error
        return Unreachable(f"{self.name} broke off: {why}; look at the broker's own log")


def checked(doing: str, code: ErrorCode, text: str | None = None) -> None:
    """Raise what a broker refused."""
    if code:
        raise Refused(doing, code, text)
