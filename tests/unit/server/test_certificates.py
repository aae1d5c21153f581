"""Subjects of certificates to names, by rules in Kafka's syntax; files that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from pentalog.config import Config, ConfigError
from pentalog.server.certificates import Certificates, MappingRules, NoName, subject_of

SUBJECT = "CN=kafka-Admin,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("", SUBJECT),
        ("DEFAULT", SUBJECT),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "kafka-Admin"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "kafka-admin"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/U,DEFAULT", "KAFKA-ADMIN"),
        (r"RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/", "kafka-Admin@ServiceUsers"),
        (r"RULE:^CN=nobody.*$/x/,RULE:.*OU=(\w+).*/\$$1/ , DEFAULT", "$ServiceUsers"),
        (r"RULE:^.*$/a\/b/", "a/b"),
    ],
)
def test_the_first_rule_that_matches_names(rules: str, name: str) -> None:
    assert MappingRules(rules).name_of(SUBJECT) == name


@pytest.mark.parametrize("rules", [r"RULE:^CN=nobody$/x/", r"RULE:ServiceUsers/x/", r"RULE:.*//"])
def test_a_subject_without_a_name_is_refused(rules: str) -> None:
    with pytest.raises(NoName):
        MappingRules(rules).name_of(SUBJECT)


@pytest.mark.parametrize(
    "rules",
    ["default", "RULE:", "RULE:a/b", "RULE:(/x/", "RULE:a/$1/", "DEFAULT RULE:a/b/", "RULE:a/b/X"],
)
def test_rules_that_say_nothing_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match="ssl_principal_mapping_rules"):
        MappingRules(rules)


def test_subjects_are_written_the_way_rules_expect() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", 'Doe, "John" + Söhne'),),
        (("organizationalUnitName", "a"), ("userId", "b")),
        (("commonName", " #x "),),
    )
    written = subject_of({"subject": subject})
    assert written == r"CN=\ #x\ ,OU=a+UID=b,O=Doe\, \"John\" \+ Söhne,C=DE"
    assert subject_of({}) == ""


def test_files_that_change_are_read_again_and_bad_ones_are_not_used(tmp_path: Path) -> None:
    file = tmp_path / "server.pem"
    authority = trustme.CA()
    authority.issue_cert("one.example").private_key_and_cert_chain_pem.write_to_path(str(file))
    now_s = 0.0
    certificates = Certificates(Config(tls_certificate=str(file)), lambda: now_s)
    first = certificates.context()
    assert certificates.context() is first
    file.write_text("no certificate")
    now_s = 10.0
    assert certificates.context() is first
    authority.issue_cert("two.example").private_key_and_cert_chain_pem.write_to_path(str(file))
    now_s = 10.5  # looked at a moment ago
    assert certificates.context() is first
    now_s = 20.0
    assert certificates.context() is not first


@pytest.mark.parametrize(
    "settings",
    [
        {"tls_certificate": ""},
        {"tls_certificate": "/no/such.pem"},
        {"tls_certificate": "good", "tls_client_ca": "/no/such.pem"},
    ],
)
def test_certificates_that_cannot_be_used_are_named(
    settings: dict[str, str], tmp_path: Path
) -> None:
    good = tmp_path / "good.pem"
    trustme.CA().issue_cert("x").private_key_and_cert_chain_pem.write_to_path(str(good))
    given = {name: str(good) if text == "good" else text for name, text in settings.items()}
    with pytest.raises(ConfigError, match="tls_c"):
        Certificates(Config(**given), lambda: 0.0)  # type: ignore[arg-type]
