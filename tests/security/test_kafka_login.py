"""Logging in at the Kafka door: every mechanism by raw bytes, and everything that must not work."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import json
import struct
import time
from typing import Any

import jwt
import pytest
from kio.schema.alter_user_scram_credentials.v0.request import ScramCredentialUpsertion
from kio.static.primitive import i8, i32, i64Timedelta
from scramp import ScramClient
from secured import ADMIN, PASSWORDS, Keys, RawClient, Secured, oauth_message

from pentalog.protocols.kafka.codec import uvarint

OK, NOT_AUTHENTICATED, UNSUPPORTED, ILLEGAL_STATE = 0, 58, 33, 34
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def scram(client: RawClient, mechanism: str, name: str, password: str) -> tuple[int, int]:
    """Log in; the error codes of both steps."""
    assert client.handshake(mechanism) == OK
    speaker = ScramClient([mechanism], name, password)
    error, said, _ = client.authenticate(speaker.get_client_first().encode())
    if error:
        return error, 0
    speaker.set_server_first(said.decode())
    final, said, _ = client.authenticate(speaker.get_client_final().encode())
    if not final:
        speaker.set_server_final(said.decode())
    return error, final


def serves(client: RawClient) -> bool:
    """Does it answer what only those who have logged in may ask?"""
    return client.ask(3, 1, topics=()) != b""


@pytest.mark.parametrize("listener", ["kafka+sasl", "kafka+sasl+tls"])
def test_a_password_lets_in(secured: Secured, listener: str) -> None:
    with secured.connect(listener) as client:
        assert client.plain("alice") == OK
        assert serves(client)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_proof_lets_in(secured: Secured, mechanism: str) -> None:
    with secured.connect() as client:
        assert scram(client, mechanism, "alice", PASSWORDS["alice"]) == (OK, OK)
        assert serves(client)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_nonce_said_twice_lets_in_old_clients(secured: Secured, mechanism: str) -> None:
    """As librdkafka did until 2.6.1; `abcdef` is the client's own part of it."""
    with secured.connect() as client:
        said = prove(client, mechanism, "alice", PASSWORDS["alice"], before_nonce="abcdef")
        assert said == OK
        assert serves(client)
    for password, before in ((PASSWORDS["alice"], "abcdeg"), ("wrong", "abcdef")):
        with secured.connect() as client:
            said = prove(client, mechanism, "alice", password, before_nonce=before)
            assert said == NOT_AUTHENTICATED


@pytest.mark.parametrize("name", ["alice", "nobody-there"])
def test_a_wrong_password_lets_nobody_in(secured: Secured, name: str) -> None:
    with secured.connect() as client:
        assert client.plain(name, "wrong") == NOT_AUTHENTICATED
        assert client.closed()
    with secured.connect() as client:  # the next one is not punished for it
        assert client.plain("alice") == OK


@pytest.mark.parametrize("name", ["alice", "nobody-there"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_proof_lets_nobody_in(secured: Secured, mechanism: str, name: str) -> None:
    with secured.connect() as client:
        assert scram(client, mechanism, name, "wrong") == (OK, NOT_AUTHENTICATED)
        assert client.closed()
    with secured.connect() as client:
        assert client.plain("alice") == OK


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_requests_behind_a_wrong_proof_are_never_served(secured: Secured, mechanism: str) -> None:
    with secured.connect() as client:
        assert client.handshake(mechanism) == OK
        speaker = ScramClient([mechanism], ADMIN, "wrong")
        _, said, _ = client.authenticate(speaker.get_client_first().encode())
        speaker.set_server_first(said.decode())
        client.connection.sendall(
            client.frame(36, 1, auth_bytes=speaker.get_client_final().encode())
            + create_topic(client, "behind-a-wrong-proof") * 3
        )
        assert client.answer()[:2] == struct.pack(">h", NOT_AUTHENTICATED)
        assert client.closed()
    assert "behind-a-wrong-proof" not in topics(secured)


def first_message(secured: Secured, mechanism: str) -> bytes:
    """Of somebody who could log in."""
    if mechanism == "PLAIN":
        return b"\0" + ADMIN.encode()
    if mechanism == "OAUTHBEARER":
        return oauth_message(BAD_TOKENS["expired"](secured.keys))
    speaker = ScramClient([mechanism], ADMIN, PASSWORDS[ADMIN])
    return str(speaker.get_client_first()).encode()


@pytest.mark.parametrize("with_mechanism", [True, False])
@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS, "OAUTHBEARER"])
def test_requests_before_the_end_of_a_login_are_never_served(
    secured: Secured, mechanism: str, with_mechanism: bool
) -> None:
    """Sent at once with its beginning, or with all of it but the last word."""
    name = f"too-early-{mechanism}-{with_mechanism}"
    with secured.connect() as client:
        begun = client.frame(17, 1, mechanism=mechanism)
        if with_mechanism:
            begun += client.frame(36, 1, auth_bytes=first_message(secured, mechanism))
        client.connection.sendall(begun + create_topic(client, name) * 2)
        while client.answer():
            pass
        assert client.closed()
    assert name not in topics(secured)
    with secured.connect() as client:
        assert client.plain("alice") == OK


