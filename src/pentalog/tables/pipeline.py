"""A pipeline as its file declares it: frozen values, every one checked when the file is read."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

FORMATS: Final = ("json", "avro", "csv", "text", "raw")
SINKS: Final = ("delta", "parquet", "iceberg", "delta-jar", "iceberg-jar")
CATALOGS: Final = ("rest", "glue", "hive", "sql")
"""Those to which pyiceberg can commit."""
ACTIONS: Final = ("drop", "dead-letter", "stop")
LAYERS: Final = ("bronze", "silver", "dead_letters")
TIME_PARTITIONS: Final = ("day", "hour")

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_COLUMN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_DURATION: Final = re.compile(r"\s*(\d+)\s*(ms|[a-z]+?)s?\s*")
_UNITS_MS: Final = {
    "ms": 1, "millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000,
    "day": 86_400_000, "week": 604_800_000,
}  # fmt: skip
_ON_OBJECT_STORE: Final = re.compile(r"[a-z][a-z0-9+.-]*://")


class PipelineError(Exception):
    """A pipeline file that cannot be used; the text names the key and what it may be."""


def _key(default: Any = MISSING, *, text: str, name: str = "") -> Any:
    """A key of the file: its default, what it means, and its name where Python forbids that."""
    metadata = {"text": text, "name": name}
    if default is MISSING:
        return field(metadata=metadata)
    if isinstance(default, dict):
        # Such tables hold passwords.
        return field(default_factory=dict, metadata=metadata, repr=False)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Decode:
    """How a record's value becomes columns."""

    format: str = _key("raw", text="`json`, `avro`, `csv`, `text` or `raw`")
    schema: str = _key(
        "", text="columns in SQL (`id BIGINT, amount DOUBLE`), for Avro a schema or its file"
    )
    infer: bool = _key(
        False, text="JSON: add the fields that records bring; always so if there is no schema"
    )
    options: Mapping[str, str] = _key({}, text="options of Spark's JSON or CSV reader")

    @property
    def inferred(self) -> bool:
        """Whether records decide which columns there are."""
        return self.format == "json" and (self.infer or not self.schema)


_RAW: Final = Decode()
_DECODE_KEYS: Final = {
    "schema": ("json", "avro", "csv"),
    "infer": ("json",),
    "options": ("json", "avro", "csv"),
}
"""The formats that a key of `decode` is for; another would leave it unused and say nothing."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a row must fulfil, and what happens to one that does not."""

    name: str = _key(text="how dead letters and messages call it")
    expect: str = _key(text="an SQL condition over the columns of silver; null counts as broken")
    action: str = _key("dead-letter", text="`drop`, `dead-letter` or `stop`")


@dataclass(frozen=True, slots=True)
class Gold:
    """A table of windowed aggregates over silver's rows."""

    name: str
    window: str = _key(text="length of a window, such as `1 minute`")
    aggregates: Mapping[str, str] = _key(text="column = SQL aggregate, such as `sum(amount)`")
    by: tuple[str, ...] = _key((), text="columns to group by beside the window")
    watermark: str = _key("10 minutes", text="how late a row may come and still count")
    slide: str = _key("", text="distance of windows that overlap; empty: they do not")
    event_time: str = _key("", text="the time that counts; empty: the pipeline's")


