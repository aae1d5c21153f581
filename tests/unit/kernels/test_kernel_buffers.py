"""New buffers of every size can be written to every end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

LARGE = 2 << 20


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, 2 * LARGE, 2 * LARGE + 1, 9 * LARGE])
def test_a_buffer_has_its_size(twin: SimpleNamespace, size: int) -> None:
    made = twin.new_buffer(size)
    assert type(made) is bytearray
    assert len(made) == size
    made[:] = b"x" * size
    assert made.count(b"x") == size


def test_a_size_below_zero_is_refused(twin: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="a buffer of -1 bytes"):
        twin.new_buffer(-1)