@pytest.mark.parametrize(("chosen", "spoken"), [MECHANISMS, MECHANISMS[::-1]])
def test_a_proof_of_another_mechanism_proves_nothing(
    secured: Secured, chosen: str, spoken: str
) -> None:
    with secured.connect() as client:
        assert client.handshake(chosen) == OK
        speaker = ScramClient([spoken], "alice", PASSWORDS["alice"])
        _, said, _ = client.authenticate(speaker.get_client_first().encode())
        speaker.set_server_first(said.decode())
        assert client.authenticate(speaker.get_client_final().encode())[0] == NOT_AUTHENTICATED
        assert client.closed()
    with secured.connect() as client:
        assert client.plain("alice") == OK


@pytest.mark.parametrize("password", ["wrong", None])
def test_requests_behind_a_password_wait_for_the_verdict(
    secured: Secured, password: str | None
) -> None:
    name = f"behind-a-password-{password}"
    with secured.connect() as client:
        shown = PASSWORDS[ADMIN] if password is None else password
        client.connection.sendall(
            client.frame(17, 1, mechanism="PLAIN")
            + client.frame(36, 1, auth_bytes=f"\0{ADMIN}\0{shown}".encode())
            + create_topic(client, name)
        )
        assert client.answer()[:2] == b"\0\0"
        error = int.from_bytes(client.answer()[:2], "big")
        assert error == (OK if password is None else NOT_AUTHENTICATED)
        assert bool(client.answer()) == (password is None)
    assert (name in topics(secured)) == (password is None)


@pytest.mark.parametrize("key", [0, 1, 3, 10, 19, 22, 29, 36, 60])
def test_nothing_is_served_before_a_login(secured: Secured, key: int) -> None:
    with secured.connect() as client:
        body = struct.pack(">hhih", key, 1, 1, 4) + b"test" + bytes(16)
        client.connection.sendall(struct.pack(">i", len(body)) + body)
        assert client.closed()


def test_what_is_served_may_be_asked_by_everybody(secured: Secured) -> None:
    with secured.connect() as client:
        assert client.call(18, 0).api_keys
        assert client.plain("alice") == OK


def test_a_message_without_a_mechanism_is_not_heard(secured: Secured) -> None:
    with secured.connect() as client:
        message = client.frame(36, 1, auth_bytes=f"\0{ADMIN}\0{PASSWORDS[ADMIN]}".encode())
        client.connection.sendall(message)
        assert client.closed()


def test_a_mechanism_cannot_be_chosen_twice(secured: Secured) -> None:
    with secured.connect() as client:
        assert client.handshake("SCRAM-SHA-512") == OK
        client.connection.sendall(client.frame(17, 1, mechanism="PLAIN"))
        assert client.closed()


@pytest.mark.parametrize("mechanism", ["", "SCRAM-SHA-1", "scram-sha-256", "ANONYMOUS", "EXTERNAL"])
def test_weaker_mechanisms_are_not_offered(secured: Secured, mechanism: str) -> None:
    with secured.connect() as client:
        answer = client.call(17, 1, mechanism=mechanism)
        assert int(answer.error_code) == UNSUPPORTED
        assert answer.mechanisms == ("PLAIN", *MECHANISMS, "OAUTHBEARER")
        assert client.closed()
    with secured.connect() as client:
        assert client.plain("alice") == OK