@dataclass(frozen=True, slots=True)
class TableAt:
    """One table of a pipeline: where it lies and how it is written."""

    uri: str
    sink: str
    pipeline: str
    layer: str
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    fsync: bool = True
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Topics into tables; the names are the file's keys, but for `servers`, which is `from`."""

    name: str
    into: str = _key(text="directory or object store address the tables lie under")
    servers: str = _key(
        "", name="from", text="a Kafka door or cluster, `HOST:PORT`, several with commas"
    )
    data: str = _key("", text="a broker's data directory, read directly, in place of `from`")
    topics: tuple[str, ...] = _key((), text="the topics")
    pattern: str = _key("", text="a regular expression of topics, in place of `topics`")
    source_options: Mapping[str, str] = _key(
        {}, text="further options of the source, such as `tls`, `username`, `failOnDataLoss`"
    )
    starting: str = _key(
        "earliest", text="where a new table begins: `earliest`, `latest`, an ISO time, or JSON"
    )
    decode: Decode = field(default=_RAW, metadata={"text": "see [decoding](#decoding)"})
    columns: Mapping[str, str] = _key(
        {}, text="silver's columns as name = SQL; none: all that decode"
    )
    rules: tuple[Rule, ...] = _key((), text="see [rules](#rules)")
    event_time: str = _key("_timestamp", text="SQL for the time a row is about")
    partition_by: tuple[str, ...] = _key(
        (), text="`day` or `hour` of the event time, and columns of silver"
    )
    key: tuple[str, ...] = _key((), text="columns that identify a row: later rows replace earlier")
    transforms: str = _key("", text="a Python file of functions on DataFrames, beside this file")
    sink: str = _key("delta", text="see [kinds of tables](#kinds-of-tables)")
    spark: Mapping[str, str] = _key({}, text="settings of the session, such as `spark.jars`")
    storage_options: Mapping[str, str] = _key({}, text="access to an object store")
    catalog: Mapping[str, str] = _key({}, text="see [Iceberg catalogs](#iceberg-catalogs)")
    fsync: bool = _key(True, text="local tables: sync files before they are committed")
    file_bytes: int = _key(134_217_728, text="size of files that writing and compaction aim at")
    trigger: str = _key("10 seconds", text="time between batches of a long run")
    batch_rows_max: int = _key(1_000_000, text="most records of one batch")
    batch_bytes_max: int = _key(0, text="most bytes of one batch; above 0 it counts, not the rows")
    compact_every: int = _key(0, text="compact after this many batches; 0: only when asked")
    retention: str = _key("", text="rows older than this are removed, such as `30 days`")
    group: str = _key("", text="consumer group that shows progress; default `pentalog.` and name")
    lease: str = _key(
        "", text="the broker keeps what is not in the table this long, such as `1 hour`"
    )
    dead_letter_topic: bool = _key(False, text="dead letters also go to the topic `<topic>.dlq`")
    checkpoint: str = _key("", text="directory for Spark's progress; default `<into>/_checkpoint`")
    gold: tuple[Gold, ...] = _key((), text="see [gold](#gold)")

    def table(self, layer: str) -> TableAt:
        """The table of a layer: `bronze`, `silver`, `dead_letters` or `gold/NAME`."""
        silver = layer == "silver"
        return TableAt(
            uri=f"{self.into.rstrip('/')}/{layer}",
            sink=self.sink,
            pipeline=self.name,
            layer=layer,
            partition_by=silver_partitions(self) if silver else (),
            key=self.key if silver else (),
            storage_options=self.storage_options,
            fsync=self.fsync,
            catalog=self.catalog,
        )

    @property
    def layers(self) -> tuple[str, ...]:
        return (*LAYERS, *(f"gold/{gold.name}" for gold in self.gold))


def silver_partitions(pipeline: Pipeline) -> tuple[str, ...]:
    """The columns that lie in paths; those of time are made by us."""
    return tuple(f"_{name}" if name in TIME_PARTITIONS else name for name in pipeline.partition_by)


def is_local(uri: str) -> bool:
    return not _ON_OBJECT_STORE.match(uri)


def duration_ms(text: str) -> int:
    """`10 seconds` as a number; ValueError for what is none."""
    found = _DURATION.fullmatch(text.lower())
    unit = found and _UNITS_MS.get(found[2])
    if not found or not unit:
        raise ValueError(f"{text!r} is no duration; write it as '10 seconds', '5 minutes', '1 day'")
    return int(found[1]) * unit


def key_of(one: Field[Any]) -> str:
    """What a field is called in the file."""
    return str(one.metadata.get("name") or one.name)


