"""A support bundle: what helps another to help, and nothing that is anybody's business.

Holds no records, no keys, no passwords: settings that are secret are masked, segments are listed by
name and size only, and lines of a log that name a secret are left out.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pentalog.cli import http
from pentalog.cli.checkup import Finding
from pentalog.cli.output import Refused
from pentalog.cli.private_files import make_private
from pentalog.config import SETTINGS, Loaded, plain
from pentalog.security_settings import Secrets, mask_urls

_LOG_BYTES: Final = 1 << 20
_SECRET: Final = re.compile(r"password|secret|token|passwd|api.?key|authorization", re.IGNORECASE)
_MASK: Final = "not shown"


def write(
    path: Path, loaded: Loaded, found: Sequence[Finding], *, server: str, log: Path | None
) -> list[str]:
    """Write the file; gives the names of its parts."""
    parts: dict[str, str] = {
        "doctor.json": _json([one._asdict() for one in found]),
        "config.json": _json(settings(loaded)),
        "versions.json": _json(_versions()),
        "segments.json": _json(_segments(loaded.config.data)),
    }
    for name, asked in (("metrics.txt", "/metrics"), ("rates.json", "/api/v1/rates")):
        try:
            parts[name] = http.get(server, asked, timeout_s=5)
        except Refused as error:
            parts[name] = f"{error}\n"
    if log is not None:
        parts["broker.log"] = _tail(log)
    try:
        make_private(path)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, text in parts.items():
                bundle.writestr(name, mask_urls(text))
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}; name another file") from error
    return list(parts)


def settings(loaded: Loaded) -> dict[str, Mapping[str, Any]]:
    """Every setting with its source, secrets masked."""
    shown: dict[str, Mapping[str, Any]] = {}
    for name in SETTINGS:
        value = getattr(loaded.config, name)
        secret = isinstance(value, Secrets) or (isinstance(value, str) and _SECRET.search(name))
        masked = _MASK if secret and value else plain(value)
        shown[name] = {"value": masked, "source": loaded.sources[name]}
    return shown


def _versions() -> dict[str, Any]:
    packages = {
        one.metadata["Name"]: one.version
        for one in importlib.metadata.distributions()
        if one.metadata["Name"]
    }
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def _segments(data: Path) -> list[dict[str, Any]]:
    if not data.is_dir():
        return []
    found: list[dict[str, Any]] = []
    for path in sorted(data.rglob("*")):
        try:
            stat = path.stat()
        except OSError:
            continue  # retention was quicker
        if path.is_file():
            name = path.relative_to(data).as_posix()
            found.append({"file": name, "bytes": stat.st_size, "changed": int(stat.st_mtime)})
    return found


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise Refused(f"cannot read --log {log}: {error.strerror}") from error
    shown = [line if not _SECRET.search(line) else f"({_MASK})" for line in lines]
    return "\n".join(shown) + "\n"


def _json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
