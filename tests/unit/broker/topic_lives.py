"""Lives of a broker on one directory, as far as topics go."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pentalog.broker.state import State
from pentalog.broker.topics import LocalTopics
from pentalog.log.store import Store


@dataclass
class Life:
    """One life of a broker, as far as topics go."""

    store: Store
    state: State
    topics: LocalTopics


OpenLife = Callable[..., Life]


def directories(path: Path) -> set[str]:
    return {each.name for each in path.iterdir() if re.fullmatch(r".+-\d+", each.name)}
