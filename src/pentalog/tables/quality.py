"""What becomes of a row: kept, dropped, a dead letter, or the end of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pentalog.tables.pipeline import Rule

if TYPE_CHECKING:
    from pyspark.sql import Column

KEEP: Final = "keep"
DROP: Final = "drop"
DEAD: Final = "dead-letter"
STOP: Final = "stop"


class RuleBroken(Exception):
    """A rule says that the pipeline must stop; the text names the rule and the record."""


def verdict(reason: Column, rules: Sequence[Rule]) -> Column:
    """One of the four words; the first rule a row breaks decides."""
    from pyspark.sql import functions as f

    found = f.when(reason.isNotNull(), f.lit(DEAD))
    for rule in rules:
        found = found.when(_broken(rule), f.lit(rule.action))
    return found.otherwise(f.lit(KEEP))


def explained(reason: Column, rules: Sequence[Rule]) -> Column:
    """Why a row is not kept, in one sentence."""
    from pyspark.sql import functions as f

    found = f.when(reason.isNotNull(), reason)
    for rule in rules:
        found = found.when(_broken(rule), f.lit(f"{rule.name}: not {rule.expect}"))
    return found


def _broken(rule: Rule) -> Column:
    from pyspark.sql import functions as f

    return ~f.coalesce(f.expr(f"({rule.expect})").cast("boolean"), f.lit(False))
