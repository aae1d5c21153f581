"""The Python of Spark's workers: this one, without the copies that Spark puts before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pentalog.tables import interpreter

HOME = "/opt/a spark"


def test_it_is_this_python_without_sparks_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENTALOG_CACHE", str(tmp_path))
    program = interpreter.lean()
    assert program == interpreter.lean()
    paths = [
        f"{HOME}/python/lib/pyspark.zip",
        f"{HOME}/python/lib/py4j-0.10.9.9-src.zip",
        f"{HOME}/jars/spark-core_2.13-4.3.0.jar",
        "/users/own.zip",
        "/users/a folder",
    ]
    told = subprocess.run(
        [program, "-c", "import os, sys; print(sys.prefix, os.environ['PYTHONPATH'], sys.argv[1])",
         "a b"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout == f"{sys.prefix} /users/own.zip:/users/a folder a b\n"


def test_without_a_cache_it_is_this_python_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENTALOG_CACHE", str(tmp_path / "file"))
    assert interpreter.lean() == sys.executable
