"""What a broker does that nobody has told anything about security, and what it refuses to do."""

from __future__ import annotations

import ipaddress
import logging

import pytest

from pentalog.app import doors
from pentalog.config import Config, ConfigError, load
from pentalog.server.listening import warn_of_open_listeners

OPEN = ("kafka", "rustlog", "cursus", "fluvio-sc", "fluvio-spu")
CERTIFIED = {
    "tls_certificate": "server.pem",
    "tls_client_ca": "ca.pem",
    "tls_client_authentication": "required",
}


def opened(listen: str, **settings: object) -> list[str]:
    config = load(flags={"listen": [listen], **settings}).config
    found = doors(config)
    warn_of_open_listeners(config, found)
    return [wish.name for wish, _ in found]


def test_without_configuration_nobody_else_can_reach_it() -> None:
    listening = doors(Config())
    assert len(listening) >= 6
    assert all(ipaddress.ip_address(wish.host).is_loopback for wish, _ in listening)


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "example.org"])
def test_a_door_that_asks_nobody_is_not_opened_to_all(name: str, host: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        opened(f"{name}={host}:0")
    assert "allow_open_listeners" in str(refusal.value)
    assert name in str(refusal.value)


@pytest.mark.parametrize("name", OPEN)
def test_unless_that_is_set_and_then_it_is_warned_of(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert opened(f"{name}=0.0.0.0:0", allow_open_listeners="true") == [name]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"{name}=0.0.0.0:0" in warning


CONSOLE = ["kafka=127.0.0.1:0", "http=127.0.0.1:0"]


@pytest.mark.parametrize("console", ["0.0.0.0:9645", "[::]:9645", "192.0.2.1:1", "example.org:1"])
def test_the_console_is_not_opened_to_all(console: str, caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, object] = {"listen": CONSOLE, "console": console}
    with pytest.raises(ConfigError, match=r"web console .* allow_open_listeners"):
        doors(load(flags=settings).config)
    config = load(flags=settings | {"allow_open_listeners": True}).config
    warn_of_open_listeners(config, doors(config))
    assert [console in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("listen", "console"),
    [
        (CONSOLE, "127.0.0.1:9645"),
        (CONSOLE, "[::1]:9645"),
        (CONSOLE, "localhost:9645"),
        (CONSOLE, "off"),
        ([*CONSOLE, "kafka+sasl=127.0.0.1:0"], "0.0.0.0:9645"),
        (["kafka=127.0.0.1:0"], "0.0.0.0:9645"),
    ],
)
def test_a_console_on_this_machine_or_with_logins_is_opened(
    listen: list[str], console: str
) -> None:
    assert doors(load(flags={"listen": listen, "console": console}).config)


@pytest.mark.parametrize(
    ("listen", "settings"),
    [
        ("kafka+sasl=0.0.0.0:0", {}),
        ("kafka+sasl+tls=0.0.0.0:0", {"tls_certificate": "server.pem"}),
        ("cursus+auth=0.0.0.0:0", {}),
        ("blipmq=0.0.0.0:0", {}),
        ("rustlog+tls=0.0.0.0:0", CERTIFIED),
        ("fluvio-sc+tls=0.0.0.0:0", CERTIFIED),
    ],
)
def test_a_door_that_asks_may_be_open_to_all(
    listen: str, settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert opened(listen, **settings) == [listen.partition("=")[0]]
    assert not caplog.records


def test_tls_alone_asks_nobody_who_he_is() -> None:
    for way in ("none", "requested"):
        with pytest.raises(ConfigError):
            opened("rustlog+tls=0.0.0.0:0", **{**CERTIFIED, "tls_client_authentication": way})


def test_plain_text_on_a_tls_port_asks_nobody_either() -> None:
    with pytest.raises(ConfigError):
        opened("cursus+tls=0.0.0.0:0", cursus_tls_accepts_plaintext="true", **CERTIFIED)
    both = opened("cursus+auth+tls=0.0.0.0:0", cursus_tls_accepts_plaintext="true", **CERTIFIED)
    assert both == ["cursus+auth+tls"]


@pytest.mark.parametrize("name", ["rustlog+sasl", "blipmq+auth", "kafka+magic", "nothing"])
def test_what_a_door_cannot_demand_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        opened(f"{name}=127.0.0.1:0")
