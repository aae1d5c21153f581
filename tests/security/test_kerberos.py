"""GSSAPI against a real key distribution centre: by the package itself, and by Java."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "java"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from jvm import Clients, Jvm, compile_driver
from secured import Secured

import apache_kafka
from pentalog.testing.ports import reserve_port

gssapi = pytest.importorskip("gssapi", reason="the package gssapi is not installed")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        not Path("/usr/sbin/krb5kdc").exists() or shutil.which("kinit") is None,
        reason="krb5-kdc, krb5-admin-server and krb5-user are not installed",
    ),
]

REALM = "PENTALOG.TEST"


@dataclass
class Realm:
    """A realm of its own in a directory, with keys of the broker and of two users."""

    directory: Path
    environment: dict[str, str]

    def run(self, *command: str) -> None:
        subprocess.run(
            command,
            env=os.environ | self.environment,
            check=True,
            capture_output=True,
            timeout=60,
        )

    def add(self, name: str) -> Path:
        """A principal with a key; the file that holds it."""
        file = self.directory / (name.replace("/", "-") + ".keytab")
        self.run("/usr/sbin/kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {name}")
        self.run("/usr/sbin/kadmin.local", "-r", REALM, "-q", f"ktadd -k {file} {name}")
        return file


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    directory = tmp_path_factory.mktemp("realm")
    port = reserve_port()
    (directory / "krb5.conf").write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n rdns = false\n"
        f" dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
        f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
    )
    (directory / "kdc.conf").write_text(
        f'[kdcdefaults]\n kdc_listen = ""\n kdc_tcp_listen = 127.0.0.1:{port}\n'
        f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n"
        f"  key_stash_file = {directory}/stash\n  acl_file = {directory}/acl\n }}\n"
    )
    made = Realm(
        directory,
        {
            "KRB5_CONFIG": str(directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{directory}/tickets",
        },
    )
    made.run("/usr/sbin/kdb5_util", "create", "-r", REALM, "-s", "-P", "the master key")
    centre = subprocess.Popen(
        ["/usr/sbin/krb5kdc", "-n", "-r", REALM],
        env=os.environ | made.environment,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 200
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < deadline, "the key distribution centre does not answer"
            time.sleep(0.05)
        yield made
    finally:
        centre.kill()
        centre.wait()


@pytest.fixture(scope="module")
def kerberised(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in realm.environment.items():
            patch.setenv(name, value)
        made = Secured(
            tmp_path_factory.mktemp("kerberised"),
            {
                "sasl_mechanisms": "GSSAPI,PLAIN",
                "kerberos_keytab": str(realm.add("kafka/localhost")),
                "super_users": "User:admin;User:alice",
            },
        )
        yield made
        made.stop()


def ticket_of(realm: Realm, name: str) -> Any:
    keytab = realm.add(name)
    return gssapi.Credentials(
        name=gssapi.Name(f"{name}@{REALM}"),
        usage="initiate",
        store={
            "client_keytab": str(keytab),
            "ccache": f"FILE:{realm.directory}/{name}.tickets",
        },
    )


def log_in(secured: Secured, ticket: Any, service: str = "kafka") -> tuple[int, bool]:
    """The last error code, and whether the broker then serves what anybody may ask."""
    target = gssapi.Name(f"{service}@localhost", gssapi.NameType.hostbased_service)
    context = gssapi.SecurityContext(name=target, creds=ticket, usage="initiate")
    with secured.connect() as client:
        assert client.handshake("GSSAPI") == 0
        said = b""
        while not context.complete:
            error, said, _ = client.authenticate(context.step(said or None) or b"")
            if error:
                return error, False
        offer = context.unwrap(said).message
        assert offer[0] == 1
        error, _, _ = client.authenticate(context.wrap(bytes([1, 0, 0, 0]), False).message)
        return error, error == 0 and client.ask(3, 1, topics=None) != b""


def test_a_ticket_lets_in(kerberised: Secured, realm: Realm) -> None:
    assert log_in(kerberised, ticket_of(realm, "alice")) == (0, True)


def test_a_ticket_for_another_service_lets_nobody_in(kerberised: Secured, realm: Realm) -> None:
    realm.add("http/localhost")
    error, served = log_in(kerberised, ticket_of(realm, "bob"), "http")
    assert (error, served) == (58, False)


@pytest.mark.parametrize("message", [b"", b"no ticket", bytes(100)])
def test_what_is_no_ticket_lets_nobody_in(kerberised: Secured, message: bytes) -> None:
    with kerberised.connect() as client:
        assert client.handshake("GSSAPI") == 0
        assert client.authenticate(message)[0] == 58
        assert client.closed()
    with kerberised.connect() as client:
        assert client.plain("bob") == 0


@pytest.mark.java
def test_java_shows_a_ticket(kerberised: Secured, realm: Realm, tmp_path: Path) -> None:
    try:
        classes = compile_driver()
    except apache_kafka.JarsMissing as why:
        pytest.skip(str(why))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={realm.environment['KRB5_CONFIG']}"
        )
        jvm = Jvm(classes, tmp_path / "stderr")
    address = kerberised.address("kafka+sasl").replace("127.0.0.1", "localhost")
    with jvm:
        clients = Clients(jvm, address)
        producer = clients.open(
            "producer",
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.service.name": "kafka",
                "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required "
                f'useKeyTab=true storeKey=true keyTab="{realm.add("alice")}" '
                f'principal="alice@{REALM}";',
            },
        )
        assert producer("send", topic="kerberos", records=[[None, "k", "v"]]) == [[0, 0]]
        clients.close_all()
