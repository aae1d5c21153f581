"""Brokers by name: what a user keeps about them, and how every command comes to use it.

File `profiles.toml` in `$XDG_CONFIG_HOME/pentalog` (else `~/.config/pentalog`), one table per
broker.  A profile that is chosen sets the variables the commands read anyway, so a flag still wins.
Passwords are not kept here: `password_file` says where one is.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pentalog.cli.output import Misused, Refused

if TYPE_CHECKING:
    from pentalog.clients.kafka.connection import ClientOptions

VARIABLES: Final[Mapping[str, str]] = {
    "server": "PENTALOG_SERVER",
    "http": "PENTALOG_HTTP",
    "rustlog": "PENTALOG_RUSTLOG",
    "blipmq": "PENTALOG_BLIPMQ",
    "user": "PENTALOG_USER",
    "mechanism": "PENTALOG_MECHANISM",
    "password_file": "PENTALOG_PASSWORD_FILE",
    "tls": "PENTALOG_TLS",
    "ca": "PENTALOG_CA",
}
"""What a profile may say, and the variable that says the same."""

CHOSEN: Final = "PENTALOG_PROFILE"


def path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "pentalog" / "profiles.toml"


def read() -> dict[str, dict[str, str]]:
    """All profiles by name."""
    try:
        found = tomllib.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Misused(f"cannot read {path()}: {error}; correct it or remove it") from error
    profiles: dict[str, dict[str, str]] = {}
    for name, fields in found.items():
        unknown = set(fields) - set(VARIABLES) if isinstance(fields, dict) else {name}
        if unknown:
            known = ", ".join(VARIABLES)
            raise Misused(f"{path()}: [{name}] has {min(unknown)!r}; known: {known}")
        profiles[name] = {field: str(value) for field, value in fields.items()}
    return profiles


def write(profiles: Mapping[str, Mapping[str, str]]) -> None:
    lines: list[str] = []
    for name, fields in profiles.items():
        lines.append(f"[{json.dumps(name)}]")
        # Texts of JSON are texts of TOML too.
        lines += [f"{field} = {json.dumps(value)}" for field, value in fields.items()] + [""]
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        draft = path().with_name(path().name + ".tmp")
        draft.write_text("\n".join(lines), encoding="utf-8")
        draft.replace(path())
    except OSError as error:
        raise Refused(f"cannot write {path()}: {error.strerror}") from error


@contextmanager
def chosen(name: str | None) -> Iterator[None]:
    """Inside, commands find in the environment what the profile says."""
    if not name:
        yield
        return
    profiles = read()
    if name not in profiles:
        have = ", ".join(profiles) or "none"
        raise Misused(
            f"no profile {name!r}; there are: {have}; make it with `pentalog profile add`"
        )
    before = {variable: os.environ.get(variable) for variable in VARIABLES.values()}
    os.environ.update({VARIABLES[field]: value for field, value in profiles[name].items()})
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


def client_options(*, timeout_ms: int, client_id: str) -> ClientOptions:
    """How Kafka's door is to be entered, by the environment."""
    # Imported here: commands that never go there need not wait for Kafka's messages to load.
    from pentalog.clients.kafka.authentication import MECHANISMS
    from pentalog.clients.kafka.connection import ClientOptions

    user = os.environ.get("PENTALOG_USER", "")
    mechanism = os.environ.get("PENTALOG_MECHANISM", "SCRAM-SHA-512" if user else "")
    if mechanism and mechanism not in MECHANISMS:
        raise Misused(f"mechanism {mechanism!r} is none of {', '.join(MECHANISMS)}")
    authorities = os.environ.get("PENTALOG_CA") or None
    tls = os.environ.get("PENTALOG_TLS", "").lower() in ("1", "true", "yes", "on")
    return ClientOptions(
        timeout_ms=timeout_ms,
        client_id=client_id,
        tls=tls or authorities is not None,
        tls_authorities=authorities,
        sasl_mechanism=mechanism,
        username=user,
        password=_password() if user else "",
    )


def _password() -> str:
    file = os.environ.get("PENTALOG_PASSWORD_FILE")
    if not file:
        return os.environ.get("PENTALOG_PASSWORD", "")
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Misused(f"cannot read the password in {file}: {error}") from error
