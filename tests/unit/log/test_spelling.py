"""Names of topics on the disk: any text is one file name, and no two are the same."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.logs import LogBench

from pentalog.log import checkpoints
from pentalog.log.checkpoints import Checkpointed, Names, spell, spell_topic
from pentalog.log.directories import StoreError
from pentalog.log.files import RealFiles
from pentalog.log.reader import DirectoryReader
from pentalog.model.types import Partition

TEXT = st.text(st.characters(codec="utf-8"), max_size=400) | st.sampled_from(
    ["", ".", "..", "/", "a/../b", "\0\n", "%", "%2F", "%sha256-", "x" * 250, "ü" * 65_000]
)
LONG = "long/\0" * 100


@given(topic=TEXT, index=st.integers(0, 99_999))
@example(topic="%sha256-" + "0" * 64, index=0)
def test_any_text_is_one_file_name(topic: str, index: int) -> None:
    name = spell(Partition(topic, index))
    directory = Path("/data")
    assert (directory / name).parent == directory
    assert name not in (".", "..")
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & set("/\\ ")
    assert len(name) <= 255


@given(first=TEXT, second=TEXT)
@example(first="%2F", second="/")
@example(
    first="", second="%sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)
def test_no_two_names_are_spelled_alike(first: str, second: str) -> None:
    assert (spell_topic(first) == spell_topic(second)) == (first == second)


@given(topic=st.text(st.characters(codec="utf-8"), min_size=1, max_size=249))
def test_short_names_are_read_from_their_spelling(topic: str) -> None:
    spelled = spell_topic(topic)
    if not checkpoints.needs_name_file(spelled):
        assert Names(RealFiles(), Path("/nowhere")).read(spelled, 0) == topic


@pytest.mark.parametrize("spelled", ["%ff", "%2f", "a b", "a%2Eb"])
def test_what_is_no_spelling_is_no_name(spelled: str, tmp_path: Path) -> None:
    assert Names(RealFiles(), tmp_path).read(spelled, 0) is None


def test_directories_of_earlier_versions_are_what_they_were() -> None:
    assert [spell(Partition(topic, 7)) for topic in ("orders", "a b", "grüße", "a.b_c~d-1")] == [
        "orders-7",
        "a%20b-7",
        "gr%C3%BC%C3%9Fe-7",
        "a.b_c~d-1-7",
    ]


@pytest.mark.parametrize("topic", [LONG, "", "a/b", "..", "\x1b[2J\n"], ids=ascii)
@pytest.mark.parametrize("clean", [True, False])
def test_records_under_any_name_outlive_the_broker(tmp_path: Path, topic: str, clean: bool) -> None:
    at = Partition(topic, 3)
    first = LogBench(tmp_path)
    first.partition(at)
    first.settled(b"kept", at=at)
    first.store.get(at).trim(0)
    if clean:
        first.store.close()
    else:
        first.crash()
    second = LogBench(tmp_path)
    assert second.values(at=at) == {0: b"kept"}
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [spell(at)]
    told = (tmp_path / spell(at) / checkpoints.NAME_FILE).exists()
    assert told == (topic in (LONG, "")), "directories that tell by themselves are as ever"
    second.runtime.advance(500)
    reader = DirectoryReader(tmp_path)
    assert reader.marks()[at].durable == 1
    assert reader.partition(at).bases() == [0]
    second.store.close()


def test_checkpoints_tell_offsets_of_long_names(tmp_path: Path) -> None:
    places = {Partition(LONG, 0): 5, Partition("", 1): 6, Partition("a b", 2): 7}
    offsets = {
        spell(at): Checkpointed(offset, LogBench.topic_id(at.topic))
        for at, offset in places.items()
    }
    path = tmp_path / checkpoints.LOG_STARTS
    path.write_text(checkpoints.offsets_text(offsets))
    assert checkpoints.read_offsets(RealFiles(), path) == offsets
    assert all(len(line) < 300 for line in path.read_text().splitlines())


def test_a_checkpoint_with_a_flipped_bit_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / checkpoints.RECOVERY_POINTS
    whole = checkpoints.offsets_text(
        {"orders-0": Checkpointed(1234, UUID(int=5)), "orders-1": Checkpointed(990, None)}
    ).encode()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert checkpoints.read_offsets(RealFiles(), path) == {}


def test_records_whose_topic_cannot_be_told_stop_the_start(tmp_path: Path) -> None:
    at = Partition(LONG, 0)
    bench = LogBench(tmp_path)
    bench.partition(at)
    bench.settled(b"kept", at=at)
    bench.store.close()
    file = tmp_path / spell(at) / checkpoints.NAME_FILE
    assert file.read_text() == LONG
    file.write_text(LONG[:-1])
    with pytest.raises(StoreError, match="bring it back"):
        LogBench(tmp_path)
    file.write_text(LONG)
    again = LogBench(tmp_path)
    assert again.values(at=at) == {0: b"kept"}
    again.store.close()


def test_a_directory_that_has_no_name_yet_is_made_again(tmp_path: Path) -> None:
    """As a crash leaves it between making the directory and naming it."""
    at = Partition(LONG, 0)
    (tmp_path / spell(at)).mkdir()
    bench = LogBench(tmp_path)
    assert not bench.store.found()
    bench.partition(at)
    bench.settled(b"new", at=at)
    bench.store.close()
    again = LogBench(tmp_path)
    assert again.values(at=at) == {0: b"new"}
    again.store.close()
