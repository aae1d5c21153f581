"""Python loads this at its start wherever this directory is on PYTHONPATH.

It puts `dying_steps.py` in the place of `pentalog.tables.steps`, so that processes under test die
at exact steps while the code that is shipped knows nothing of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


class DyingSteps(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "pentalog.tables.steps":
            return None
        return spec_from_file_location(fullname, Path(__file__).with_name("dying_steps.py"))


sys.meta_path.insert(0, DyingSteps())
