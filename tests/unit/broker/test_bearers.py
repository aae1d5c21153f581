"""Keys that sign tokens: fetched when needed, asked for again when unknown, kept when they fail."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from step_runtime import StepRuntime

from pentalog.broker.bearers import KEYS_LANE, LocalBearers
from pentalog.broker.security import Principal
from pentalog.config import Config
from pentalog.model.errors import Unauthorized

CONFIG = Config(oauth_principal_claim="name", oauth_clock_skew_ms=0)


class Signer:
    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        self.private = ec.generate_private_key(ec.SECP256R1())

    def key(self) -> dict[str, Any]:
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key()))
        return {**public, "kid": self.key_id}

    def token(self, **claims: Any) -> str:
        whole = {"name": "alice", "exp": int(time.time()) + 600, **claims}
        return jwt.encode(whole, self.private, "ES256", headers={"kid": self.key_id})


class Published:
    """Where keys are fetched from."""

    def __init__(self, *signers: Signer) -> None:
        self.signers = list(signers)
        self.fetched = 0
        self.broken = False

    def __call__(self) -> bytes:
        self.fetched += 1
        if self.broken:
            raise OSError("nobody there")
        return json.dumps({"keys": [signer.key() for signer in self.signers]}).encode()


def verified(bearers: LocalBearers, runtime: StepRuntime, token: str) -> Principal:
    later = bearers.verify(token)
    runtime.run()
    return later.value.who


def test_keys_are_fetched_once_and_again_for_new_ones(runtime: StepRuntime) -> None:
    one, two = Signer("one"), Signer("two")
    published = Published(one)
    bearers = LocalBearers(runtime, CONFIG, published)
    for _ in range(3):
        assert verified(bearers, runtime, one.token()) == Principal("User", "alice")
    assert published.fetched == 1
    with pytest.raises(Unauthorized):
        verified(bearers, runtime, two.token())
    assert published.fetched == 1  # not at every stranger's wish
    published.signers = [two]
    runtime.advance(6_000)
    assert verified(bearers, runtime, two.token()).name == "alice"
    with pytest.raises(Unauthorized):  # withdrawn
        verified(bearers, runtime, one.token())


def test_keys_there_are_serve_on_while_no_new_ones_can_be_had(runtime: StepRuntime) -> None:
    one = Signer("one")
    published = Published(one)
    bearers = LocalBearers(runtime, CONFIG, published)
    published.broken = True
    with pytest.raises(Unauthorized, match="OSError"):
        verified(bearers, runtime, one.token())
    published.broken = False
    runtime.advance(301_000)
    assert verified(bearers, runtime, one.token()).name == "alice"
    published.broken = True
    runtime.advance(301_000)
    assert verified(bearers, runtime, one.token()).name == "alice"


def test_refusals_never_quote_the_token(runtime: StepRuntime) -> None:
    one, other = Signer("one"), Signer("one")
    bearers = LocalBearers(runtime, CONFIG, Published(one))
    for token in (other.token(), one.token(exp=1), one.token(name=5), "x.y.z", "s" * 70_000):
        with pytest.raises(Unauthorized) as refusal:
            verified(bearers, runtime, token)
        assert token not in str(refusal.value)
        assert "alice" not in str(refusal.value)


def test_tokens_with_known_keys_do_not_wait_for_a_fetch(runtime: StepRuntime) -> None:
    """A server of keys that hangs holds up only those who need it."""
    one, two = Signer("one"), Signer("two")
    published = Published(one)
    bearers = LocalBearers(runtime, CONFIG, published)
    verified(bearers, runtime, one.token())
    lanes: list[tuple[Any, Any]] = []
    offload = runtime.offload

    def held(lane: str, work: Any, done: Any) -> None:
        if lane == KEYS_LANE:
            lanes.append((work, done))
        else:
            offload(lane, work, done)

    runtime.offload = held  # type: ignore[method-assign]
    runtime.advance(6_000)
    strangers = [bearers.verify(two.token()) for _ in range(50)]
    runtime.run()
    assert len(lanes) == 1, "one fetch serves them all"
    assert not any(later.ready for later in strangers)
    assert verified(bearers, runtime, one.token()).name == "alice"
    # It ends long after it began: the next one must not begin at once.
    runtime.advance(60_000)
    work, done = lanes.pop()
    done(work(), None)
    runtime.run()
    for later in strangers:
        with pytest.raises(Unauthorized, match="not known"):
            _ = later.value
    with pytest.raises(Unauthorized, match="not known"):
        verified(bearers, runtime, two.token())
    assert lanes == []


def part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "token",
    [
        part(b"[" * 30_000) + ".e30.AAAA",
        part(b'{"alg":"ES256","kid":' + b"[" * 20_000) + ".e30.AAAA",
        part(b'{"alg":"ES256","kid":["one"]}') + ".e30.AAAA",
        part(b'{"alg":"ES256","kid":"one"}') + "." + part(b"[" * 30_000) + ".AAAA",
        part(b'{"alg":"ES256","kid":"one","x":' + b"9" * 30_000 + b"}") + ".e30.AAAA",
        "." * 60_000,
        "a" * 65_537,
    ],
    ids=["nested", "nested kid", "kid", "claims", "number", "dots", "long"],
)
def test_tokens_that_are_costly_to_read_are_refused(runtime: StepRuntime, token: str) -> None:
    bearers = LocalBearers(runtime, CONFIG, Published(Signer("one")))
    with pytest.raises(Unauthorized):
        verified(bearers, runtime, token)


def test_names_of_bearers_have_a_limit(runtime: StepRuntime) -> None:
    one = Signer("one")
    bearers = LocalBearers(runtime, CONFIG, Published(one))
    assert verified(bearers, runtime, one.token(name="n" * 1024)).name == "n" * 1024
    with pytest.raises(Unauthorized, match="1024 bytes"):
        verified(bearers, runtime, one.token(name="n" * 1025))
