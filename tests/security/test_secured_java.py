"""Java clients log in every way they can, and Kafka's own tools administer users and rules."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from secured import ADMIN, PASSWORDS, Certificate, Secured

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "java"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from jvm import Clients, JavaError, Jvm, compile_driver, taken

import apache_kafka

pytestmark = [pytest.mark.clients, pytest.mark.java]

ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
_MODULES = "org.apache.kafka.common.security"
_LOGIN = {
    "PLAIN": f"{_MODULES}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_MODULES}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_MODULES}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule",
}
Run = Callable[..., str]


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens") / "token"


@pytest.fixture(scope="module")
def jvm(token_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    directory = tmp_path_factory.mktemp("secured-jvm")
    try:
        classes = compile_driver()
    except apache_kafka.JarsMissing as why:
        pytest.skip(str(why))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "JAVA_TOOL_OPTIONS",
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{token_file}",
        )
        jvm = Jvm(classes, directory / "stderr")
    with jvm:
        yield jvm


@pytest.fixture
def clients(jvm: Jvm, secured: Secured) -> Iterator[Clients]:
    clients = Clients(jvm, secured.address("kafka+sasl"))
    yield clients
    clients.close_all()


def login(mechanism: str, name: str, password: str, *, extra: str = "") -> dict[str, object]:
    jaas = f'{_LOGIN[mechanism]} required username="{name}" password="{password}"{extra};'
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas,
    }


def with_tls(secured: Secured, settings: dict[str, object]) -> dict[str, object]:
    protocol = "SASL_SSL" if "sasl.mechanism" in settings else "SSL"
    return {
        **settings,
        "bootstrap.servers": secured.address(
            "kafka+sasl+tls" if protocol == "SASL_SSL" else "kafka+tls"
        ),
        "security.protocol": protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secured.ca_file),
    }


def key_store(certificate: Certificate, at: Path) -> Path:
    """Key and chain in one file, the key as Java reads it."""
    key = serialization.load_pem_private_key(certificate.key.read_bytes(), None)
    written = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    at.write_bytes(written + certificate.chain.read_bytes())
    return at


def talk(clients: Clients, settings: dict[str, object], topic: str) -> None:
    producer = clients.open("producer", settings)
    assert producer("send", topic=topic, records=[[None, "k", "hello"]]) == [[0, 0]]
    consumer = clients.open(
        "consumer", {"auto.offset.reset": "earliest", "group.id": topic, **settings}
    )
    consumer("assign", partitions=[[topic, 0]], beginning=True)
    assert taken(consumer, 1)[0][3:] == ["k", "hello"]


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_java_logs_in(clients: Clients, secured: Secured, mechanism: str, tls: bool) -> None:
    settings = login(mechanism, ADMIN, PASSWORDS[ADMIN])
    talk(clients, with_tls(secured, settings) if tls else settings, f"java-{mechanism}-{tls}")


def test_java_shows_a_signed_token(clients: Clients, secured: Secured, token_file: Path) -> None:
    token_file.write_text(secured.keys.token(ADMIN))
    settings: dict[str, object] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{_LOGIN['OAUTHBEARER']} required;",
        "sasl.login.callback.handler.class": (
            f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
        "sasl.oauthbearer.token.endpoint.url": f"file://{token_file}",
    }
    talk(clients, settings, "java-oauthbearer")


def test_java_shows_a_certificate(clients: Clients, secured: Secured, tmp_path: Path) -> None:
    store = key_store(secured.client_certificate(ADMIN), tmp_path / "store.pem")
    settings: dict[str, object] = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
    }
    talk(clients, with_tls(secured, settings), "java-certificate")


def test_java_is_told_that_its_password_is_wrong(clients: Clients, secured: Secured) -> None:
    producer = clients.open("producer", login("SCRAM-SHA-512", "bob", "wrong"))
    with pytest.raises(JavaError, match="SaslAuthenticationException"):
        producer("send", topic="java-wrong", records=[[None, "k", "v"]])
    with secured.connect() as client:
        assert client.plain("bob") == 0


@pytest.fixture
def run(clients: Clients, secured: Secured, tmp_path: Path) -> Run:
    """Run a tool as the administrator; gives what it printed."""
    toolbox = clients.open("toolbox", {})
    properties = tmp_path / "admin.properties"
    lines = [f"{name}={value}" for name, value in login(
        "SCRAM-SHA-256", ADMIN, PASSWORDS[ADMIN].encode("unicode_escape").decode()
    ).items()]  # fmt: skip
    properties.write_text("\n".join(lines).replace("\\xe4", "\\u00e4"))

    def run(tool: str, *arguments: str) -> str:
        where = (
            "--bootstrap-server",
            secured.address("kafka+sasl"),
            "--command-config",
            str(properties),
        )
        done = toolbox("run", tool=tool, arguments=[*where, *arguments], input="")
        assert done["code"] == 0, done["out"][-3000:] + done["errors"][-3000:]
        return str(done["out"] + done["errors"])

    return run


def test_kafka_acls(run: Run, clients: Clients, secured: Secured) -> None:
    run(ACLS, "--add", "--allow-principal", "User:bob", "--producer", "--topic", "java-acls",
        "--resource-pattern-type", "prefixed")  # fmt: skip
    shown = run(ACLS, "--list")
    assert "ResourcePattern(resourceType=TOPIC, name=java-acls, patternType=PREFIXED)" in shown
    assert "principal=User:bob, host=*, operation=WRITE, permissionType=ALLOW" in shown
    settings = login("PLAIN", "bob", PASSWORDS["bob"])
    producer = clients.open("producer", settings)
    assert producer("send", topic="java-acls-1", records=[[None, "k", "v"]]) == [[0, 0]]
    with pytest.raises(JavaError, match="TopicAuthorizationException"):
        producer("send", topic="java-others", records=[[None, "k", "v"]])
    run(ACLS, "--remove", "--force", "--allow-principal", "User:bob", "--producer",
        "--topic", "java-acls", "--resource-pattern-type", "prefixed")  # fmt: skip
    assert "User:bob" not in run(ACLS, "--list")
    with pytest.raises(JavaError, match="TopicAuthorizationException"):
        producer("send", topic="java-acls-1", records=[[None, "k", "v"]])


def test_kafka_configs_of_users(run: Run, clients: Clients, secured: Secured) -> None:
    who = ("--entity-type", "users", "--entity-name", "carol")
    run(CONFIGS, "--alter", *who, "--add-config",
        "SCRAM-SHA-256=[iterations=8192,password=carols-first]")  # fmt: skip
    assert "SCRAM-SHA-256=iterations=8192" in run(CONFIGS, "--describe", *who)
    with secured.connect() as client:
        assert client.plain("carol", "carols-first") == 0
    run(CONFIGS, "--alter", *who, "--delete-config", "SCRAM-SHA-256")
    with secured.connect() as client:
        assert client.plain("carol", "carols-first") == 58
    with secured.connect() as client:
        assert client.plain("bob") == 0


def test_kafka_delegation_tokens(run: Run, clients: Clients, secured: Secured) -> None:
    made = run(TOKENS, "--create", "--max-life-time-period", "-1", "--renewer-principal",
               "User:bob")  # fmt: skip
    found = re.search(r"^(\S{22})\s+(\S{60,})\s+User:admin", made, re.MULTILINE)
    assert found, made
    token_id, secret = found.groups()
    mine = ("--owner-principal", f"User:{ADMIN}")
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        settings = login(mechanism, token_id, secret, extra=' tokenauth="true"')
        talk(clients, settings, f"java-token-{mechanism}")
    assert token_id in run(TOKENS, "--describe", *mine)
    run(TOKENS, "--renew", "--renew-time-period", "100000", "--hmac", secret)
    run(TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", secret)
    assert token_id not in run(TOKENS, "--describe", *mine)