@pytest.mark.parametrize(
    "message",
    [b"", b"\0", b"alice\0secret", b"\0alice\0", b"\0\0alice-secret", b"bob\0alice\0alice-secret",
     b"\0alice\0alice-secret\0", b"\xff\0alice\0alice-secret"],
)  # fmt: skip
def test_broken_passwords(secured: Secured, message: bytes) -> None:
    with secured.connect() as client:
        assert client.handshake("PLAIN") == OK
        assert client.authenticate(message)[0] == NOT_AUTHENTICATED
        assert client.closed()
    with secured.connect() as client:
        assert client.plain("alice") == OK


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"n,,n=,r=x", b"y,,n=alice", b"p=tls-unique,,n=alice,r=abc", b"n,,n=al=ice,r=abc",
     b"n,a=bob,n=alice,r=abc", b"\xff\xff", b"n,,m=x,n=alice,r=abc"],
)  # fmt: skip
def test_broken_first_messages(secured: Secured, message: bytes) -> None:
    with secured.connect() as client:
        assert client.handshake("SCRAM-SHA-256") == OK
        assert client.authenticate(message)[0] == NOT_AUTHENTICATED
        assert client.closed()
    with secured.connect() as client:
        assert client.plain("alice") == OK


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_conversation_cannot_be_replayed(secured: Secured, mechanism: str) -> None:
    said = []
    with secured.connect() as client:
        assert client.handshake(mechanism) == OK
        speaker = ScramClient([mechanism], "alice", PASSWORDS["alice"])
        said.append(speaker.get_client_first().encode())
        speaker.set_server_first(client.authenticate(said[0])[1].decode())
        said.append(speaker.get_client_final().encode())
        assert client.authenticate(said[1])[0] == OK
    with secured.connect() as client:
        assert client.handshake(mechanism) == OK
        assert client.authenticate(said[0])[0] == OK
        assert client.authenticate(said[1])[0] == NOT_AUTHENTICATED
        assert client.closed()
    with secured.connect() as client:
        assert client.plain("alice") == OK


def test_the_oldest_handshake_takes_bare_messages(secured: Secured) -> None:
    with secured.connect() as client:
        assert client.ask(17, 0, mechanism="PLAIN")[:2] == b"\0\0"
        message = f"\0alice\0{PASSWORDS['alice']}".encode()
        client.connection.sendall(struct.pack(">i", len(message)) + message)
        assert client.connection.recv(4) == b"\0\0\0\0"
        assert serves(client)
    with secured.connect() as client:
        assert client.ask(17, 0, mechanism="PLAIN")[:2] == b"\0\0"
        client.connection.sendall(struct.pack(">i", 8) + b"\0alice\0x")
        assert client.closed()
    with secured.connect() as client:
        assert client.plain("alice") == OK


def test_listeners_without_a_login_say_so(secured: Secured) -> None:
    with secured.connect("kafka") as client:
        assert client.handshake("PLAIN") == ILLEGAL_STATE
        assert client.authenticate(b"\0alice\0alice-secret")[0] == ILLEGAL_STATE


def test_a_signed_token_lets_in(secured: Secured) -> None:
    with secured.connect() as client:
        assert client.handshake("OAUTHBEARER") == OK
        error, _, lifetime_ms = client.authenticate(oauth_message(secured.keys.token(lives_s=60)))
        assert error == OK
        assert 0 < lifetime_ms <= 60_000
        assert serves(client)


def unsigned(keys: Keys) -> str:
    _, claims, _ = keys.token().split(".")
    head = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": "one"}).encode())
    return head.rstrip(b"=").decode() + f".{claims}."


def signed_by_the_public_key(keys: Keys) -> str:
    """The oldest trick: what everybody knows, used as a secret that two share."""
    secret = keys.jwks().encode()
    head, claims = ({"alg": "HS256", "kid": "one"}, jwt.decode(keys.token(), options={
        "verify_signature": False}))  # fmt: skip
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (head, claims)
    ]
    proof = hmac.digest(secret, b".".join(parts), hashlib.sha256)
    return b".".join([*parts, base64.urlsafe_b64encode(proof).rstrip(b"=")]).decode()


