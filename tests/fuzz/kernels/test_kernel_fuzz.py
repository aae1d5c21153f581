"""Short runs of the kernel fuzzers; give them hours by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pentalog import kernels

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.fuzz.kernels import mutations, sanitizer

pytestmark = pytest.mark.skipif(
    "pure" in kernels.KERNELS.values(), reason="the kernels are not compiled here"
)


@pytest.mark.parametrize("seed", range(4))
def test_twins_agree_on_damaged_bytes(seed: int) -> None:
    mutations.run(3_000, seed)


def test_kernels_stay_inside_their_buffers(tmp_path: Path) -> None:
    preload = sanitizer.libraries()
    if preload is None:
        pytest.skip(sanitizer.MISSING)
    result = sanitizer.fuzz(sanitizer.build(tmp_path), preload, count=2_000, seed=1)
    assert result.returncode == 0, result.stderr[-4_000:]
    assert "both twins agreed" in result.stdout
