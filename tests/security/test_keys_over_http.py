"""Keys of signed tokens from an address: a real server that changes its keys, fails and lies."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import jwt
import pytest
from secured import AUDIENCE, ISSUER, Keys, RawClient, Secured, oauth_message
from tests.unit.broker.step_runtime import StepRuntime

from pentalog.broker.bearers import LocalBearers
from pentalog.config import Config, ConfigError
from pentalog.model.errors import Unauthorized
from pentalog.server.keys import fetcher_of

OK = 0


class Issuer:
    """Serves its keys at an address of this machine."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.status = 200
        self.location = ""
        self.asked = 0
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/keys"

    def start(self) -> None:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                content = issuer.answer.encode()
                self.send_response(issuer.status)
                if issuer.location:
                    self.send_header("Location", issuer.location)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = HTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def signers() -> tuple[Keys, Keys]:
    return Keys("one"), Keys("two")


@pytest.fixture
def issuer(signers: tuple[Keys, Keys]) -> Iterator[Issuer]:
    made = Issuer(signers[0].jwks())
    yield made
    made.stop()


class Checks:
    """Tokens checked by the keys of an issuer, at a time that stands still."""

    def __init__(self, issuer: Issuer) -> None:
        self.runtime = StepRuntime()
        config = Config(
            oauth_jwks_url=issuer.url,
            oauth_issuer=ISSUER,
            oauth_audience=(AUDIENCE,),
            oauth_scopes=("kafka",),
        )
        self._bearers = LocalBearers(self.runtime, config, fetcher_of(config))

    def passes(self, token: str) -> bool:
        later = self._bearers.verify(token)
        self.runtime.run()
        try:
            return later.value.who.name == "alice"
        except Unauthorized:
            return False


def test_keys_are_changed_while_the_broker_runs(issuer: Issuer, signers: tuple[Keys, Keys]) -> None:
    one, two = signers
    checks = Checks(issuer)
    assert checks.passes(one.token())
    assert issuer.asked == 1
    issuer.answer = two.jwks()
    # Strangers with made-up keys do not make the broker ask again and again.
    assert not any(checks.passes(two.token()) for _ in range(5))
    assert issuer.asked == 1
    checks.runtime.advance(5_000)
    assert checks.passes(two.token())
    assert issuer.asked == 2
    assert not checks.passes(one.token())
    assert issuer.asked == 2


def test_keys_serve_on_while_the_issuer_is_down(issuer: Issuer, signers: tuple[Keys, Keys]) -> None:
    one, two = signers
    checks = Checks(issuer)
    assert checks.passes(one.token())
    issuer.stop()
    try:
        checks.runtime.advance(600_000)
        assert checks.passes(one.token())
        assert not checks.passes(two.token())
        issuer.answer = two.jwks()
    finally:
        issuer.start()
    checks.runtime.advance(5_000)
    assert checks.passes(two.token())


def test_an_issuer_that_was_down_at_first_is_asked_again(
    issuer: Issuer, signers: tuple[Keys, Keys]
) -> None:
    one, _ = signers
    claims = jwt.decode(one.token(), options={"verify_signature": False})
    nameless = jwt.encode(claims, one.private, "RS256")  # by the only key there is
    issuer.status = 503
    checks = Checks(issuer)
    assert not checks.passes(nameless)
    issuer.status = 200
    assert not checks.passes(nameless)
    checks.runtime.advance(5_000)
    assert checks.passes(nameless)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "<html>please log in</html>",
        "[]",
        "{}",
        '{"keys": 5}',
        '{"keys": [7]}',
        '{"keys": [{"kty": "RSA", "kid": "one", "n": "!", "e": "AQAB"}]}',
        '{"keys": [{"kty": "oct", "kid": "one", "k": "c2VjcmV0"}], "keys": null}',
        '{"keys": [' + " " * (1 << 21) + "]}",
    ],
    ids=range(9),
)
def test_what_is_no_set_of_keys_is_not_taken_for_one(
    issuer: Issuer, signers: tuple[Keys, Keys], answer: str
) -> None:
    one, two = signers
    checks = Checks(issuer)
    right, issuer.answer = issuer.answer, answer
    assert not checks.passes(one.token())
    issuer.answer = right
    checks.runtime.advance(5_000)
    assert checks.passes(one.token())
    issuer.answer = answer
    checks.runtime.advance(600_000)
    assert checks.passes(one.token())
    assert not checks.passes(two.token())


def test_keys_of_kinds_not_known_here_spoil_no_others(
    issuer: Issuer, signers: tuple[Keys, Keys]
) -> None:
    one, _ = signers
    keys = json.loads(one.jwks())["keys"]
    issuer.answer = json.dumps({"keys": [{"kty": "FUTURE", "kid": "x"}, *keys]})
    assert Checks(issuer).passes(one.token())


def test_keys_are_fetched_only_from_where_nobody_can_change_them(
    issuer: Issuer, signers: tuple[Keys, Keys]
) -> None:
    for url in (
        "",
        "file:///etc/passwd",
        "http://issuer.example/keys",
        "http://localhost.issuer.example/keys",
        "http://localhost@issuer.example/keys",
        "http://127.0.0.1.issuer.example/keys",
        "http://[",
    ):
        with pytest.raises(ConfigError, match="https"):
            fetcher_of(Config(oauth_jwks_url=url))
    one, _ = signers
    checks = Checks(issuer)
    issuer.status, issuer.location = 302, "http://127.0.0.2:1/keys"
    with pytest.raises(OSError, match="not https"):
        fetcher_of(Config(oauth_jwks_url=issuer.url))()
    assert not checks.passes(one.token())


def test_a_client_logs_in_by_keys_from_an_address(
    tmp_path: Path, issuer: Issuer, signers: tuple[Keys, Keys]
) -> None:
    one, two = signers

    def login(client: RawClient, token: str) -> int:
        assert client.handshake("OAUTHBEARER") == OK
        error, _, _ = client.authenticate(oauth_message(token))
        return error

    settings = {"oauth_jwks_file": "", "oauth_jwks_url": issuer.url}
    secured = Secured(tmp_path / "broker", settings)
    try:
        with secured.connect() as client:
            assert login(client, one.token()) == OK
        assert issuer.asked == 1
        with secured.connect() as client:
            # Refused, in OAUTHBEARER's way: by an answer that says so.
            assert client.handshake("OAUTHBEARER") == OK
            error, said, _ = client.authenticate(oauth_message(two.token()))
            assert error == OK
            assert b"invalid_token" in said
    finally:
        secured.stop()
