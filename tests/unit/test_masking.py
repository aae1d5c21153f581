"""Credentials inside URLs are shown nowhere."""

from __future__ import annotations

import json
import logging
import sys
import zipfile
from pathlib import Path

import pytest

from pentalog.cli import bundle
from pentalog.cli.logs import JsonLines, TextLines
from pentalog.config import ConfigError, load, plain
from pentalog.security_settings import mask_urls

URL = "https://reader:hunter2@keys.example/jwks?access_token=hunter2"
MASKED = "https://***@keys.example/jwks?access_token=***"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (URL, MASKED),
        (f"cannot read {URL}: refused", f"cannot read {MASKED}: refused"),
        ("kafka://me:hunter2@one:9092,two:9092", "kafka://***@one:9092,two:9092"),
        ("https://hunter2@host/", "https://***@host/"),
        ("https://me:hun/ter2@host/path", "https://***@host/path"),
        ("https://me:hun?ter2@host/path", "https://***@host/path"),
        ("https://host:443/a?mail=me@example", "https://host:443/a?mail=***"),
        ("https://host/a?hunter2", "https://host/a?***"),
        ("https://host/a#token=hunter2", "https://host/a#token=***"),
        ("https://host:443/a/b", "https://host:443/a/b"),
        ("https://[::1]:443/a", "https://[::1]:443/a"),
        ("no address at all: me@host?x=y", "no address at all: me@host?x=y"),
    ],
)
def test_user_password_and_query_are_masked(text: str, shown: str) -> None:
    assert mask_urls(text) == shown


def test_a_setting_is_shown_without_them() -> None:
    config = load(flags={"oauth_jwks_url": URL}).config
    assert config.oauth_jwks_url == URL
    assert plain(config.oauth_jwks_url) == MASKED


@pytest.mark.parametrize("engine", ["kafka://me:hunter2@host:9092", "http://me:hunter2@host"])
def test_an_engine_with_a_password_is_refused_without_saying_it(engine: str) -> None:
    with pytest.raises(ConfigError, match="engine_password") as refused:
        load(flags={"engine": engine})
    assert "hunter2" not in str(refused.value)


def test_a_refused_value_is_said_without_them() -> None:
    with pytest.raises(ConfigError) as refused:
        load(flags={"flush_interval_ms": URL})
    assert "hunter2" not in str(refused.value)


def test_a_bundle_holds_none(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text(f"fetching {URL.replace('access_token', 'sig')}\n")
    loaded = load(flags={"oauth_jwks_url": URL, "data": tmp_path / "none"})
    file = tmp_path / "bundle.zip"
    file.write_bytes(b"")
    file.chmod(0o644)
    bundle.write(file, loaded, [], server="127.0.0.1:1", log=log)
    assert file.stat().st_mode & 0o077 == 0
    with zipfile.ZipFile(file) as parts:
        for name in parts.namelist():
            assert b"hunter2" not in parts.read(name), name
        settings = json.loads(parts.read("config.json"))
    assert settings["oauth_jwks_url"]["value"] == MASKED


@pytest.mark.parametrize("form", [TextLines(), JsonLines()])
def test_the_log_has_none(form: logging.Formatter) -> None:
    try:
        raise OSError(f"cannot reach {URL}")
    except OSError:
        record = logging.LogRecord("x", 40, "f", 1, "asking %s", (URL,), sys.exc_info())
    record.address = URL
    line = form.format(record)
    assert MASKED in line
    assert "hunter2" not in line
