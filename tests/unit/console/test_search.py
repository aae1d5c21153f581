"""Searching whole topics: every match and nothing else, from files, to the end, however many."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pentalog
from pentalog.clients.kafka import ClientOptions, Cluster
from pentalog.console.query import JsonCondition, Query, QueryRefused
from pentalog.console.records import Row, rows_in
from pentalog.console.search import HIT_BYTES_MAX, Search
from pentalog.kernels import batch_header
from pentalog.model import batch, compression
from pentalog.model.pieces import Gone, Piece
from pentalog.model.types import Offset, Partition, Record
from pentalog.tables.options import SourceOptions
from pentalog.tables.origins import ClusterOrigin, Origin
from pentalog.tables.segments import DirectoryOrigin

AT = Partition("t", 0)


class Feed:
    """Pieces as they were given; an exception among them is raised."""

    def __init__(self, pieces: list[Piece | Exception]) -> None:
        self._pieces = iter(pieces)

    def read(self) -> Piece | None:
        found = next(self._pieces, None)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None: ...


class Memory:
    """Implements `Origin` without files."""

    def __init__(self, *batches: bytes | Exception, count: int) -> None:
        self._pieces = [
            one if isinstance(one, Exception) else Piece(memoryview(one), _behind(one), b"")
            for one in batches
        ]
        self._count = count
        self.closed = False

    def topics(self) -> Mapping[str, Collection[int]]:
        return {AT.topic: [AT.index]}

    def starts(self, at: Collection[Partition]) -> dict[Partition, Offset]:
        return dict.fromkeys(at, 0)

    def ends(self, at: Collection[Partition]) -> dict[Partition, Offset]:
        return dict.fromkeys(at, self._count)

    def at_time(self, asked: Mapping[Partition, int]) -> dict[Partition, Offset]:
        return dict.fromkeys(asked, 0)

    def feed(self, at: Partition, low: Offset, high: Offset) -> Feed:
        return Feed(list(self._pieces))

    def cuts(self, at: Partition, low: Offset, high: Offset, bytes_wanted: int) -> list[Offset]:
        return []

    def close(self) -> None:
        self.closed = True


def _behind(data: bytes) -> int:
    header = batch_header(data, 0)
    return header.base_offset + header.last_offset_delta + 1


def made(records: list[Record], base: int = 0, codec: int = compression.NONE) -> bytes:
    data = batch.build(records, timestamp_ms=1000, codec=codec)
    data[0:8] = base.to_bytes(8, "big")
    return bytes(data)


def searched(origin: Origin, query: Query, **options: int) -> Search:
    search = Search(origin, [AT], query, **options).start()
    search.wait(30)
    return search


def found(records: list[Record], query: Query) -> list[int]:
    search = searched(Memory(made(records), count=len(records)), query)
    assert search.progress.state == "done", search.progress
    return [hit.offset for hit in search.hits]


RECORDS = [
    Record(b"alpha", b"key-one"),
    Record(b"beta ALPHA", b"key-two", (("trace", b"alpha"),)),
    Record(None, None, (("alpha-name", None),)),
    Record(b"", b"alpha"),
    Record(b"al", b"pha"),
    Record(b"ph", b"al"),
]


@pytest.mark.parametrize(
    ("query", "offsets"),
    [
        (Query("alpha"), [0, 1, 2, 3]),
        (Query("alpha", frozenset({"value"})), [0]),
        (Query("alpha", frozenset({"value"}), ignore_case=True), [0, 1]),
        (Query("alpha", frozenset({"key"})), [3]),
        (Query("alpha", frozenset({"headers"})), [1, 2]),
        (Query("key-t"), [1]),
        (Query("nowhere"), []),
    ],
)
def test_text_is_found_where_it_is_looked_for(query: Query, offsets: list[int]) -> None:
    assert found(RECORDS, query) == offsets


texts = st.text(alphabet="abA", max_size=6).map(str.encode)
records = st.lists(
    st.builds(
        Record,
        st.none() | texts,
        st.none() | texts,
        st.lists(st.tuples(st.text(alphabet="ab", max_size=3), st.none() | texts), max_size=2).map(
            tuple
        ),
        st.just(-1),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records, st.text(alphabet="abA", min_size=1, max_size=3), st.booleans())
def test_text_is_found_exactly_where_it_is(
    given_records: list[Record], text: str, ignore_case: bool
) -> None:
    """Never across the end of one field and the beginning of the next."""

    def holds(data: bytes | None) -> bool:
        if data is None:
            return False
        if ignore_case:
            return text.lower().encode() in data.lower()
        return text.encode() in data

    expected = [
        offset
        for offset, record in enumerate(given_records)
        if holds(record.key)
        or holds(record.value)
        or any(holds(name.encode()) or holds(value) for name, value in record.headers)
    ]
    assert found(given_records, Query(text, ignore_case=ignore_case)) == expected


VALUE = {"id": 7, "name": "Ada", "ok": True, "items": [{"price": 5}, {"price": 12.5}], "n": None}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("id = 7", True),
        ("$.id = 7", True),
        ("id = 8", False),
        ("id != 8", True),
        ("id >= 7", True),
        ("id < 7", False),
        ('$.name = "Ada"', True),
        ("name = Ada", True),
        ("name ~ ad", True),
        ("name > Ab", True),
        ("name < 3", False),
        ("ok = true", True),
        ("ok = 1", False),
        ("items[1].price = 12.5", True),
        ("items[*].price > 12", True),
        ("items[*].price > 13", False),
        ("items[5].price", False),
        ("['items'][0].price = 5", True),
        ("n = null", True),
        ("n", True),
        ("missing", False),
        ("missing != 3", False),
        ("*.price", False),
        ("items ~ 12.5", True),
    ],
)
def test_conditions_on_json_values(condition: str, holds: bool) -> None:
    assert JsonCondition.parse(condition).holds(json.dumps(VALUE).encode()) is holds


@pytest.mark.parametrize("text", ["", "   ", "= 3", "a[", "a[x]", "a = ", "a..b"])
def test_conditions_that_cannot_be_understood_say_what_can(text: str) -> None:
    with pytest.raises(QueryRefused, match=r"write a path, an operator"):
        JsonCondition.parse(text)


def test_a_query_that_asks_for_nothing_is_refused() -> None:
    with pytest.raises(QueryRefused, match="nothing to look for"):
        Query()
    with pytest.raises(QueryRefused, match="nowhere to look"):
        Query("text", frozenset())


def test_json_is_found_though_its_names_are_escaped() -> None:
    values = [b'{"name": "a"}', b'{"n\\u0061me": "a"}', b'{"other": "a"}', b"no json", b"", None]
    asked = Query(condition=JsonCondition.parse("name = a"))
    assert found([Record(value) for value in values], asked) == [0, 1]


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("n = 10", ["10", "10.0", "1e1", "1.0E1", '"10"']),
        ("n = -3", ["-3", "-3.0", "-0.3e1", '"-3"']),
        ("n = 2.5", ["2.5", "25e-1", "2.50"]),
        ("n = true", ["true"]),
        ("n = null", ["null"]),
        ("n = Ada", ['"Ada"', '"\\u0041da"', '"A\\u0064a"']),
        ('n = "a/b"', ['"a/b"', '"a\\/b"']),
        ('n = "ü"', ['"ü"', '"\\u00fc"']),
        ('n = "say \\"hi\\""', ['"say \\"hi\\""']),
        ("n = [1]", ["[1]", "[ 1 ]"]),
        ("*[1] = 10", ["[0, 10]"]),
        ("n.m[*] = 10", ['{"m": [3, 10]}']),
    ],
)
def test_equal_values_are_found_however_they_are_written(asked: str, written: list[str]) -> None:
    values = [f'{{"n"{space}:{space}{one}, "x": 1}}' for one in written for space in ("", " \n")]
    others = ['{"n": 11, "x": 10}', '{"m": 10}', '{"n": "Ad", "x": "Ada"}', "10", '{"n": 100}']
    given_records = [Record(one.encode()) for one in [*values, *others]]
    query = Query(condition=JsonCondition.parse(asked))
    assert found(given_records, query) == list(range(len(values)))


def test_text_and_condition_and_time_must_all_hold() -> None:
    given_records = [
        Record(b'{"n": %d}' % one, b"even" if one % 2 == 0 else b"odd", (), 100 * one)
        for one in range(10)
    ]
    asked = Query("even", condition=JsonCondition.parse("n >= 2"), since_ms=300, before_ms=800)
    assert found(given_records, asked) == [4, 6]


@pytest.mark.parametrize("codec", [compression.GZIP, compression.ZSTD])
def test_compressed_batches_are_opened(codec: int) -> None:
    data = made([Record(b"x" * 100), Record(b"needle " * 100)], codec=codec)
    assert data.count(b"needle") <= 1, "it is compressed"
    search = searched(Memory(data, count=2), Query("needle"))
    assert [hit.offset for hit in search.hits] == [1]


def test_what_is_damaged_or_gone_is_passed_and_told() -> None:
    damaged = bytearray(made([Record(b"needle 0")]))
    damaged[-1] ^= 1
    sound = made([Record(b"needle 1"), Record(b"other")], base=1)
    together = bytes(damaged) + sound
    piece = Memory(together, Gone(3, 8, "retention"), made([Record(b"needle 8")], base=8), count=9)
    search = searched(piece, Query("needle"))
    assert [hit.offset for hit in search.hits] == [1, 8]
    assert search.progress.lost == 5
    assert search.progress.state == "done"


def test_a_failure_is_the_end_and_is_told() -> None:
    origin = Memory(OSError("the disk is gone"), count=5)
    search = searched(origin, Query("x"))
    assert search.progress.state == "failed"
    assert search.progress.why == "the disk is gone"
    assert origin.closed


def test_it_rests_when_enough_is_kept_and_finds_all_in_the_end() -> None:
    origin = Memory(made([Record(b"hit %d" % one) for one in range(25)]), count=25)
    search = Search(origin, [AT], Query("hit"), hits_max=10).start()
    seen: list[int] = []
    while True:
        _until(lambda: search.progress.state != "running")
        seen += [hit.offset for hit in search.hits]
        if search.progress.over:
            break
        assert len(search.hits) == 10
        search.go_on()
    assert seen == list(range(25))
    assert search.progress.found == 25


def test_it_rests_when_hits_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pentalog.console.search.HITS_BYTES_MAX", 20_000)
    headers = tuple((f"h{number}", b"hit" * 1000) for number in range(20))
    origin = Memory(made([Record(b"x", None, headers)] * 10), count=10)
    search = Search(origin, [AT], Query("hit")).start()
    while True:
        _until(lambda: search.progress.state != "running")
        if search.progress.over:
            break
        assert len(search.hits) == 1
        search.go_on()
    assert search.progress.found == 10


def test_a_rest_can_be_cancelled() -> None:
    origin = Memory(made([Record(b"hit") for _ in range(25)]), count=25)
    search = Search(origin, [AT], Query("hit"), hits_max=10).start()
    _until(lambda: search.progress.state == "resting")
    first, second = search.progress, search.progress
    assert first == second  # its clock rests too: nothing changes on a page that shows it
    search.cancel()
    search.wait(30)
    assert search.progress.state == "cancelled"
    assert origin.closed


def test_hits_keep_only_the_beginning_of_what_is_large() -> None:
    large = Record(b"needle" + b"x" * 50_000, None, tuple((f"h{n}", b"v") for n in range(100)))
    (hit,) = searched(Memory(made([large]), count=1), Query("needle")).hits
    assert len(hit.value or b"") == HIT_BYTES_MAX
    assert len(hit.headers) == 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pentalog.Broker]:
    data: Path = tmp_path_factory.mktemp("searched") / "data"
    listen = ["kafka=127.0.0.1:0"]
    with pentalog.Broker(data, listen=listen, marks_interval_ms=20) as started:
        with Cluster(started.address()) as cluster:
            cluster.create_topic("t", 1, {"segment.bytes": "65536"})
            for start in range(0, 3000, 100):
                built = made(
                    [Record(b"record %04d" % one * 9) for one in range(start, start + 100)]
                )
                cluster.produce(AT, built)
        # The marks are written a little later, and at first know nothing of the partition.
        _until(
            lambda: (
                "t" in (files := DirectoryOrigin(str(data))).topics()
                and files.ends([AT]) == {AT: 3000}
            )
        )
        yield started


@pytest.mark.parametrize("way", ["files", "door"])
def test_files_and_the_door_hold_the_same(broker: pentalog.Broker, way: str) -> None:
    """Over many segments."""
    options = SourceOptions(
        servers=broker.address(), topics=("t",), client=ClientOptions(timeout_ms=10_000)
    )
    files = way == "files"
    origin = DirectoryOrigin(str(broker.data)) if files else ClusterOrigin(options)
    search = searched(origin, Query("99record"))
    assert [hit.offset for hit in search.hits] == [one for one in range(3000) if one % 100 == 99]
    assert search.progress.scanned == search.progress.total == 3000
    assert search.hits[0].door == "kafka"


def test_rows_have_everything_a_record_has() -> None:
    record = Record(b"v", b"k", (("h", b"1"), ("h", None)), 1_700_000_000_123)
    piece = Piece(memoryview(made([record], base=5)), 6, b"")
    assert rows_in(AT, piece, 0, 10) == [
        Row(AT, 5, 1_700_000_000_123, b"k", b"v", (("h", b"1"), ("h", None)), "kafka")
    ]
    assert rows_in(AT, piece, 6, 10) == []


def _until(ask: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not ask():
        assert time.monotonic() < deadline
        time.sleep(0.005)
