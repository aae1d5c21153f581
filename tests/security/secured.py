"""A broker with every kind of Kafka listener, its users, and certificates for everybody."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

import pentalog
from pentalog.cli.directory import Directory

ADMIN = "admin"
PASSWORDS = {ADMIN: "admin-pässword", "alice": "alice-secret", "bob": "bob-secret"}
LISTENERS = ("kafka", "kafka+tls", "kafka+sasl", "kafka+sasl+tls")
ISSUER = "https://issuer.example"
AUDIENCE = "pentalog-tests"


class Keys:
    """Somebody who signs tokens."""

    def __init__(self, key_id: str = "one") -> None:
        self.key_id = key_id
        self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def jwks(self) -> str:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.private.public_key()))
        return json.dumps({"keys": [{**public, "kid": self.key_id, "use": "sig"}]})

    def token(self, name: str = "alice", *, lives_s: float = 600, **claims: Any) -> str:
        now = datetime.datetime.now(datetime.UTC)
        claims = {
            "sub": name,
            "iss": ISSUER,
            "aud": AUDIENCE,
            "scope": "kafka",
            "iat": int(now.timestamp()) - 5,
            "exp": int(now.timestamp() + lives_s),
            **claims,
        }
        return jwt.encode(claims, self.private, "RS256", headers={"kid": self.key_id})


@dataclass
class Certificate:
    """Files of one certificate."""

    chain: Path
    key: Path

    @classmethod
    def write(cls, made: trustme.LeafCert, directory: Path, name: str) -> Certificate:
        found = cls(directory / f"{name}.pem", directory / f"{name}.key")
        found.chain.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        found.key.write_bytes(made.private_key_pem.bytes())
        return found


@dataclass
class Secured:
    """A running broker and everything one needs to log in to it."""

    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.authority = trustme.CA()
        self.ca_file = self.directory / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca_file))
        self.server = self.certificate("server", "localhost", "127.0.0.1")
        self.keys = Keys()
        jwks = self.directory / "jwks.json"
        jwks.write_text(self.keys.jwks())
        data = self.directory / "data"
        with Directory(data) as users:
            for name, password in PASSWORDS.items():
                users.set_password(name, password)
        self.broker = pentalog.Broker(
            data,
            **{
                "listen": tuple(f"{name}=127.0.0.1:0" for name in LISTENERS),
                "super_users": f"User:{ADMIN}",
                "tls_certificate": str(self.server.chain),
                "tls_key": str(self.server.key),
                "tls_client_ca": str(self.ca_file),
                "tls_client_authentication": "requested",
                "ssl_principal_mapping_rules": r"RULE:^.*?OU=([^,]*).*$/$1/L,DEFAULT",
                "sasl_mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
                "oauth_jwks_file": str(jwks),
                "oauth_issuer": ISSUER,
                "oauth_audience": AUDIENCE,
                "oauth_scopes": "kafka",
                "oauth_clock_skew_ms": "0",
                "delegation_token_secret": "a secret of the broker",
                **self.settings,
            },
        )
        self.broker.start()

    def certificate(self, name: str, *identities: str, **options: Any) -> Certificate:
        made = self.authority.issue_cert(*identities or (f"{name}.example",), **options)
        return Certificate.write(made, self.directory, name)

    def client_certificate(self, user: str) -> Certificate:
        """One that names a user in its organizational unit, as the mapping rules expect."""
        return self.certificate(f"client-{user}", organization_unit_name=user)

    def address(self, listener: str) -> str:
        return self.broker.address(listener)

    def connect(self, listener: str = "kafka+sasl", host: str = "127.0.0.1") -> RawClient:
        port = int(self.address(listener).rpartition(":")[2])
        plain = socket.create_connection((host, port), timeout=20)
        if "tls" not in listener:
            return RawClient(plain)
        context = ssl.create_default_context(cafile=str(self.ca_file))
        return RawClient(context.wrap_socket(plain, server_hostname="localhost"))

    def stop(self) -> None:
        self.broker.stop()


class RawClient:
    """Requests by hand."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._number = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def frame(self, key: int, version: int, /, **fields: Any) -> bytes:
        """A whole request."""
        schema: Any = load_request_schema(key, version)
        self._number += 1
        flexible = schema.__header_schema__.__flexible__
        head = struct.pack(">hhih", key, version, self._number, 4) + b"test"
        body = _Body()
        entity_writer(schema)(body, schema(**fields))
        whole = head + (b"\0" if flexible else b"") + bytes(body.out)
        return struct.pack(">i", len(whole)) + whole

    def ask(self, key: int, version: int, /, **fields: Any) -> bytes:
        """The answer's bytes behind the correlation id; empty if the broker hung up."""
        self.connection.sendall(self.frame(key, version, **fields))
        return self.answer()

    def call(self, key: int, version: int, /, **fields: Any) -> Any:
        """The answer, read."""
        answer = self.ask(key, version, **fields)
        assert answer, "the broker hung up"
        schema: Any = load_response_schema(key, version)
        start = 1 if schema.__header_schema__.__flexible__ and key != 18 else 0
        found, _ = entity_reader(schema)(memoryview(answer)[start:], 0)
        return found

    def error(self, key: int, version: int, /, **fields: Any) -> int:
        """The code that an answer begins with."""
        answer = self.ask(key, version, **fields)
        schema: Any = load_response_schema(key, version)
        start = 1 if schema.__header_schema__.__flexible__ else 0
        return int.from_bytes(answer[start : start + 2], "big")

    def answer(self) -> bytes:
        size = self._receive(4)
        if len(size) < 4:
            return b""
        whole = self._receive(int.from_bytes(size, "big"))
        return whole[4:]

    def closed(self) -> bool:
        """Does nothing more come, ever?"""
        try:
            return self.connection.recv(1) == b""
        except ConnectionError:
            return True

    def handshake(self, mechanism: str) -> int:
        """The error code."""
        return int.from_bytes(self.ask(17, 1, mechanism=mechanism)[:2], "big")

    def authenticate(self, message: bytes) -> tuple[int, bytes, int]:
        """Error code, what the broker says, and how long the login is good for."""
        answer = self.ask(36, 1, auth_bytes=message)
        if not answer:
            return -1, b"", 0
        error = int.from_bytes(answer[:2], "big")
        size = int.from_bytes(answer[2:4], "big", signed=True)
        behind = 4 + max(0, size)
        length = int.from_bytes(answer[behind : behind + 4], "big")
        said = answer[behind + 4 : behind + 4 + length]
        return error, said, int.from_bytes(answer[behind + 4 + length :][:8], "big")

    def plain(self, name: str, password: str | None = None) -> int:
        """Log in; the error code."""
        assert self.handshake("PLAIN") == 0
        shown = PASSWORDS[name] if password is None else password
        return self.authenticate(f"\0{name}\0{shown}".encode())[0]

    def _receive(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            try:
                part = self.connection.recv(size - len(parts))
            except ConnectionError:
                return parts
            if not part:
                return parts
            parts += part
        return parts


class _Body:
    def __init__(self) -> None:
        self.out = bytearray()

    def write(self, data: bytes) -> int:
        self.out += data
        return len(data)


def oauth_message(token: str) -> bytes:
    return b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01"
