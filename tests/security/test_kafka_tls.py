"""TLS at the Kafka door: who is believed, what his certificate lets him do, new certificates."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from secured import ADMIN, Certificate, RawClient, Secured

NOT_ALLOWED = 29


def trusting(secured: Secured, certificate: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(secured.ca_file))
    if certificate is not None:
        context.load_cert_chain(certificate.chain, certificate.key)
    return context


def connect(secured: Secured, context: ssl.SSLContext, name: str = "localhost") -> RawClient:
    port = int(secured.address("kafka+tls").rpartition(":")[2])
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    try:
        return RawClient(context.wrap_socket(plain, server_hostname=name))
    except BaseException:
        plain.close()
        raise


def refused(secured: Secured, context: ssl.SSLContext) -> bool:
    """TLS 1.3 tells a client that its certificate is refused only when it reads."""
    try:
        with connect(secured, context) as client:
            return client.ask(3, 1, topics=()) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_a_certificate_is_a_name(secured: Secured) -> None:
    with connect(secured, trusting(secured, secured.client_certificate("Admin"))) as client:
        made = client.call(30, 1, creations=())
        assert made.results == ()
        assert int(client.call(29, 1, **everything()).error_code) == 0
    with connect(secured, trusting(secured, secured.client_certificate("bob"))) as client:
        assert int(client.call(29, 1, **everything()).error_code) == 31
    with connect(secured, trusting(secured)) as client:  # nobody in particular
        assert int(client.call(29, 1, **everything()).error_code) == 31


def test_another_authoritys_certificate_is_refused(secured: Secured, tmp_path: Path) -> None:
    forged = trustme.CA().issue_cert("x.example", organization_unit_name=ADMIN)
    assert refused(secured, trusting(secured, Certificate.write(forged, tmp_path, "forged")))


def test_an_expired_certificate_is_refused(secured: Secured) -> None:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    expired = secured.certificate(
        "expired", "x.example", organization_unit_name=ADMIN, not_after=yesterday
    )
    assert refused(secured, trusting(secured, expired))


def test_clients_notice_the_wrong_host_and_the_wrong_authority(secured: Secured) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"[Hh]ostname"):
        connect(secured, trusting(secured), "elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(secured, ssl.create_default_context())


def test_old_versions_are_refused(secured: Secured) -> None:
    context = trusting(secured)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(secured, context)


def test_plain_bytes_get_a_clean_end(secured: Secured) -> None:
    port = int(secured.address("kafka+tls").rpartition(":")[2])
    with RawClient(socket.create_connection(("127.0.0.1", port), timeout=20)) as client:
        client.connection.sendall(client.frame(18, 0))
        while client.connection.recv(64):  # an alert, at most
            pass


def test_a_certificate_does_not_log_in_where_a_login_is_demanded(secured: Secured) -> None:
    context = trusting(secured, secured.client_certificate("admin"))
    port = int(secured.address("kafka+sasl+tls").rpartition(":")[2])
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    with RawClient(context.wrap_socket(plain, server_hostname="localhost")) as client:
        client.connection.sendall(client.frame(3, 1, topics=()))
        assert client.closed()


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(
        tmp_path,
        {
            "tls_client_authentication": "required",
            "ssl_principal_mapping_rules": "RULE:^OU=(.*),O=trustme.*$/$1/",
        },
    )
    yield made
    made.stop()


def test_a_certificate_may_be_required_and_must_have_a_name(strict: Secured) -> None:
    assert refused(strict, trusting(strict))
    assert not refused(strict, trusting(strict, strict.client_certificate("bob")))
    nameless = strict.certificate("nameless", "x.example", common_name="somebody")
    assert refused(strict, trusting(strict, nameless))


def test_new_certificates_are_shown_without_a_restart(strict: Secured) -> None:
    bob = strict.client_certificate("bob")
    with connect(strict, trusting(strict, bob)) as before:
        first = before.connection.getpeercert(binary_form=True)  # type: ignore[attr-defined]
        renewed = strict.certificate("renewed", "localhost", "127.0.0.1")
        os.replace(renewed.key, strict.server.key)
        os.replace(renewed.chain, strict.server.chain)
        deadline = time.monotonic() + 200
        while True:
            with connect(strict, trusting(strict, bob)) as after:
                shown = after.connection.getpeercert(binary_form=True)  # type: ignore[attr-defined]
                if shown != first:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # A connection made before goes on.
        assert before.ask(3, 1, topics=())


def everything() -> dict[str, object]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
