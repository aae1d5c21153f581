"""Brokers by name: what a user keeps about them, and how every command comes to use it.

File `profiles.toml` in `$XDG_CONFIG_HOME/pentalog` (else `~/.config/pentalog`), one table per
broker.  A profile that is chosen sets the variables the commands read anyway, so a flag still wins.
Passwords are not kept here: `password_file` says where one is.
"""

from __future__ import annotations

import json
import os
import ssl
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pentalog.cli.output import Misused, Refused
from pentalog.cli.private_files import make_private

VARIABLES: Final[Mapping[str, str]] = {
    "server": "PENTALOG_SERVER",
    "http": "PENTALOG_HTTP",
    "rustlog": "PENTALOG_RUSTLOG",
    "blipmq": "PENTALOG_BLIPMQ",
    "user": "PENTALOG_LOGIN_USER",
    "mechanism": "PENTALOG_LOGIN_MECHANISM",
    "ca": "PENTALOG_LOGIN_CA",
}
"""What a profile may say, and the variable that says the same."""
PASSWORD_FILE: Final = "password_file"
TLS: Final = "tls"
FIELDS: Final = (*VARIABLES, PASSWORD_FILE, TLS)
_PASSWORD: Final = "PENTALOG_LOGIN_PASSWORD"

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
        unknown = set(fields) - set(FIELDS) if isinstance(fields, dict) else {name}
        if unknown:
            known = ", ".join(FIELDS)
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
        make_private(draft)
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
    said = _variables(profiles[name])
    before = {variable: os.environ.get(variable) for variable in (*VARIABLES.values(), _PASSWORD)}
    os.environ.update(said)
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


def _variables(fields: Mapping[str, str]) -> dict[str, str]:
    """What a profile says, as the commands read it."""
    said = {VARIABLES[field]: value for field, value in fields.items() if field in VARIABLES}
    if TLS in fields and "ca" not in fields:
        said[VARIABLES["ca"]] = ssl.get_default_verify_paths().cafile or ""
    if PASSWORD_FILE in fields:
        file = Path(fields[PASSWORD_FILE]).expanduser()
        try:
            said[_PASSWORD] = file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise Misused(f"cannot read the password in {file}: {error}; correct it") from error
    return said
