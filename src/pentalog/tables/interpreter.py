"""The Python that Spark starts its workers with: the one of this process, and its pyspark.

Spark puts its own copy of pyspark before the installed one, as a zip of sources, and with it a jar.
Python would compile the copy in every process anew and read the jar's directory whenever it looks
for a module, which takes longer than all else that a worker does in a short run.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Final

from pentalog.tables import archive

_TEXT: Final = """\
#!/bin/sh
kept=
IFS=:
for one in $PYTHONPATH; do
  case $one in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */jars/spark-core_*.jar) ;;
    *) kept=$kept${{kept:+:}}$one ;;
  esac
done
PYTHONPATH=$kept exec {python} "$@"
"""


def lean() -> str:
    """A program that is this Python, without those copies; only for workers on this machine."""
    if os.name != "posix":
        return sys.executable
    text = _TEXT.format(python=shlex.quote(sys.executable))
    try:
        directory = archive.cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
        return str(archive.kept(directory, "python", ".sh", text.encode(), mode=0o755))
    except OSError:
        # A cache that cannot be used costs time and nothing else.
        return sys.executable
