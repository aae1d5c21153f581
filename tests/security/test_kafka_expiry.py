"""Logins and tokens that are good for a short time only."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator

import pytest
from secured import RawClient, Secured
from test_kafka_login import MECHANISMS, NOT_AUTHENTICATED, OK, duration, serves, token_login

LIFETIME_MS = 2500


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(
        tmp_path_factory.mktemp("hasty"),
        {
            "connections_max_reauth_ms": LIFETIME_MS,
            "delegation_token_expiry_ms": 700,
            "tls_client_authentication": "none",
        },
    )
    yield made
    made.stop()


def eventually(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def login(client: RawClient) -> int:
    """How long the login is good for."""
    assert client.handshake("PLAIN") == OK
    error, _, lifetime_ms = client.authenticate(b"\0alice\0alice-secret")
    assert error == OK
    return lifetime_ms


def test_a_session_ends_unless_it_is_prolonged(hasty: Secured) -> None:
    with hasty.connect() as client:
        assert login(client) == LIFETIME_MS
        eventually(lambda: not serves(client))
        assert client.closed()


def test_a_session_goes_on_if_it_is_prolonged(hasty: Secured) -> None:
    with hasty.connect() as client, hasty.connect() as later:
        login(client)
        login(later)
        eventually(lambda: not serves(later))  # the time of both is over; they may still log in
        assert login(client) == LIFETIME_MS
        assert serves(client)


def test_an_expired_delegation_token_lets_nobody_in(hasty: Secured) -> None:
    with hasty.connect() as owner:
        login(owner)
        made = owner.call(38, 1, renewers=(), max_lifetime=duration(-1))
    password = base64.b64encode(made.hmac).decode()

    def is_refused() -> bool:
        with hasty.connect() as client:
            return token_login(client, MECHANISMS[0], made.token_id, password) == NOT_AUTHENTICATED

    eventually(is_refused)


def test_tls_works_without_asking_for_certificates(hasty: Secured) -> None:
    with hasty.connect("kafka+tls") as client:
        assert serves(client)
