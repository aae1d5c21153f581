"""Frames are found in what passes a connection, however it is cut."""

from __future__ import annotations

import random
from typing import Any

from pentalog.observation import Frame, Told
from pentalog.server.tap import Tap


class Reader:
    """An inspector that calls a frame by its first letter."""

    def request(self, head: memoryview, size: int) -> Told:
        if bytes(head[:1]) == b"!":
            raise ZeroDivisionError
        return Told(str(head[:1], "ascii"), secret=bytes(head[:1]) == b"s")

    reply = request


class Watcher:
    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.over = False

    def frame(self, frame: Frame) -> None:
        self.frames.append(frame)

    def ended(self) -> None:
        self.over = True

    @property
    def seen(self) -> list[tuple[str, int]]:
        return [(frame.told.name, frame.size_bytes) for frame in self.frames]


def tapped() -> tuple[Tap, Watcher]:
    tap, watcher = Tap(Reader(), lambda: 5), Watcher()
    tap.watchers.append(watcher)
    return tap, watcher


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def test_frames_are_found_however_they_are_cut() -> None:
    payloads = [b"a", b"", b"b" * 5, b"c" * 4096, b"d" * 4097, b"e" * 100_000, b"f"]
    data = b"".join(map(framed, payloads))
    expected = [(str(one[:1], "ascii"), len(one)) for one in payloads]
    for seed in range(20):
        tap, watcher = tapped()
        cuts = sorted(random.Random(seed).sample(range(len(data)), 9))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            tap.received(memoryview(data)[start:end])
            tap.sent([data[start:end]], end - start, drained=False)
        assert [one for one in watcher.seen if one[0] == "a"] == [("a", 1)] * 2
        received = [frame for frame in watcher.frames if frame.received]
        assert [(one.told.name, one.size_bytes) for one in received] == expected
        assert len(watcher.frames) == 2 * len(expected)


def test_what_is_secret_is_not_kept() -> None:
    tap, watcher = tapped()
    tap.received(memoryview(framed(b"secret") + framed(b"plain")))
    assert [frame.start for frame in watcher.frames] == [b"", b"plain"]


def test_ranges_of_files_are_stepped_over() -> None:
    tap, watcher = tapped()
    head = framed(b"x" * 1000)[:100]
    tap.sent([head], 100, drained=False)
    tap.sent_file(904, drained=True)
    tap.sent([framed(b"y")], 5, drained=True)
    assert watcher.seen == [("x", 1000), ("y", 1)]
    assert len(watcher.frames[0].start) == 96


def test_only_what_left_counts() -> None:
    tap, watcher = tapped()
    pieces: list[Any] = [framed(b"one"), framed(b"two")]
    tap.sent(pieces, 9, drained=False)
    assert watcher.seen == [("o", 3)]
    tap.sent([memoryview(pieces[1])[2:]], 5, drained=True)
    assert watcher.seen == [("o", 3), ("t", 3)]


def test_it_begins_where_an_answer_begins() -> None:
    tap, watcher = tapped()
    tap.aligned = False
    tap.sent([b"the rest of something"], 21, drained=False)
    tap.sent([b"and its end"], 11, drained=True)
    tap.sent([framed(b"whole")], 9, drained=True)
    assert watcher.seen == [("w", 5)]
    # A file that reaches beyond a frame: found again where nothing is left.
    tap.sent_file(77, drained=False)
    tap.sent([b"lost"], 4, drained=True)
    tap.sent([framed(b"again")], 9, drained=True)
    assert watcher.seen == [("w", 5), ("a", 5)]


def test_it_hears_from_where_a_request_begins() -> None:
    tap, watcher = tapped()
    tap.hears = False
    tap.received(memoryview(b"the rest of something"))
    tap.hears = True
    tap.received(memoryview(framed(b"whole")))
    assert watcher.seen == [("w", 5)]


def test_a_mistake_of_the_reader_harms_nobody(caplog: Any) -> None:
    tap, watcher = tapped()
    tap.received(memoryview(framed(b"!") + framed(b"a")))
    assert watcher.seen == [("unreadable", 1), ("a", 1)]
    assert "please report it" in caplog.text
