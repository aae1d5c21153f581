"""Topics and tables by name: `topic.orders`, `table.orders`, made known to Spark when used.

| Name | What it is |
|---|---|
| `topic.NAME` | the records of a topic, as they are now |
| `table.NAME` | the silver table of the pipeline NAME |
| `table.NAME_bronze`, `table.NAME_dead_letters`, `table.NAME_GOLD` | its other tables |

Spark lets one database hold views of any DataFrame, so that one is called `table`.  Topics are
views of Spark's own catalog; those whose names it does not allow, and streams, take the place of
their names in the text of a query.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pentalog.clients.kafka.cluster import Cluster
from pentalog.log.reader import DirectoryReader
from pentalog.tables.options import client_options
from pentalog.tables.pipeline import Pipeline
from pentalog.tables.rows import COLUMNS
from pentalog.tables.sinks import open_table

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession

TOPICS: Final = "topic"
TABLES: Final = "table"
SERVER: Final = "127.0.0.1:9092"

_ANY: Final = "__pentalog"
_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"
_NAME: Final = re.compile(r"\w+", re.ASCII)
_RELATION: Final = "RelationV2["
_REFERENCE: Final = re.compile(r"CTERelationRef (\d+)")
_PART: Final = re.compile(r"`((?:[^`]|``)*)`")


class UnknownName(Exception):
    """A query names something that is not there; the text says what is."""


class _Missing(NamedTuple):
    """A name Spark did not find, and where it stands in the query."""

    parts: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Places:
    """Where topics and tables are: a broker or a data directory, and pipelines."""

    servers: str = ""
    data: str = ""
    pipelines: Mapping[str, Pipeline] = field(default_factory=dict)
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The source's options that say who reads, and whom to trust."""

    def options(self, topic: str) -> dict[str, str]:
        """What the source needs to read a topic."""
        if self.data:
            return {"data": self.data, "topics": topic}
        return {**self.login, "servers": self.servers or SERVER, "topics": topic}

    def of_topic(self, topic: str) -> Places:
        """Where one topic is: as given, else where the pipeline that reads it finds it."""
        if self.servers or self.data:
            return self
        known = list(self.pipelines.values())
        reading = [one for one in known if topic in one.topics] or known
        if not reading:
            return Places(SERVER, login=self.login)
        return Places(reading[0].servers, reading[0].data)

    def topics(self) -> list[str]:
        """The topics that are there now."""
        found: set[str] = set()
        for servers, data in self._sources():
            if data:
                found |= {at.topic for at in DirectoryReader(Path(data)).marks()}
            else:
                with Cluster(servers, client_options(self.login)) as cluster:
                    found |= {topic.name for topic in cluster.all_topics()}
        return sorted(found)

    def _sources(self) -> Iterator[tuple[str, str]]:
        if self.servers or self.data or not self.pipelines:
            yield (self.servers or SERVER if not self.data else ""), self.data
            return
        yield from {(one.servers, one.data) for one in self.pipelines.values()}

    def tables(self) -> dict[str, tuple[Pipeline, str]]:
        """(pipeline, layer) by the name a query uses."""
        found: dict[str, tuple[Pipeline, str]] = {}
        for name, pipeline in self.pipelines.items():
            for layer in pipeline.layers:
                suffix = "" if layer == "silver" else f"_{layer.removeprefix('gold/')}"
                found[f"{name}{suffix}"] = (pipeline, layer)
        return found


