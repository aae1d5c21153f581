"""A pipeline's own Python: one function from silver's rows to silver's rows."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pentalog.tables.pipeline import PipelineError
from pentalog.tables.silver import COORDINATES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FUNCTION: Final = "silver"


class Transforms:
    """The function `silver` of a file; nothing, where a pipeline has no file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._function: Callable[[DataFrame], DataFrame] | None = None
        if not path:
            return
        if not Path(path).is_file():
            raise PipelineError(f"transforms: there is no file {path}")
        found = runpy.run_path(path).get(_FUNCTION)
        if not callable(found):
            raise PipelineError(f"transforms: {path} defines no function silver(rows)")
        self._function = found

    def __bool__(self) -> bool:
        return self._function is not None

    def __call__(self, rows: DataFrame) -> DataFrame:
        if self._function is None:
            return rows
        changed = self._function(rows)
        lost = [name for name in COORDINATES if name not in changed.columns]
        if lost:
            raise PipelineError(
                f"transforms: silver(rows) of {self._path} must keep {', '.join(lost)}: rows"
                " are accounted for by where their records are"
            )
        return changed
