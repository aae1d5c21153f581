"""What Spark and the tables refuse, in one line each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pentalog.cli.client import explained
from pentalog.cli.output import Refused

if TYPE_CHECKING:
    from pentalog.tables.options import SourceOptions
    from pentalog.tables.pipeline import Pipeline

_LAST_LINE: Final = re.compile(r"^([\w.]+): (.+)$", re.MULTILINE)
_IN_A_WORKER: Final = "An exception was thrown from the Python worker"
"""What pyspark puts above the trace that matters."""
_RULE_BROKEN: Final = re.compile(r"\bRuleBroken: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_JAVA_CAUSE: Final = re.compile(r"^(?:: |Caused by: )[\w.$]+: (.+)$", re.MULTILINE)
_CHAIN: Final = re.compile(r"\s*\x1b\[31m↳\x1b\[0m\s*|\s*\n\s*")
_NO_WORKER: Final = re.compile(r"No module named 'pentalog\b|Cannot run program \"[^\"]*python")
_NOISE: Final = re.compile(r"\s*(?:SQLSTATE: \w+|; line \d+ pos \d+;?)")


@contextmanager
def refusing() -> Iterator[None]:
    """Inside, anything that is no mistake of ours becomes `Refused`."""
    from pentalog.clients.kafka.errors import KafkaFailed
    from pentalog.log.reader import DirectoryUnreadable
    from pentalog.tables.archive import NoJava
    from pentalog.tables.catalog import UnknownName
    from pentalog.tables.pipeline import PipelineError
    from pentalog.tables.session import NoSpark
    from pentalog.tables.sinks import CatalogFailed, Missing, SinkRefused

    known = (
        NoJava, NoSpark, UnknownName, PipelineError, SinkRefused, Missing, CatalogFailed,
        KafkaFailed, DirectoryUnreadable,
    )  # fmt: skip
    try:
        yield
    except known as error:
        raise Refused(str(error)) from error
    except OSError as error:
        if error.filename is None and error.errno is None:
            # Of libraries, about object stores: a chain of causes on several coloured lines.
            raise Refused(
                f"{_CHAIN.sub(': ', str(error).strip()).rstrip('.')}; check into and"
                " storage_options of the pipeline"
            ) from error
        if error.filename is None:
            raise
        raise Refused(
            f"{error.filename}: {error.strerror}; name another place, or mend this one"
        ) from error
    except _spark_errors() as error:
        raise Refused(reason(str(error))) from error


def refuse_early(options: SourceOptions, who: str = "") -> None:
    """Refuse at once what Spark would be started for in vain: nobody there, or no right to read.

    `who` wants to read.
    """
    from pentalog.clients.kafka.errors import KafkaFailed
    from pentalog.tables.sources import check_allowed, trouble

    why = trouble(options.servers, options.data)
    if why:
        raise Refused(who + why)
    try:
        check_allowed(options)
    except KafkaFailed as error:
        raise Refused(who + explained(error)) from error


def refuse_pipelines_early(pipelines: Iterable[Pipeline]) -> None:
    """The same, of what these would read."""
    from pentalog.tables.bronze import where
    from pentalog.tables.options import read_options

    for one in pipelines:
        refuse_early(read_options(where(one)), f"pipeline {one.name}: ")


def _spark_errors() -> tuple[type[Exception], ...]:
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException
    except ImportError:
        return ()
    return (PySparkException, Py4JError)


def reason(text: str) -> str:
    """The line of a Spark error that says what is wrong, and what to do if that is not in it."""
    found = _reason(text)
    if not _NO_WORKER.search(found):
        return found
    return (
        f"{found}; Spark's workers run the Python that PYSPARK_PYTHON names, or else this one: it"
        " must be on every node, at the same path, with pentalog[spark] installed"
    )


def _reason(text: str) -> str:
    stopped = _RULE_BROKEN.search(text)
    if stopped:
        return stopped[1].strip()
    if "Traceback (most recent call last)" in text:
        # Our own words, raised in a worker, below the lines of two languages' traces.
        _, _, behind = text.partition("Traceback (most recent call last)")
        for match in _LAST_LINE.finditer(behind):
            if not _is_frame(match[0]):
                return _spoken(match[1], match[2].strip())
    if text.startswith("An error occurred while calling"):
        causes = _JAVA_CAUSE.findall(text)
        if causes:
            return ": ".join(dict.fromkeys((causes[0], causes[-1])))
    first = text.strip()
    # What Spark appends: the plan of a query, the state of a stream, the trace of Java.
    for mark in ("\n'", "\n=== Streaming Query", "\n\nJVM"):
        first = first.partition(mark)[0].strip()
    return _NOISE.sub("", first).strip()


def _is_frame(line: str) -> bool:
    return line.lstrip().startswith(("File ", "at ", "Traceback")) or _IN_A_WORKER in line


def _spoken(kind: str, text: str) -> str:
    """Our own errors are sentences; of Python's, `'x'` alone would say nothing."""
    return (
        text if kind.startswith(("pentalog.", "pyspark.")) else f"{kind.rpartition('.')[2]}: {text}"
    )