def load(path: Path) -> dict[str, Pipeline]:
    """Every pipeline of a file, by name."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(
            f"{path}: {error.strerror or error}; name a pipeline file, or begin one with"
            " `pentalog table init FILE`"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineError(
            f"{path} is no TOML: {error}; `pentalog table init FILE` writes one to begin with"
        ) from error
    try:
        return parse(document, folder=path.parent)
    except PipelineError as error:
        raise PipelineError(f"{path}: {error}") from None


def parse(document: Mapping[str, Any], *, folder: Path = Path()) -> dict[str, Pipeline]:
    _refuse_unknown("", document, ("pipeline",))
    declared = document.get("pipeline")
    if not isinstance(declared, dict) or not declared:
        raise PipelineError("no pipeline; a file declares at least one as [pipeline.NAME]")
    return {name: _pipeline(name, keys, folder) for name, keys in declared.items()}


def _pipeline(name: str, keys: Any, folder: Path) -> Pipeline:
    where = f"pipeline.{name}"
    if not _NAME.fullmatch(name):
        raise PipelineError(f"{where}: a name is letters, digits, '_', '-' and '.'")
    given = _table(
        where,
        {**_mapping(where, keys), "starting": _starting(f"{where}.starting", keys)},
        Pipeline,
    )
    given["decode"] = _decode(f"{where}.decode", keys.get("decode", {}), folder)
    given["rules"] = _rules(f"{where}.rules", keys.get("rules", []))
    given["gold"] = tuple(
        _gold(f"{where}.gold.{gold}", gold, declared)
        for gold, declared in _mapping(f"{where}.gold", keys.get("gold", {})).items()
    )
    given["partition_by"] = _texts(f"{where}.partition_by", keys.get("partition_by", []))
    given["key"] = _texts(f"{where}.key", keys.get("key", []))
    if "transforms" in given:
        given["transforms"] = str(folder / given["transforms"])
    # Spark's workers may run elsewhere: what is relative means our current directory.
    for place in ("into", "data", "checkpoint"):
        if given.get(place) and is_local(given[place]):
            given[place] = str(Path(given[place]).absolute())
    given.setdefault("group", f"pentalog.{name}")
    given.setdefault("checkpoint", _checkpoint(str(given["into"]), name, folder))
    pipeline = Pipeline(name=name, **given)
    _check(where, pipeline)
    return pipeline


def _checkpoint(into: str, name: str, folder: Path) -> str:
    if is_local(into):
        return f"{into.rstrip('/')}/_checkpoint"
    # Spark writes its progress itself and has no object store without jars.
    return str(folder / ".pentalog" / name)


def _check(where: str, pipeline: Pipeline) -> None:
    if bool(pipeline.servers) == bool(pipeline.data):
        raise PipelineError(f"{where}: give either from = 'HOST:PORT' or data = 'DIR'")
    if bool(pipeline.topics) == bool(pipeline.pattern):
        raise PipelineError(f"{where}: give either topics = ['NAME'] or pattern = 'REGEX'")
    if not pipeline.into:
        raise PipelineError(f"{where}.into: is empty; give a directory or s3://BUCKET/PATH")
    _one_of(f"{where}.sink", pipeline.sink, SINKS)
    if pipeline.catalog and pipeline.sink != "iceberg":
        raise PipelineError(
            f"{where}.catalog: sink = '{pipeline.sink}' knows none; set sink = 'iceberg', which"
            " commits to catalogs"
        )
    if "type" in pipeline.catalog:
        _one_of(f"{where}.catalog.type", pipeline.catalog["type"], CATALOGS)
    for key in ("file_bytes", "batch_rows_max"):
        if getattr(pipeline, key) < 1:
            raise PipelineError(f"{where}.{key}: {getattr(pipeline, key)} must be 1 or more")
    for key in ("batch_bytes_max", "compact_every"):
        if getattr(pipeline, key) < 0:
            raise PipelineError(f"{where}.{key}: {getattr(pipeline, key)} must be 0 or more")
    for key in ("trigger", "retention", "lease"):
        if getattr(pipeline, key):
            _duration(f"{where}.{key}", getattr(pipeline, key), zero=key == "trigger")
    for key, column in (("columns", column) for column in pipeline.columns):
        if not _COLUMN.fullmatch(column):
            raise PipelineError(
                f"{where}.{key}.{column}: a column is letters, digits and '_', a letter first"
            )
    if pipeline.key and pipeline.retention:
        raise PipelineError(f"{where}.retention: a table with a key keeps the last row of each key")
    if pipeline.decode.format == "json" and not pipeline.decode.schema:
        for key in ("columns", "rules", "key", "gold"):
            if getattr(pipeline, key):
                raise PipelineError(
                    f"{where}.{key}: needs columns that are known before records come; give"
                    " decode.schema at least the ones it uses, with infer = true for the others"
                )
    for key in ("dead_letter_topic", "lease"):
        if getattr(pipeline, key) and not pipeline.servers:
            raise PipelineError(f"{where}.{key}: needs from = 'HOST:PORT', it asks the broker")


def _decode(where: str, value: Any, folder: Path) -> Decode:
    keys = {"format": value} if isinstance(value, str) else _mapping(where, value)
    given = _table(where, keys, Decode)
    decode = Decode(**given)
    _one_of(f"{where}.format", decode.format, FORMATS)
    for key, formats in _DECODE_KEYS.items():
        if getattr(decode, key) and decode.format not in formats:
            raise PipelineError(
                f"{where}.{key}: format = '{decode.format}' has none; set format to"
                f" {' or '.join(formats)}, or leave it out"
            )
    if decode.format in ("csv", "avro") and not decode.schema:
        raise PipelineError(f"{where}.schema: {decode.format} needs one")
    if decode.format == "avro" and not decode.schema.lstrip().startswith(("{", "[", '"')):
        file = folder / decode.schema
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise PipelineError(f"{where}.schema: {file}: {error.strerror or error}") from error
        return Decode("avro", text, False, decode.options)
    return decode


def _rules(where: str, value: Any) -> tuple[Rule, ...]:
    if not isinstance(value, list):
        raise PipelineError(f"{where}: a list of {{ name = '..', expect = 'SQL', action = '..' }}")
    found = []
    for number, entry in enumerate(value):
        at = f"{where}[{number}]"
        given = _table(at, _mapping(at, entry), Rule, defaults={"name": f"rule {number + 1}"})
        rule = Rule(**given)
        _one_of(f"{at}.action", rule.action, ACTIONS)
        found.append(rule)
    return tuple(found)


def _gold(where: str, name: str, value: Any) -> Gold:
    keys = _mapping(where, value)
    if not _COLUMN.fullmatch(name):
        raise PipelineError(f"{where}: a name is letters, digits and '_', a letter first")
    given = _table(where, keys, Gold)
    given["by"] = _texts(f"{where}.by", keys.get("by", []))
    gold = Gold(name=name, **given)
    for key in ("window", "watermark", "slide"):
        if getattr(gold, key):
            _duration(f"{where}.{key}", getattr(gold, key), zero=key == "watermark")
    if not gold.aggregates:
        raise PipelineError(f"{where}.aggregates: is empty; for example {{ rows = 'count(*)' }}")
    return gold


def _starting(where: str, keys: Mapping[str, Any]) -> str:
    value = keys.get("starting", "earliest")
    if isinstance(value, dict):
        return json.dumps(value)
    if not isinstance(value, str) or not value:
        raise PipelineError(
            f"{where}: {value!r}; give 'earliest', 'latest', an ISO time or offsets"
        )
    return value


def _table(
    where: str, value: Any, kind: type[Any], *, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The plain keys of a table, checked against the fields of `kind`."""
    keys = _mapping(where, value)
    known = {key_of(one): one for one in fields(kind) if one.metadata}
    _refuse_unknown(where, keys, known)
    given: dict[str, Any] = dict(defaults or {})
    for key, one in known.items():
        if key in keys:
            given[one.name] = _plain(f"{where}.{key}", keys[key], str(one.type))
        elif one.default is MISSING and one.default_factory is MISSING and one.name not in given:
            raise PipelineError(f"{where}.{key}: is missing; it is {one.metadata['text']}")
    return given


