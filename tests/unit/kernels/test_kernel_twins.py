"""Both twins are there, complete, and chosen as documented."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pentalog import kernels

CODE = "import json; from pentalog import kernels; print(json.dumps(kernels.KERNELS))"


def test_every_function_is_exported() -> None:
    for functions in kernels.FUNCTIONS.values():
        assert set(functions) <= set(kernels.__all__)


def test_exported_functions_are_of_the_twin_named() -> None:
    for name, functions in kernels.FUNCTIONS.items():
        module = importlib.import_module(f"pentalog.kernels.{kernels.KERNELS[name]}.{name}")
        for function in functions:
            assert getattr(kernels, function) is getattr(module, function)


def test_environment_asks_for_pure() -> None:
    output = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "PENTALOG_PURE": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert set(json.loads(output).values()) == {"pure"}


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2), (0, 5), (5, 5)])
def test_ranges_outside_the_buffer_are_our_mistake(
    twin: SimpleNamespace, start: int, end: int
) -> None:
    data = bytearray(4)
    calls = [
        lambda: twin.check_batches(data, start, end),
        lambda: twin.stamp(data, start, end, 0, 0),
        lambda: twin.stamp_append_time(data, start, end, 0),
        lambda: twin.locate_offset(data, start, end, 0),
        lambda: twin.fit_batches(data, start, end, 10, 10),
        lambda: twin.attributes_in(data, start, end),
        lambda: twin.locate_time(data, start, end, 0),
        lambda: twin.find_batch(data, start, end, offset_min=0, offset_max=9),
        lambda: twin.decode_records(data, start, end, 0, 0, 0, -1),
        lambda: twin.check_records(data, start, end, 0),
        lambda: twin.newest_keys(data, start, end, 0, 0, {}),
        lambda: twin.keep_newest(data, start, end, 0, 0, 0, {}, drop_tombstones=False),
        lambda: twin.shift_tombstones(data, start, end, 0, 0),
        lambda: twin.readable_batches(data, start, end),
        lambda: twin.stamp_newest_time(data, start, end),
        lambda: twin.cut_records(data, start, end, 0, delta_min=0, bytes_max=0),
        lambda: twin.split_produce(data, start, end, frame_bytes_max=10),
    ]
    for call in calls:
        with pytest.raises(ValueError):
            call()


def test_only_buffers_are_taken(twin: SimpleNamespace) -> None:
    with pytest.raises(TypeError):
        twin.check_batches("text", 0, 1)
    with pytest.raises(TypeError):
        twin.crc32c(5)


def test_read_only_buffers_are_not_written_to(twin: SimpleNamespace) -> None:
    data = bytes(100)
    with pytest.raises((TypeError, ValueError, BufferError)):
        twin.split_produce(data, 0, 100, frame_bytes_max=10)
    assert data == bytes(100)
