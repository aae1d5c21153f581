"""Every kernel test runs on both twins."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from pentalog import kernels


@pytest.fixture(params=["pure", "compiled"])
def twin(request: pytest.FixtureRequest) -> SimpleNamespace:
    """All kernels of one twin."""
    found: dict[str, object] = {}
    for name, functions in kernels.FUNCTIONS.items():
        if request.param == "compiled" and kernels.KERNELS[name] != "compiled":
            pytest.skip(f"the kernel {name} is not compiled here")
        module = importlib.import_module(f"pentalog.kernels.{request.param}.{name}")
        found |= {function: getattr(module, function) for function in functions}
    return SimpleNamespace(**found)
