"""The part of the contract that transforms records: SmartModules, stored and run.

A SmartModule is a WebAssembly program made for Fluvio.  It sees records in Fluvio's own form: their
number (i32) and the records, see `kernels/pure/fluvio.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from pentalog.model.errors import SmartModuleInvalid, SmartModuleNotFound
from pentalog.model.later import Later
from pentalog.model.types import Offset

BROKER: Final = ""
"""The owner of what the broker does by itself: derived topics."""


class SmartModule(NamedTuple):
    """A stored program."""

    name: str
    wasm: bytes
    """As it was uploaded, perhaps compressed with gzip."""
    package: bytes = b""
    """What its package says of itself, in the uploading protocol's words; empty: nothing."""


class Link(NamedTuple):
    """One program of a chain, and how it is started."""

    module: str | bytes
    """The name of a stored one, or the program itself."""
    parameters: Mapping[str, str] = {}
    accumulator: bytes = b""
    lookback_records: int = 0
    """How many of the newest records it wants to see before the first; 0: none."""
    lookback_ms: int | None = None
    """Of those, only the ones younger than this."""


class Section(NamedTuple):
    """Records in Fluvio's form, and what their offsets and times count from."""

    base_offset: Offset
    base_timestamp: int
    records: bytes | bytearray | memoryview


class Failure(NamedTuple):
    """A record a program failed at."""

    offset: Offset
    hint: str
    kind: int
    """Number of the program's kind: filter, map, array_map, aggregate, filter_map."""
    key: bytes | None
    value: bytes


class Transformed(NamedTuple):
    """What came of some sections: one for each that has records left, in order."""

    sections: Sequence[Section]
    failure: Failure | None = None
    """Nothing from this record on has been transformed."""


class Chain(Protocol):
    """Started programs, one behind the other, with the state of one reader."""

    @property
    def looks_back(self) -> int:
        """How many of the newest records it wants to see before the first; 0: none."""

    def look_back(self, sections: Sequence[Section]) -> Later[None]:
        """Show it those records; refused if it does not like them."""

    def run(self, sections: Sequence[Section]) -> Later[Transformed]:
        """Never two at a time.  Takes a thread's time, not the caller's."""

    def close(self) -> None:
        """Give its memory back."""


class SmartModules(Protocol):
    version: int
    """Grows with every change of any module."""

    def create(
        self, module: SmartModule, *, owner: str = BROKER, dry_run: bool = False
    ) -> Later[None]:
        """Store it, in place of one of the same name; ready when it is checked and on the disk.

        Refused with `SmartModuleInvalid`.  `owner` is the client whose share of the work it is.
        """

    def delete(self, name: str) -> None:
        """Chains that run it go on with it.  Durable with `settle`."""

    def get(self, name: str) -> SmartModule: ...
    def all(self) -> Sequence[SmartModule]: ...
    def settle(self) -> Later[None]:
        """Ready as soon as every change made so far is on the disk."""

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        """Call `run` after every change; returns what ends that."""

    def chain(self, links: Sequence[Link], *, version: int, owner: str = BROKER) -> Later[Chain]:
        """Start programs, which are spoken to at `version` of Fluvio's protocol.

        `owner` is the client whose share of memory and time they use.
        """


class Untransformed:
    """Implements `SmartModules` for a broker that keeps and runs none."""

    version = 1

    def create(
        self, module: SmartModule, *, owner: str = BROKER, dry_run: bool = False
    ) -> Later[None]:
        raise SmartModuleInvalid(_NONE)

    def delete(self, name: str) -> None:
        raise SmartModuleNotFound(f"there is no SmartModule {name!r}")

    def get(self, name: str) -> SmartModule:
        raise SmartModuleNotFound(f"there is no SmartModule {name!r}")

    def all(self) -> Sequence[SmartModule]:
        return ()

    def settle(self) -> Later[None]:
        return Later.now(None)

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def chain(self, links: Sequence[Link], *, version: int, owner: str = BROKER) -> Later[Chain]:
        raise SmartModuleInvalid(_NONE)


_NONE: Final = "this broker runs no SmartModules; read or write without them"
UNTRANSFORMED: Final = Untransformed()