BAD_TOKENS: dict[str, Any] = {
    "expired": lambda keys: keys.token(lives_s=-1),
    "not yet good": lambda keys: keys.token(nbf=int(time.time()) + 600),
    "wrong audience": lambda keys: keys.token(aud="another"),
    "wrong issuer": lambda keys: keys.token(iss="https://elsewhere.example"),
    "no scope": lambda keys: keys.token(scope="other"),
    "nobody": lambda keys: keys.token(sub=""),
    "unsigned": unsigned,
    "shared secret": signed_by_the_public_key,
    "wrong key": lambda keys: Keys("one").token(),
    "unknown key": lambda keys: Keys("two").token(),
    "changed": lambda keys: keys.token()[:-6] + "AAAAAA",
    "no token": lambda keys: "abc",
}


@pytest.mark.parametrize("flaw", BAD_TOKENS)
def test_tokens_that_prove_nothing(secured: Secured, flaw: str) -> None:
    with secured.connect() as client:
        assert client.handshake("OAUTHBEARER") == OK
        error, said, _ = client.authenticate(oauth_message(BAD_TOKENS[flaw](secured.keys)))
        assert (error, json.loads(said)) == (OK, {"status": "invalid_token"})
        assert client.authenticate(b"\x01")[0] == NOT_AUTHENTICATED
        assert client.closed()
    with secured.connect() as client:
        assert client.plain("alice") == OK


def test_whoever_goes_on_after_a_refused_token_is_not_served(secured: Secured) -> None:
    with secured.connect() as client:
        assert client.handshake("OAUTHBEARER") == OK
        assert client.authenticate(oauth_message("abc"))[0] == OK
        client.connection.sendall(create_topic(client, "behind-a-refused-token"))
        assert client.closed()
    assert "behind-a-refused-token" not in topics(secured)


def test_a_login_is_prolonged_by_the_same_user_only(secured: Secured) -> None:
    with secured.connect() as client:
        assert client.plain("alice") == OK
        assert client.plain("alice") == OK
        assert serves(client)
        assert client.plain("bob") == NOT_AUTHENTICATED
        assert client.closed()
    with secured.connect() as client:
        assert client.plain("alice") == OK
        assert client.handshake("SCRAM-SHA-256") == UNSUPPORTED
        assert client.closed()
    with secured.connect() as client:
        assert client.plain("alice") == OK
        client.connection.sendall(
            client.frame(17, 1, mechanism="PLAIN") + client.frame(3, 1, topics=())
        )
        assert client.answer()  # to the handshake
        assert client.closed()


def test_a_delegation_token_lets_in_as_its_owner(secured: Secured) -> None:
    with secured.connect() as owner:
        assert owner.plain("alice") == OK
        made = owner.call(38, 1, renewers=(), max_lifetime=duration(3_600_000))
        assert int(made.error_code) == OK
        assert (made.principal_type, made.principal_name) == ("User", "alice")
        password = base64.b64encode(made.hmac).decode()
        for mechanism in MECHANISMS:
            with secured.connect() as client:
                assert token_login(client, mechanism, made.token_id, password) == OK
                assert serves(client)
                # A token cannot make others.
                assert client.error(38, 1, renewers=(), max_lifetime=duration(-1)) == 64
        with secured.connect() as client:
            assert token_login(client, MECHANISMS[0], made.token_id, "wrong") == NOT_AUTHENTICATED
        with secured.connect() as client:  # without the extension the name is a user's
            assert scram(client, MECHANISMS[0], made.token_id, password)[1] == NOT_AUTHENTICATED
        renewed = owner.call(39, 1, hmac=made.hmac, renew_period=duration(1_000_000))
        assert int(renewed.error_code) == OK
        listed = owner.call(41, 1, owners=None)
        assert [token.token_id for token in listed.tokens] == [made.token_id]
        assert listed.tokens[0].hmac == made.hmac
        ended = owner.call(40, 1, hmac=made.hmac, expiry_time_period=duration(-1))
        assert int(ended.error_code) == OK
        assert owner.call(41, 1, owners=None).tokens == ()
        assert owner.error(39, 1, hmac=made.hmac, renew_period=duration(-1)) == 62
        with secured.connect() as client:
            assert token_login(client, MECHANISMS[0], made.token_id, password) == NOT_AUTHENTICATED
    with secured.connect() as client:
        assert client.plain("alice") == OK


