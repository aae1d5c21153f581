"""Topics as tables: a Spark source, pipelines into tables, SQL over both, and their proof."""

from __future__ import annotations

import sys

if "pyspark.daemon" in sys.orig_argv:
    # The library that describes Kafka's messages loads this one where it is installed, to help its
    # users' tests; Spark starts workers for every query, and they have no use for it.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