class Catalog:
    """The names of one session."""

    def __init__(self, spark: SparkSession, places: Places) -> None:
        self._spark = spark
        self._places = places
        self._tables = places.tables()

    @property
    def places(self) -> Places:
        return self._places

    def sql(self, text: str) -> DataFrame:
        """Run a query; whatever it names is looked up now."""
        from pyspark.errors import AnalysisException

        whole, topics = self._resolved(text, self._topic_view)
        plan = whole._jdf.queryExecution().analyzed().toString()
        if not topics or plan.count(_RELATION) < len(topics):
            return whole
        columns, once = columns_in(text), _reads_once(plan, len(topics))
        try:
            return self._resolved(text, lambda topic: self._topic_rows(topic, columns, once))[0]
        except AnalysisException:
            # Names in full, topic.orders.offset, are known for views only.
            return whole

    def stream(self, text: str, *, starting: str) -> DataFrame:
        """A query that follows its topics from `starting` on."""
        return self._resolved(text, lambda topic: self._topic_stream(topic, starting))[0]

    def _resolved(self, text: str, known_as: Callable[[str], str]) -> tuple[DataFrame, set[str]]:
        """A query with every name made known, topics by `known_as`; and which topics there are."""
        from pyspark.errors import AnalysisException, ParseException

        self._forget()
        topics: set[str] = set()
        seen: set[_Missing] = set()
        other = ""
        while True:
            try:
                return self._spark.sql(text), topics
            except ParseException:
                if not other:
                    raise
                # The name was followed by another one for it, and has two now.
                text, other = other, ""
            except AnalysisException as error:
                missing = _missing(error, text)
                if missing is None or missing in seen:
                    raise
                seen.add(missing)
                view = self._made_known(missing, known_as)
                if missing.parts[0] == TOPICS:
                    topics.add(missing.parts[1])
                text, other = _substituted(text, missing, view)

    def register_all(self) -> None:
        """Every topic and every table there is now, for users who write their own queries."""
        for topic in self._places.topics():
            self._topic_view(topic)
        for name, (pipeline, layer) in self._tables.items():
            if open_table(pipeline.table(layer)).exists():
                self._table_view(name)

    def _made_known(self, missing: _Missing, known_as: Callable[[str], str]) -> str:
        """Make a name known to Spark; returns the name Spark knows it by."""
        if len(missing.parts) != 2 or missing.parts[0] not in (TOPICS, TABLES):
            raise UnknownName(
                f"there is no {'.'.join(missing.parts)}; topics are {TOPICS}.NAME and tables of "
                f"pipelines {TABLES}.NAME"
            )
        database, name = missing.parts
        if database == TABLES:
            self._check_table(name)
            return self._table_view(name)
        self._check_topic(name)
        return known_as(name)

    def _check_topic(self, topic: str) -> None:
        known = self._places.of_topic(topic)
        names = known.topics()
        if topic not in names:
            shown = ", ".join(names[:20]) or "no topics at all"
            raise UnknownName(f"there is no topic {topic!r} at {_place(known)}; there are: {shown}")

    def _check_table(self, name: str) -> None:
        if name not in self._tables:
            known = ", ".join(f"{TABLES}.{one}" for one in self._tables)
            raise UnknownName(
                f"no pipeline has a table {TABLES}.{name}; "
                + (f"there are: {known}" if known else "name its file with --config FILE")
            )

    def _topic_view(self, topic: str) -> str:
        name = f"{TOPICS}.{topic if _NAME.fullmatch(topic) else f'_{_digest(topic)}'}"
        columns = ", ".join(f"`{column}` {kind}" for column, kind in COLUMNS.items())
        options = ", ".join(
            f"'{key}' = {_quoted(value)}"
            for key, value in self._places.of_topic(topic).options(topic).items()
        )
        self._spark.sql(f"create database if not exists {TOPICS}")
        # A table forgets its options when it is read; a query may give them.
        self._spark.sql(f"create table if not exists {TOPICS}.{_ANY} ({columns}) using pentalog")
        self._spark.sql(
            f"create or replace view {name} as select * from {TOPICS}.{_ANY} with ({options})"
        )
        return name

    def _topic_rows(self, topic: str, columns: Sequence[str], pushdown: bool) -> str:
        """A topic for one use in one query: no more columns, and no more rows, than it needs."""
        name = f"__topic_{_digest(topic)}"
        options = self._places.of_topic(topic).options(topic)
        reader = self._spark.read.format("pentalog").options(**options)
        reader = reader.option("columns", ",".join(columns)).option("pushdown", pushdown)
        reader.load().createOrReplaceTempView(name)
        return name

    def _topic_stream(self, topic: str, starting: str) -> str:
        name = f"__stream_{_digest(topic)}"
        options = self._places.of_topic(topic).options(topic)
        reader = self._spark.readStream.format("pentalog").options(**options)
        reader.option("starting", starting).load().createOrReplaceTempView(name)
        return name

    def _table_view(self, name: str) -> str:
        pipeline, layer = self._tables[name]
        rows = open_table(pipeline.table(layer)).read(self._spark)
        rows.createOrReplaceGlobalTempView(f"`{name}`")
        return f"{TABLES}.{name}"

    def _forget(self) -> None:
        """Views of tables hold the files of a moment, so every query gets new ones."""
        for name in self._tables:
            self._spark.catalog.dropGlobalTempView(name)
        self._spark.sql(f"drop database if exists {TOPICS} cascade")


def columns_in(text: str) -> list[str]:
    """The source's columns that a query may use: all, if one cannot tell."""
    spoken = re.sub(r"\bcount\s*\(\s*\*\s*\)", " ", text, flags=re.IGNORECASE)
    words = set(re.findall(r"\w+", spoken.lower()))
    if "*" in spoken or "natural" in words:
        return list(COLUMNS)
    return [name for name in COLUMNS if name in words] or ["offset"]


def _reads_once(plan: str, topics: int) -> bool:
    """Whether no topic is read twice: Spark would mix up the filters of the two.

    Subqueries over rows outside of them, and names for queries, may be copied.
    """
    references = _REFERENCE.findall(plan)
    copied = "outer(" in plan or "Lateral" in plan or len(references) > len(set(references))
    return plan.count(_RELATION) == topics and not copied


def _substituted(text: str, missing: _Missing, view: str) -> tuple[str, str]:
    """The query with a name that Spark knows, called as it was.

    Second, the query to try if the name was followed by another one for it.
    """
    if view == ".".join(missing.parts):
        return text, ""
    before, behind = text[: missing.start], text[missing.end :]
    called = missing.parts[-1].replace("`", "``")
    return f"{before}{view} as `{called}`{behind}", f"{before}{view}{behind}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _place(places: Places) -> str:
    return places.data or places.servers or SERVER


def _missing(error: AnalysisException, text: str) -> _Missing | None:
    if error.getCondition() != _NOT_FOUND:
        return None
    named = (error.getMessageParameters() or {}).get("relationName", "")
    parts = tuple(part.replace("``", "`") for part in _PART.findall(named))
    contexts = error.getQueryContext()
    if not contexts:
        return None
    # Java counts in UTF-16.
    units = text.encode("utf-16-le")
    start = len(units[: 2 * contexts[0].startIndex()].decode("utf-16-le", "replace"))
    end = len(units[: 2 * contexts[0].stopIndex() + 2].decode("utf-16-le", "replace"))
    return _Missing(parts, start, end)