def test_tokens_of_others_are_nobodys_business(secured: Secured) -> None:
    with secured.connect() as owner, secured.connect() as other:
        assert (owner.plain("alice"), other.plain("bob")) == (OK, OK)
        made = owner.call(38, 1, renewers=(), max_lifetime=duration(-1))
        assert other.call(41, 1, owners=None).tokens == ()
        assert other.error(40, 1, hmac=made.hmac, expiry_time_period=duration(-1)) == 63
        foreign = other.error(
            38, 3, renewers=(), max_lifetime=duration(-1),
            owner_principal_type="User", owner_principal_name="alice",
        )  # fmt: skip
        assert foreign == 65
        owner.call(40, 1, hmac=made.hmac, expiry_time_period=duration(-1))
    with secured.connect("kafka") as anonymous:
        assert anonymous.error(38, 1, renewers=(), max_lifetime=duration(-1)) == 64


def token_login(client: RawClient, mechanism: str, token_id: str, password: str) -> int:
    """As Kafka's clients do: by an extension, which is part of what is proved."""
    return prove(client, mechanism, token_id, password, ",tokenauth=true")


def prove(
    client: RawClient,
    mechanism: str,
    name: str,
    password: str,
    extension: str = "",
    before_nonce: str = "",
) -> int:
    """SCRAM by hand; the error code of the last step."""
    assert client.handshake(mechanism) == OK
    digest = hashlib.sha256 if mechanism == MECHANISMS[0] else hashlib.sha512
    bare = f"n={name},r=abcdef{extension}"
    error, said, _ = client.authenticate(f"n,,{bare}".encode())
    assert error == OK
    nonce, salt, iterations = (part[2:] for part in said.decode().split(","))
    salted = hashlib.pbkdf2_hmac(
        digest().name, password.encode(), base64.b64decode(salt), int(iterations)
    )
    key = hmac.digest(salted, b"Client Key", digest)
    final = f"c=biws,r={before_nonce}{nonce}"
    signature = hmac.digest(
        digest(key).digest(), f"{bare},{said.decode()},{final}".encode(), digest
    )
    proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
    return client.authenticate(f"{final},p={base64.b64encode(proof).decode()}".encode())[0]


def duration(ms: int) -> i64Timedelta:
    return i64Timedelta.parse(datetime.timedelta(milliseconds=ms))


def create_topic(client: RawClient, name: str) -> bytes:
    """CreateTopics 5 for one topic."""
    body = b"\0" + uvarint(2) + uvarint(len(name) + 1) + name.encode()
    body += struct.pack(">ih", 1, 1) + b"\1\1\0" + struct.pack(">i", 30_000) + b"\0\0"
    head = struct.pack(">hhih", 19, 5, 77, 4) + b"test"
    return struct.pack(">i", len(head + body)) + head + body


def topics(secured: Secured) -> set[str]:
    with secured.connect() as client:
        assert client.plain(ADMIN) == OK
        return {str(topic.name) for topic in client.call(3, 1, topics=None).topics}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_short_salts_of_other_tools_serve(secured: Secured, mechanism: str) -> None:
    """Refused by the library that speaks SCRAM here, made by clients there are."""
    digest = hashlib.sha256 if mechanism == MECHANISMS[0] else hashlib.sha512
    salted = hashlib.pbkdf2_hmac(digest().name, b"short", b"salt", 4096)
    upsertion = ScramCredentialUpsertion(
        name="shorty",
        mechanism=i8(1 + MECHANISMS.index(mechanism)),
        iterations=i32(4096),
        salt=b"salt",
        salted_password=salted,
    )
    with secured.connect() as admin:
        assert admin.plain(ADMIN) == OK
        answer = admin.call(51, 0, deletions=(), upsertions=(upsertion,))
        assert [int(result.error_code) for result in answer.results] == [OK]
    for password, error in (("short", OK), ("long", NOT_AUTHENTICATED)):
        with secured.connect() as client:
            assert prove(client, mechanism, "shorty", password) == error
        with secured.connect() as client:
            assert client.plain("shorty", password) == error
    with secured.connect() as client:
        assert client.plain("alice") == OK
