"""Jars of table formats from Maven Central, fetched once on a machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pyspark
import pytest

from pentalog.tables.jars import DELTA, ICEBERG

FITS = {DELTA.name: "4.2.", ICEBERG.name: ""}
"""How the version of a Spark begins that a kind's jars can be used with."""
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>pentalog</groupId><artifactId>jars</artifactId><version>1</version>
<packaging>pom</packaging><dependencies>{}</dependencies></project>"""
_DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<classifier>{}</classifier></dependency>"""
_OWN = ("delta-", "unitycatalog-", "iceberg-", "sqlite-")
"""What Spark does not have: of other files it has its own versions."""


def jars(kind: str, *, fitting: bool = True) -> str:
    """The files of a kind's jars, with commas; skips the test if they cannot be used or had."""
    if fitting and not pyspark.__version__.startswith(FITS[kind]):
        pytest.skip(f"the jars of {kind} fit Spark {FITS[kind]}x; this is {pyspark.__version__}")
    packages = {one.name: one.packages for one in (DELTA, ICEBERG)}[kind]
    name = packages.replace(":", "-").replace(",", "-")
    folder = fetched(name, packages.split(","), _OWN)
    return ",".join(str(one) for one in sorted(folder.glob("*.jar")))


def fetched(name: str, packages: Iterable[str], kept: tuple[str, ...] = ("",)) -> Path:
    """A folder of these, `GROUP:ARTIFACT:VERSION[:CLASSIFIER]`, and of what they need.

    Of all that only files whose names begin with one of `kept`.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pentalog"
    folder = base / name
    base.mkdir(parents=True, exist_ok=True)
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(list(packages), folder, kept)
    return folder


def _fetch(packages: list[str], folder: Path, kept: tuple[str, ...]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"{folder} is not there, and mvn, which would fetch it, is not installed")
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        pom, target = Path(work) / "pom.xml", Path(work) / "jars"
        wanted = "".join(_DEPENDENCY.format(*f"{one}:".split(":")) for one in packages)
        pom.write_text(_POM.format(wanted))
        fetched = subprocess.run(
            [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
             "-DincludeScope=runtime", f"-DoutputDirectory={target}"],
            capture_output=True, text=True, timeout=900, check=False, env=os.environ,
        )  # fmt: skip
        if fetched.returncode != 0:
            pytest.skip(f"mvn could not fetch {', '.join(packages)}: {fetched.stdout[-500:]}")
        for one in target.glob("*.jar"):
            if not one.name.startswith(kept):
                one.unlink()
        target.rename(folder)
