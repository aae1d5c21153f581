"""Processes for tests of crashes: `pentalog table` in one of its own, its Java, and a broker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from pentalog.tables import archive
from pentalog.testing.ports import reserve_port

_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_ENOUGH_S = 200


def command(*words: str, **environment: str) -> subprocess.Popen[str]:
    """`pentalog table` in a group of its own, so that whatever it started can be ended with it."""
    return subprocess.Popen(
        [sys.executable, "-m", "pentalog", "table", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=_ENOUGH_S)
    finally:
        end_group(process)
    return process.returncode, out, err


def end_group(process: subprocess.Popen[str]) -> None:
    """kill -9 of a command and of what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


class Java:
    """A Java machine for one driver after the other.

    Starting one costs more than all that a short driver does, and drivers are killed often.
    """

    def __init__(self, jars: str = "") -> None:
        self._gateway: Any = None
        self._jars = jars

    def environment(self) -> dict[str, str]:
        """What makes a driver use this Java; what an earlier driver left in it is ended."""
        if self._gateway is None:
            options = " ".join((*archive.options(), *_QUICK))
            settings = SparkConf(loadDefaults=False)
            settings.setAll(
                [("spark.driver.extraJavaOptions", options), ("spark.ui.enabled", "false"),
                 *([("spark.jars", self._jars)] if self._jars else [])]
            )  # fmt: skip
            self._gateway = launch_gateway(
                settings, {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            )
        else:
            contexts = self._gateway.jvm.org.apache.spark.SparkContext
            settings = self._gateway.jvm.org.apache.spark.SparkConf()
            settings.setMaster("local[1]").setAppName("left")
            contexts.getOrCreate(settings).stop()
        parameters = self._gateway.gateway_parameters
        return {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": str(parameters.auth_token),
        }

    def kill(self) -> None:
        if self._gateway is not None:
            self._gateway.proc.kill()
            self._gateway.proc.wait()
            self._gateway.proc.stdin.close()
            self._gateway = None


class Victim:
    """A broker that is started on the same port and data whenever it has been killed."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self._stderr = directory / "broker.stderr"
        self.address = f"127.0.0.1:{reserve_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pentalog", "start"),
                    *("--data", str(self.data), "--listen", f"kafka={self.address}"),
                ],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"ready"):
                return
        pytest.fail(f"the broker did not start: {self._stderr.read_text()[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
