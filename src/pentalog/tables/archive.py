"""What makes Spark start quickly and quietly: a shared class archive and a log configuration.

A Java machine that maps its classes from an archive starts in half the time.  The archive fits one
Java and one pyspark only, so it is made here, in the user's cache: the first session to end leaves
it behind, later ones map it.  A session never fails for the lack of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
_INSTALL: Final = (
    f"install a Java {JAVA_MIN} or 21 runtime (Debian: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or point JAVA_HOME at one"
)
_MAGIC: Final = frozenset({b"\xa8\xab\x0b\xf0", b"\xf0\x0b\xab\xa8"})
"""How an archive begins, in either byte order.  Java writes these bytes last."""
_BUILD_TIMEOUT_S: Final = 300
_QUIET: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.scheduler.name = org.apache.spark.scheduler.TaskSchedulerImpl
logger.scheduler.level = warn
logger.yarn.name = org.apache.spark.scheduler.cluster.YarnScheduler
logger.yarn.level = warn
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class NoJava(Exception):
    """Spark cannot start; the text says what to install."""


def cache_directory() -> Path:
    """Where things that can be made again are kept; `PENTALOG_CACHE` names another place."""
    given = os.environ.get("PENTALOG_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pentalog"


def java() -> Path:
    """The Java that Spark would start, links followed."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise NoJava(f"Spark needs Java and there is none {where}; {_INSTALL}")
    program = Path(found).resolve()
    stated = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', _release(program), re.MULTILINE)
    if stated is not None and int(stated[1]) < JAVA_MIN:
        raise NoJava(f"{program} is Java {stated[1]}; {_INSTALL}")
    return program


def options() -> list[str]:
    """What to tell the Java machine of a driver."""
    program = java()
    try:
        directory = cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
        return [_log_option(directory), *_archive_options(directory, program)]
    except OSError:
        # A cache that cannot be used costs time and nothing else.
        return []


def build() -> bool:
    """Make the archive now unless it is there; for machines that will start Spark often."""
    if _adopted(cache_directory(), java()) is not None:
        return True
    with contextlib.suppress(OSError, subprocess.SubprocessError), _alone(cache_directory()):
        if _adopted(cache_directory(), java()) is not None:
            return True
        # Java keeps the pipe open until the archive is written.
        subprocess.run(
            [sys.executable, "-m", __name__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
            env=os.environ,
        )
    return _adopted(cache_directory(), java()) is not None


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Others who want to build it wait, and then find it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "build.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _release(program: Path) -> str:
    with contextlib.suppress(OSError):
        return (program.parent.parent / "release").read_text()
    return ""


def _name(program: Path) -> str:
    import pyspark

    home = Path(pyspark.__file__).parent
    parts = (str(program), _release(program), pyspark.__version__, str(home))
    return (
        f"spark-{pyspark.__version__}-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:12]}"
    )


def _log_option(directory: Path) -> str:
    path = kept(directory, "log4j2", ".properties", _QUIET.encode())
    return f"-Dlog4j2.configurationFile={path.as_uri()}"


def kept(directory: Path, name: str, suffix: str, content: bytes, *, mode: int = 0o644) -> Path:
    """A file of the cache with exactly this content, which is part of its name."""
    path = directory / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}{suffix}"
    if not path.exists():
        _replace(path, content, mode=mode)
    return path


def _replace(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    fresh.write_bytes(content)
    fresh.chmod(mode)
    os.replace(fresh, path)


def _archive_options(directory: Path, program: Path) -> list[str]:
    # Java complains about every class it cannot share; none of it concerns the user.
    quiet = ["-Xshare:auto", "-Xlog:disable", "-Xlog:all=off"]
    there = _adopted(directory, program)
    if there is not None:
        return [*quiet, f"-XX:SharedArchiveFile={there}"]
    name = _name(program)
    if not _claimed(directory / f"{name}.claim"):
        return quiet
    return [*quiet, f"-XX:ArchiveClassesAtExit={directory / name}.{uuid.uuid4().hex}.new"]


def _adopted(directory: Path, program: Path) -> Path | None:
    """The archive, if a session has left a whole one behind."""
    name = _name(program)
    path = directory / f"{name}.jsa"
    for fresh in directory.glob(f"{name}.*.new"):
        with contextlib.suppress(OSError):
            # An archive that is not whole would crash Java.
            with fresh.open("rb") as file:
                if file.read(4) not in _MAGIC:
                    continue
                os.fsync(file.fileno())
            os.replace(fresh, path)
    return path if path.exists() else None


def _claimed(claim: Path) -> bool:
    """Whether this process is the one whose Java is to leave an archive behind."""
    with contextlib.suppress(OSError, ValueError):
        owner = int(claim.read_text())
        if owner != os.getpid() and _lives(owner):
            return False
    _replace(claim, str(os.getpid()).encode())
    return True


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _leave_archive() -> None:
    """Use what every pipeline uses, so that its classes are in the archive."""
    from pentalog.tables.session import session

    spark = session(master="local[1]", quick=True)
    spark.range(10).createOrReplaceTempView("numbers")
    numbers = spark.sql(
        "select id % 3 as part, sum(id) as total from numbers group by 1 order by 1"
    )
    numbers.mapInArrow(iter, numbers.schema).collect()
    spark.stop()


if __name__ == "__main__":
    _leave_archive()