def _plain(where: str, value: Any, kind: str) -> Any:
    if kind == "str":
        if not isinstance(value, str):
            raise PipelineError(f"{where}: {value!r} must be a text in quotes")
        return value
    if kind == "bool":
        if not isinstance(value, bool):
            raise PipelineError(f"{where}: {value!r} must be true or false")
        return value
    if kind == "int":
        if not isinstance(value, int) or isinstance(value, bool):
            raise PipelineError(f"{where}: {value!r} must be a whole number")
        return value
    if kind == "tuple[str, ...]":
        return _texts(where, value)
    if kind.startswith("Mapping"):
        return dict(_entries(_mapping(where, value)))
    return value


def _entries(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Texts by name; TOML takes a dot in a name that has no quotes for a table in a table."""
    for name, entry in value.items():
        if isinstance(entry, dict):
            yield from ((f"{name}.{below}", text) for below, text in _entries(entry))
        else:
            yield name, json.dumps(entry) if isinstance(entry, bool) else str(entry)


def _texts(where: str, value: Any) -> tuple[str, ...]:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(one, str) and one for one in entries):
        raise PipelineError(f"{where}: {value!r} must be a list of texts, such as ['orders']")
    return tuple(entries)


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PipelineError(f"{where}: {value!r} must be a table, {{ key = value }}")
    return value


def _duration(where: str, text: str, *, zero: bool) -> None:
    try:
        length_ms = duration_ms(text)
    except ValueError as error:
        raise PipelineError(f"{where}: {error}") from None
    if not length_ms and not zero:
        raise PipelineError(f"{where}: {text!r} must be longer than nothing")


def _one_of(where: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise PipelineError(f"{where}: {value!r} is not known{_nearest(value, known)}")


def _refuse_unknown(where: str, keys: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in keys:
        if key not in known:
            at = f"{where}.{key}" if where else key
            raise PipelineError(f"{at}: no such key{_nearest(key, known)}")


def _nearest(word: str, known: Iterable[str]) -> str:
    words = list(known)
    near = difflib.get_close_matches(word, words, 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(words)}"
