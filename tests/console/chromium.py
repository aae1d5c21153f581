"""Chromium and its driver: as installed, or Debian's packages unpacked into a cache directory."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("chromium", "chromium-driver")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pentalog-tests"


class NoChromium(Exception):
    """There is no browser here; the text says why."""


@dataclass(frozen=True)
class Chromium:
    browser: str
    driver: str
    environment: Mapping[str, str] = field(default_factory=dict)


def find() -> Chromium:
    """The browser of this machine, or one unpacked for tests."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser and driver:
        return Chromium(browser, driver)
    return unpacked(CACHE / "chromium")


def unpacked(folder: Path, *options: str) -> Chromium:
    """Debian's packages and what they need beside what is installed, without installing them."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    root = folder / "root"
    with folder.with_suffix(".lock").open("w") as lock:
        # Tests run in several processes, and one of them is enough for this.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _unpack(folder, root, options)
    libraries = {str(path.parent) for path in root.rglob("*.so*")}
    return Chromium(
        str(root / "usr/lib/chromium/chromium"),
        str(root / "usr/bin/chromedriver"),
        {"LD_LIBRARY_PATH": ":".join(sorted(libraries))},
    )


def _unpack(folder: Path, root: Path, options: tuple[str, ...]) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NoChromium("chromium is not installed, and there is no apt-get to fetch it with")
    shutil.rmtree(folder, ignore_errors=True)
    packages, draft = folder / "packages", folder / "draft"
    packages.mkdir(parents=True)
    try:
        _fetch(packages, options)
        for package in sorted(packages.glob("*.deb")):
            subprocess.run(
                ["dpkg-deb", "-x", package, draft], check=True, capture_output=True, env=os.environ
            )
        draft.rename(root)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoChromium(f"Debian's chromium cannot be fetched: {error}") from error
    shutil.rmtree(packages)


def _fetch(folder: Path, options: tuple[str, ...]) -> None:
    wanted = ["apt-get", "-s", *options, "install", "--no-install-recommends", *PACKAGES]
    planned = subprocess.run(
        wanted, check=True, capture_output=True, text=True, env=os.environ
    ).stdout
    names = re.findall(r"^Inst (\S+)", planned, re.MULTILINE)
    subprocess.run(
        ["apt-get", *options, "download", *names],
        cwd=folder, check=True, capture_output=True, timeout=240, env=os.environ,
    )  # fmt: skip
