"""Constants of the broker that simulated worlds change: everything in them is small."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final
from unittest import mock

from tests.simulation.cursus_pipeline import CURSUS_LARGE_BYTES
from tests.simulation.plan import Settings

from pentalog.broker import aggregates, dead_letters, derived_topics, local_subscription
from pentalog.broker import log as broker_log
from pentalog.log import segment, store, times, windows
from pentalog.model.settings import LogSettings
from pentalog.protocols.blipmq import publishing as blipmq_publishing
from pentalog.protocols.blipmq import session as blipmq_session
from pentalog.protocols.cursus import publishing as cursus_publishing
from pentalog.protocols.cursus import session as cursus_session
from pentalog.protocols.cursus import storing as cursus_storing
from pentalog.protocols.fluvio import produce as fluvio_produce
from pentalog.protocols.kafka import produce_runs
from pentalog.protocols.rustlog import records as rustlog_records

READS: Final = (
    (local_subscription, "OPEN_BYTES", 1500),
    (dead_letters, "OPEN_BYTES", 1500),
    (derived_topics, "READ_BYTES_MAX", 1500),
    (aggregates, "_CHUNK_BYTES", 1500),
    (segment, "WALK_BYTES", 600),
    (times, "WALK_BYTES", 600),
    (windows, "WINDOW_BYTES", 2000),
)
"""How much the broker reads at once, where it reads little."""
LANES: Final = (
    (broker_log, "ADMITTED_AT_ONCE_BYTES", 300),
    (produce_runs, "ADMISSION_BYTES_MIN", 100),
    (rustlog_records, "ADMISSION_BYTES_MIN", 100),
    (cursus_publishing, "ADMISSION_BYTES_MIN", 100),
    (blipmq_publishing, "ADMISSION_BYTES_MIN", 100),
    (fluvio_produce, "INLINE_BYTES_MAX", 300),
    (fluvio_produce, "TRANSLATED_BYTES_MAX", 300),
    (blipmq_session, "LARGE_BYTES", 1_500),
    (cursus_session, "NEAR_BYTES_MAX", 300),
    (cursus_publishing, "LARGE_BYTES", CURSUS_LARGE_BYTES),
    (cursus_storing, "_PART_BYTES", 8_000),
)
"""What the broker opens at once, where it opens nearly everything on a lane."""


def chosen(settings: Settings) -> Iterator[tuple[Any, str, Any]]:
    """Return the constants that a world changes."""
    if settings.short_reads:
        yield from READS
    if settings.lanes:
        yield from LANES
    # Partitions are recovered before the settings of their topics are known.
    yield (
        store,
        "LogSettings",
        partial(LogSettings, index_interval_bytes=settings.index_interval_bytes),
    )


@contextlib.contextmanager
def patched(sizes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Give constants of the broker other values."""
    with contextlib.ExitStack() as stack:
        for owner, name, size in sizes:
            stack.enter_context(mock.patch.object(owner, name, size))
        yield
