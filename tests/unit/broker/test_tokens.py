"""Delegation tokens: how long they are good, and what of them is kept."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from scramp import ScramClient, ScramMechanism
from step_runtime import StepRuntime

from pentalog.broker.credentials import Mechanism
from pentalog.broker.logins import TOKEN, Proof
from pentalog.broker.security import Principal
from pentalog.broker.state import State
from pentalog.broker.tokens import RENEWERS_MAX, LocalTokens
from pentalog.config import Config
from pentalog.model.errors import InvalidConfig, Overloaded, UserNotFound
from pentalog.security_settings import Secrets

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
CONFIG = Config(
    delegation_token_secret=Secrets(["a secret"]),
    delegation_token_expiry_ms=1_000,
    delegation_token_lifetime_ms_max=5_000,
)
Open = Callable[[], State]


def opened(state: State, runtime: StepRuntime, config: Config = CONFIG) -> LocalTokens:
    tokens = LocalTokens(state, runtime, config)
    tokens.open()
    return tokens


def test_a_token_is_good_for_a_while_and_may_be_prolonged(
    open_state: Open, runtime: StepRuntime
) -> None:
    tokens = opened(open_state(), runtime)
    made = tokens.create(ALICE, ALICE, [BOB], -1)
    assert made.expires_ms - made.issued_ms == 1_000
    assert made.expires_ms_max - made.issued_ms == 5_000
    assert tokens.create(ALICE, ALICE, [], 200).expires_ms_max == made.issued_ms + 200
    runtime.advance(900)
    assert [token.token_id for token in tokens.all()] == [made.token_id]
    assert tokens.prolong(made.token_id, -1).expires_ms == made.issued_ms + 1_900
    assert tokens.prolong(made.token_id, 10**9).expires_ms == made.expires_ms_max
    runtime.advance(4_200)
    assert tokens.get(made.token_id) is None
    with pytest.raises(UserNotFound):
        tokens.prolong(made.token_id, -1)


def test_logins_end_when_their_tokens_expire(open_state: Open, runtime: StepRuntime) -> None:
    tokens = opened(open_state(), runtime)
    ended: list[str] = []
    long, short, brief = (tokens.create(ALICE, ALICE, [], each) for each in (-1, -1, 300))
    for name, token in (("long", long), ("short", short), ("brief", brief)):
        tokens.logins.enter(Proof(TOKEN, token.token_id), partial(ended.append, name))
    tokens.logins.enter(Proof(TOKEN, brief.token_id), partial(ended.append, "left"))()
    runtime.advance(299)
    assert ended == []
    runtime.advance(5)
    assert ended == ["brief"]
    for _ in range(1000):
        tokens.prolong(long.token_id, 3_000)
    tokens.prolong(short.token_id, 100)
    runtime.advance(150)
    assert ended == ["brief", "short"]
    runtime.advance(2_000)
    assert len(tokens.logins) == 1
    tokens.drop_of("bob")
    assert len(tokens.logins) == 1
    tokens.drop_of("alice")
    assert ended == ["brief", "short", "long"]
    assert list(tokens.all()) == []


def test_tokens_outlive_a_restart_without_their_secrets(
    open_state: Open, runtime: StepRuntime
) -> None:
    state = open_state()
    tokens = opened(state, runtime)
    made = tokens.create(ALICE, BOB, [BOB], -1)
    secret = tokens.secret(made.token_id)
    runtime.run()
    for row in state.rows("SELECT * FROM tokens"):
        assert secret not in row
        assert secret.hex() not in map(str, row)
    state.close()
    runtime.run()
    again = opened(open_state(), runtime)
    assert again.get(made.token_id) == made
    assert again.by_secret(secret) == made
    assert again.by_secret(secret[:-1] + b"?") is None
    again.drop(made.token_id)
    assert again.by_secret(secret) is None


@pytest.mark.parametrize("mechanism", Mechanism)
def test_the_secret_is_a_password(
    open_state: Open, runtime: StepRuntime, mechanism: Mechanism
) -> None:
    tokens = opened(open_state(), runtime)
    made = tokens.create(ALICE, ALICE, [], -1)
    later = tokens.verifier(made.token_id, mechanism)
    runtime.run()
    verifier = later.value
    server = ScramMechanism(mechanism.value).make_server(lambda _: tuple(verifier))
    password = base64.b64encode(tokens.secret(made.token_id)).decode()
    client = ScramClient([mechanism.value], made.token_id, password)
    server.set_client_first(client.get_client_first())
    client.set_server_first(server.get_server_first())
    server.set_client_final(client.get_client_final())
    client.set_server_final(server.get_server_final())


@pytest.mark.parametrize("mechanism", Mechanism)
def test_a_challenge_does_not_tell_whether_there_is_a_token(
    open_state: Open, runtime: StepRuntime, mechanism: Mechanism
) -> None:
    tokens = opened(open_state(), runtime)
    made = tokens.create(ALICE, ALICE, [], -1)
    asked = [tokens.verifier(name, mechanism) for name in (made.token_id, "another") * 2]
    runtime.run()
    real, other, real_again, other_again = (later.value for later in asked)
    assert (real, other) == (real_again, other_again)
    assert len(real.salt) == len(other.salt)
    assert real.salt != other.salt
    assert real.iterations == other.iterations


def test_renewers_are_few_and_have_names_of_users(open_state: Open, runtime: StepRuntime) -> None:
    tokens = opened(open_state(), runtime)
    many = [Principal("User", str(number)) for number in range(RENEWERS_MAX)]
    assert tokens.create(ALICE, ALICE, many * 3, -1).renewers == tuple(many)
    with pytest.raises(InvalidConfig, match="21 renewers"):
        tokens.create(ALICE, ALICE, [*many, BOB], -1)
    for name in ("n" * 250, "ö" * 125):
        for owner, renewers in ((ALICE, [Principal("User", name)]), (Principal("User", name), [])):
            with pytest.raises(InvalidConfig, match="user name"):
                tokens.create(owner, ALICE, renewers, -1)
    assert len(list(tokens.all())) == 1


def test_one_user_asks_for_a_limited_number_of_tokens(
    open_state: Open, runtime: StepRuntime
) -> None:
    config = replace(CONFIG, delegation_tokens_per_user_max=3)
    tokens = opened(open_state(), runtime, config)
    made = [tokens.create(ALICE, ALICE, [BOB], 200) for _ in range(3)]
    with pytest.raises(Overloaded, match="delegation_tokens_per_user_max"):
        tokens.create(ALICE, ALICE, [], -1)
    # Others are not concerned, though they may renew these.
    for _ in range(3):
        tokens.create(ALICE, BOB, [], -1)
    tokens.drop(made[0].token_id)
    tokens.create(ALICE, ALICE, [], -1)
    runtime.advance(300)
    for _ in range(2):
        tokens.create(ALICE, ALICE, [], -1)
    with pytest.raises(Overloaded):
        tokens.create(ALICE, ALICE, [], -1)
    assert len(list(tokens.of(ALICE))) == 6
    assert len(list(tokens.of(BOB))) == 3


def test_without_a_secret_there_are_no_tokens(open_state: Open, runtime: StepRuntime) -> None:
    state = open_state()
    made = opened(state, runtime).create(ALICE, ALICE, [], -1)
    state.close()
    runtime.run()
    tokens = opened(open_state(), runtime, Config())
    assert not tokens.enabled
    # What anybody could compute proves nothing.
    assert tokens.by_secret(hmac.digest(b"", made.token_id.encode(), "sha512")) is None
    assert tokens.get("any") is None
