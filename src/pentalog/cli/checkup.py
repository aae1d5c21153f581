"""What a broker needs of its machine, looked at one by one; nothing is changed for good."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import resource
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pentalog.app import doors
from pentalog.config import Config, Listen
from pentalog.kernels import KERNELS
from pentalog.log import checkpoints
from pentalog.log.files import RealFiles
from pentalog.log.format import FORMAT, FORMATS_READ, read_format

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"

_FREE_BYTES_MIN: Final = 1 << 30
_SYNCS: Final = 32
_SYNC_BYTES: Final = 4096
_SYNC_SLOW_MS: Final = 20.0
_SPARE_FILES: Final = 256
_CONNECT_S: Final = 2.0
_PACKAGES: Final = ("pyspark", "pyarrow", "deltalake", "pyiceberg")


class Finding(NamedTuple):
    name: str
    state: str
    text: str
    advice: str = ""


def findings(config: Config) -> Iterator[Finding]:
    """One line each, in the order in which a user would mend them."""
    yield from _program()
    yield from _directory(config.data)
    running = _is_locked(config.data)
    for listen, _ in doors(config):
        yield _port(listen, running=running)
    yield _open_files(config)
    yield from _spark()


def _program() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", OK, version)
    pure = sorted(name for name, twin in KERNELS.items() if twin == "pure")
    if not pure:
        yield Finding("kernels", OK, f"{len(KERNELS)} compiled")
        return
    asked = os.environ.get("PENTALOG_PURE")
    advice = (
        "unset PENTALOG_PURE" if asked else "install a wheel, or a C compiler and build it again"
    )
    text = f"{len(pure)} of {len(KERNELS)} run in Python: {', '.join(pure[:3])}; many times slower"
    yield Finding("kernels", WARN, text, advice)


# The directory


def _directory(data: Path) -> Iterator[Finding]:
    home = data
    while not home.exists() and home != home.parent:
        home = home.parent
    if data.exists() and not data.is_dir():
        yield Finding("directory", FAIL, f"{data} is no directory", "choose another --data")
        return
    if not os.access(home, os.W_OK | os.X_OK):
        advice = f"choose another --data, or let this user write in {home}"
        yield Finding("directory", FAIL, f"{home} cannot be written to", advice)
        return
    if data.exists():
        yield _format(data)
        yield _last_stop(data)
    else:
        yield Finding("directory", OK, f"{data.resolve()} will be made by the first start")
    yield _space(home)
    yield _sync_speed(home)


def _format(data: Path) -> Finding:
    where = data.resolve()
    try:
        text = read_format(RealFiles(), data)
    except OSError as error:
        advice = "bring the file back from a backup, or choose another --data"
        return Finding("directory", FAIL, f"cannot read the format of {where}: {error}", advice)
    if text in FORMATS_READ:
        return Finding("directory", OK, f"{where} has format {text}")
    if text:
        advice = "use the pentalog that wrote it, or choose another --data"
        return Finding("directory", FAIL, f"{where} has format {text}, not {FORMAT}", advice)
    if any(data.iterdir()):
        advice = "choose an empty --data unless this is a copy of Kafka's own log directory"
        return Finding(
            "directory", WARN, f"{where} holds something, but no pentalog.format", advice
        )
    return Finding("directory", OK, f"{where} is empty")


def _is_locked(data: Path) -> bool:
    if not (data / ".lock").exists():
        return False
    try:
        RealFiles().lock(data / ".lock").close()
    except OSError:
        return True
    return False


def _last_stop(data: Path) -> Finding:
    if _is_locked(data):
        return Finding("lock", OK, "a broker is running on it")
    if (data / checkpoints.CLEAN_STOP).exists():
        return Finding("lock", OK, "free; the last stop was clean")
    if (data / checkpoints.RECOVERY_POINTS).exists():
        return Finding(
            "lock", WARN, "free; the last stop was not clean", "the next start looks at the files"
        )
    return Finding("lock", OK, "free")


def _space(home: Path) -> Finding:
    usage = shutil.disk_usage(home)
    share = 100 * usage.free / usage.total if usage.total else 0
    text = f"{usage.free / 1e9:.1f} GB free, {share:.0f} %"
    if usage.free < _FREE_BYTES_MIN:
        return Finding("space", FAIL, text, "make room, or choose a --data on a larger disk")
    if share < 5:
        return Finding("space", WARN, text, "set retention.bytes or retention.ms of large topics")
    return Finding("space", OK, text)


def _sync_speed(home: Path) -> Finding:
    """How long the disk takes to confirm a small write: what acks=all waits for."""
    took: list[float] = []
    try:
        with tempfile.NamedTemporaryFile(prefix=".pentalog-doctor-", dir=home) as file:
            data = os.urandom(_SYNC_BYTES)
            for _ in range(_SYNCS):
                started = time.perf_counter()
                os.pwrite(file.fileno(), data, 0)
                os.fdatasync(file.fileno())
                took.append((time.perf_counter() - started) * 1000)
    except OSError as error:
        return Finding("fsync", FAIL, f"{home}: {error.strerror}", "choose another --data")
    median, worst = statistics.median(took), max(took)
    text = f"{median:.2f} ms in the middle of {_SYNCS}, {worst:.2f} ms at worst"
    if median > _SYNC_SLOW_MS:
        advice = "acks=all waits for this: use a faster disk, or batch more per request"
        return Finding("fsync", WARN, text, advice)
    return Finding("fsync", OK, text)


# Ports and limits


def _port(listen: Listen, *, running: bool) -> Finding:
    name, where = f"port {listen.name}", f"{listen.host or '*'}:{listen.port}"
    if listen.port == 0:
        return Finding(name, OK, "any free one")
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((listen.host, listen.port))
    except OSError as error:
        if not _answers(listen):
            advice = "choose another port or host with --listen"
            return Finding(name, FAIL, f"{where}: {error.strerror}", advice)
        if running:
            return Finding(name, OK, f"{where} answers")
        advice = f"stop who listens there, or choose another with --listen {listen.name}=HOST:PORT"
        return Finding(name, FAIL, f"{where} is taken by another program", advice)
    if running:
        return Finding(name, WARN, f"{where} is not served by the broker that runs", "")
    return Finding(name, OK, f"{where} is free")


def _answers(listen: Listen) -> bool:
    host = listen.host or "127.0.0.1"
    try:
        socket.create_connection((host, listen.port), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True


def _open_files(config: Config) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * config.connections_max + _SPARE_FILES
    if hard == resource.RLIM_INFINITY:
        return Finding("open files", OK, "no limit")
    if hard >= needed:
        return Finding("open files", OK, f"{hard} allowed")
    text = f"{hard} allowed: enough for about {max(0, hard - _SPARE_FILES) // 2} connections"
    advice = f"raise it (ulimit -Hn {needed}), or lower connections_max={config.connections_max}"
    return Finding("open files", WARN, text, advice)


# Spark


def _spark() -> Iterator[Finding]:
    """Nothing of it is needed unless topics are to become tables."""
    from pentalog.tables.archive import NoJava, java

    try:
        yield Finding("java", OK, str(java()))
    except NoJava as error:
        said, _, advice = str(error).partition("; ")
        yield Finding("java", WARN, said, f"for tables and SQL only: {advice}")
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            advice = "for tables and SQL only: pip install 'pentalog[spark]'"
            yield Finding(name, WARN, "not installed", advice)
        else:
            yield Finding(name, OK, importlib.metadata.version(name))
    yield _jars()


def _jars() -> Finding:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return Finding("jars", WARN, "none: they come with pyspark", "install pyspark")
    home = Path(os.environ.get("SPARK_HOME") or Path(spec.origin).parent)
    jars = list((home / "jars").glob("*.jar"))
    sql = [jar for jar in jars if jar.name.startswith("spark-sql_")]
    if not sql:
        advice = "unset SPARK_HOME, or install pyspark again"
        return Finding("jars", WARN, f"{home / 'jars'} has no spark-sql", advice)
    return Finding("jars", OK, f"{len(jars)} in {home / 'jars'}; no Kafka connector is needed")
