"""Whatever is said to a broker that is secret is found nowhere afterwards: no log, no file."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from tests.security.guarded_world import TIMEOUT_S, Wire
from tests.security.matrix import matrix_kafka
from tests.security.matrix.matrix_blipmq import frame, log_in, text
from tests.security.matrix.matrix_cursus import say

from pentalog.clients.kafka.messages import ms

pytestmark = pytest.mark.clients

PASSWORD, WRONG_PASSWORD = "secret-password-one", "secret-password-two"
CONFIGURED_KEY, WRONG_KEY = "secret-key-three", "secret-key-four"
TOKEN_SECRET = "secret-of-tokens-five"
BEARER = "eyJhbGciOiJub25lIn0.c2VjcmV0LWJlYXJlcg.c2VjcmV0LXNpeA"
INLINE = "secret-inline-seven"
LISTENERS = ("kafka", "kafka+sasl", "blipmq", "cursus", "rustlog")
PROGRAM = [sys.executable, "-c", "from pentalog.cli.main import main; main()"]
SETTINGS = {
    "PENTALOG_SUPER_USERS": "User:alice",
    "PENTALOG_BLIPMQ_API_KEYS": CONFIGURED_KEY,
    "PENTALOG_DELEGATION_TOKEN_SECRET": TOKEN_SECRET,
    "PENTALOG_SASL_MECHANISMS": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "PENTALOG_LOG_LEVEL": "debug",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    source = str(Path(__file__).resolve().parents[2] / "src")
    keys = tmp_path / "keys.json"
    public = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    keys.write_text(json.dumps({"keys": [RSAAlgorithm.to_jwk(public, as_dict=True)]}))
    return {
        **os.environ,
        **SETTINGS,
        "PENTALOG_OAUTH_JWKS_FILE": str(keys),
        "PYTHONPATH": source,
    }


class Started:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        self._ports: dict[str, int] = {}
        assert process.stdout is not None
        for line in process.stdout:
            self.said += line
            found = re.match(r"(\S+) listening on 127\.0\.0\.1:(\d+)", line)
            if found is not None:
                self._ports[found[1]] = int(found[2])
            if line.startswith("ready"):
                break

    def connect(self, listener: str) -> Wire:
        return Wire("127.0.0.1", self._ports[listener])

    def stop(self) -> str:
        """Everything it has ever said."""
        self.process.terminate()
        out, errors = self.process.communicate(timeout=TIMEOUT_S)
        return self.said + out + errors


@pytest.fixture
def started(tmp_path: Path, environment: dict[str, str]) -> Iterator[Started]:
    data = str(tmp_path / "data")
    add = [*PROGRAM, "user", "add", "alice", "--data", data]
    subprocess.run(add, input=f"{PASSWORD}\n", text=True, check=True, env=environment)
    listen = [f"--listen={name}=127.0.0.1:0" for name in LISTENERS]
    process = subprocess.Popen(
        [*PROGRAM, "start", "--data", data, *listen],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield Started(process)
    finally:
        process.kill()
        process.communicate()


def exchanging(said: bytes) -> Callable[[Callable[[bytes], bytes]], None]:
    def converse(exchange: Callable[[bytes], bytes]) -> None:
        exchange(said)

    return converse


def talk_to_kafka(started: Started) -> list[str]:
    """Log in rightly and wrongly; the secret it was given."""
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        wire = started.connect("kafka+sasl")
        with pytest.raises(AssertionError):
            matrix_kafka.by_password(wire, mechanism, WRONG_PASSWORD)
        wire.close()
    refused = matrix_kafka.by_bearer(started.connect("kafka+sasl"), BEARER)
    assert int(refused.ask(36, 2, {"auth_bytes": b"\x01"}).error_code) == 58
    refused.close()
    client = matrix_kafka.Client(started.connect("kafka+sasl"))
    plain = f"\0alice\0{PASSWORD}".encode()
    client.log_in("PLAIN", exchanging(plain))
    wish = {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": [],
        "max_lifetime": ms(-1),
    }
    token = client.ask(38, 3, wish)
    assert token.error_code == 0
    client.close()
    return [token.hmac.hex(), base64.b64encode(token.hmac).decode()]


def talk_to_the_others(started: Started) -> None:
    blipmq = started.connect("blipmq")
    blipmq.ask(frame(1, 1, b"\0\1"))
    blipmq.ask(frame(2, 2, text(WRONG_KEY)))
    blipmq.close()
    blipmq = started.connect("blipmq")
    log_in(blipmq, CONFIGURED_KEY)
    blipmq.close()
    cursus = started.connect("cursus")
    assert b"authentication_failed" in say(cursus, f"AUTH principal=bob token={WRONG_PASSWORD}")
    say(cursus, f"AUHT principal=bob token={WRONG_PASSWORD}")
    say(cursus, f"LIST_OFFSETS topic=x principal=bob auth_token={INLINE}")
    assert b"OK" in say(cursus, f"AUTH principal=alice token={PASSWORD}")
    say(cursus, f"LIST_OFFSETS topic=x principal=alice auth_token={PASSWORD}")
    cursus.close()
    for listener in LISTENERS:
        broken = started.connect(listener)
        broken.send(b"\x7f\xff" + WRONG_KEY.encode())
        broken.close()


def test_nothing_secret_is_written_anywhere(tmp_path: Path, started: Started) -> None:
    secrets = [PASSWORD, WRONG_PASSWORD, CONFIGURED_KEY, WRONG_KEY, TOKEN_SECRET, BEARER, INLINE]
    secrets += talk_to_kafka(started)
    talk_to_the_others(started)
    said = started.stop()
    assert "event=login" in said
    assert 'event="login refused"' in said
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.name == "pentalog.sqlite" for path in files)
    for secret in secrets:
        assert secret not in said
        assert not [path for path, kept in files.items() if secret.encode() in kept]


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_settings_are_shown_without_their_secrets(
    environment: dict[str, str], form: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [*PROGRAM, "config", *form], capture_output=True, text=True, check=True, env=environment
    )
    assert "User:alice" in done.stdout
    for secret in (CONFIGURED_KEY, TOKEN_SECRET):
        assert secret not in done.stdout + done.stderr
