"""Chains of SmartModules: compiled one by one, started, and run a part at a time.

A run of a chain gives its lane back after a while and continues when it is its owner's turn again,
so that no client keeps a lane for longer than one call of a program and a quantum.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pentalog.broker.module_engine import (
    OUTPUT_BYTES_MAX,
    TICK_MS,
    Broken,
    Instance,
    groups,
    singles,
)
from pentalog.broker.transformation import Chain, Failure, Link, Section, Transformed
from pentalog.model.errors import BrokerError, Overloaded, SmartModuleInvalid
from pentalog.model.later import Later

if TYPE_CHECKING:
    from pentalog.broker.smart_modules import LocalSmartModules

T = TypeVar("T")

LOOKBACK_RECORDS_MAX: Final = 100_000
RUN_CALLS_MAX: Final = 30
"""Time that all calls of one run may take, in times that one call may take."""
BROKEN_GROUPS_MAX: Final = 16
"""Groups of records of one batch that may break a module though none of the records does."""
_NO_RECORDS: Final = b"\0\0\0\0"
_ENDED: Final = "the SmartModules were ended"

Parts = Generator[None, None, T]
"""Work of a chain that may be interrupted between its parts."""


def given_bytes(links: Sequence[Link]) -> int:
    """Return the size of accumulators and parameters, which are kept as long as the chain."""
    return sum(
        len(link.accumulator)
        + sum(len(name) + len(value) for name, value in link.parameters.items())
        for link in links
    )


class LocalChain:
    """Implements `transformation.Chain`."""

    def __init__(
        self, modules: LocalSmartModules, owner: str, links: Sequence[Link], version: int
    ) -> None:
        self._modules = modules
        self._owner = owner
        self._links = [link._replace(module="") for link in links]
        self._version = version
        self._programs: list[Any] = []
        self._instances: list[Instance] = []
        self._given_bytes = given_bytes(links)
        self._memory_bytes = self._given_bytes
        modules.shares.resize(owner, 0, self._memory_bytes)
        self._busy = False
        self._closed = False

    def start(self, programs: Sequence[bytes]) -> Later[Chain]:
        """Compile and start the programs."""
        started: Later[Chain] = Later()
        self._busy = True
        self._compile(list(programs), started)
        return started

    def _compile(self, left: list[bytes], started: Later[Chain]) -> None:
        if not left:
            self._run_parts(self._starting(), started)
            return
        wasm = left.pop(0)

        def compiled(program: Any, error: BaseException | None) -> None:
            self._modules.shares.compiled(self._owner, len(wasm))
            if error is None:
                self._programs.append(program)
                self._compile(left, started)
                return
            for each in left:
                self._modules.shares.compiled(self._owner, len(each))
            self._closed = True
            self._refuse(started, error)

        self._modules.compile(self._owner, wasm, compiled)

    def _starting(self) -> Parts[Chain]:
        for number in range(len(self._links)):
            self._instances.append(self._fresh(number))
            yield
        return self

    def _fresh(self, number: int) -> Instance:
        return self._modules.engine.start(
            self._programs[number], self._links[number], self._version
        )

    @property
    def looks_back(self) -> int:
        wanted = [
            min(link.lookback_records or LOOKBACK_RECORDS_MAX, LOOKBACK_RECORDS_MAX)
            for link, instance in zip(self._links, self._instances, strict=True)
            if instance.looks_back
        ]
        return max(wanted, default=0)

    def look_back(self, sections: Sequence[Section]) -> Later[None]:
        later: Later[None] = Later()
        if self._closed:
            later.refuse(SmartModuleInvalid(_ENDED))
            return later
        self._busy = True
        self._run_parts(self._looking_back(sections), later)
        return later

    def _looking_back(self, sections: Sequence[Section]) -> Parts[None]:
        for instance in self._instances:
            if instance.looks_back:
                for section in sections:
                    instance.look_back(section)
                    yield

    def run(self, sections: Sequence[Section]) -> Later[Transformed]:
        later: Later[Transformed] = Later()
        if self._closed:
            later.refuse(SmartModuleInvalid(_ENDED))
            return later
        self._busy = True
        self._run_parts(self._transforming(sections), later)
        return later

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._leave()

    def _leave(self) -> None:
        """Give back what the chain has, once nothing of it runs."""
        if not self._closed or self._busy:
            return
        instances, self._instances = self._instances, []
        # What they were given may be much, and those who have had the chain may still hold it.
        links, self._links = self._links, []
        self._programs = []

        def freed(_: None, error: BaseException | None) -> None:
            shares = self._modules.shares
            shares.resize(self._owner, self._memory_bytes, 0)
            shares.give_back(self._owner, len(links))

        # On a lane: to unmap their memory takes a while.
        self._modules.offload(self._owner, instances.clear, freed)

    def _run_parts(self, parts: Parts[T], later: Later[T]) -> None:
        """Run parts on a lane, a quantum at a time."""
        engine = self._modules.engine
        quantum = max(1, engine.limits.timeout_ms // TICK_MS)
        left = RUN_CALLS_MAX * quantum

        def work() -> tuple[bool, T | None]:
            start = engine.ticks
            try:
                while engine.ticks - start < quantum:
                    next(parts)
            except StopIteration as ended:
                return True, ended.value
            return False, None

        def worked(outcome: tuple[bool, T | None] | None, error: BaseException | None) -> None:
            nonlocal left
            left -= quantum
            self._measure()
            if error is None and outcome is not None and outcome[0] and not self._closed:
                error = self._flaw()
            if error is not None or outcome is None:
                self._refuse(later, error)
            elif self._closed:
                parts.close()
                self._refuse(later, SmartModuleInvalid(_ENDED))
            elif outcome[0]:
                self._busy = False
                later.fill(outcome[1])  # type: ignore[arg-type]  # None may be a T
            elif left <= 0:
                parts.close()
                text = (
                    f"the modules take more than {RUN_CALLS_MAX * engine.limits.timeout_ms} ms for "
                    "what they are shown at once: send or read less at once"
                )
                self._refuse(later, SmartModuleInvalid(text))
            else:
                self._modules.offload(self._owner, work, worked)

        self._modules.offload(self._owner, work, worked)

    def _flaw(self) -> Overloaded | None:
        try:
            self._modules.shares.check_memory(self._owner)
        except Overloaded as refusal:
            return refusal
        return None

    def _measure(self) -> None:
        size_bytes = sum(instance.memory_bytes for instance in self._instances)
        size_bytes += self._given_bytes
        self._modules.shares.resize(self._owner, self._memory_bytes, size_bytes)
        self._memory_bytes = size_bytes

    def _refuse(self, later: Later[Any], error: BaseException | None) -> None:
        self._busy = False
        self._leave()
        if isinstance(error, BrokerError):
            later.refuse(error)
            return
        later.refuse(SmartModuleInvalid(f"the module cannot be run: {error}"))
        if error is not None:
            raise error

    def _transforming(self, sections: Sequence[Section]) -> Parts[Transformed]:
        done: list[Section] = []
        size_bytes = 0
        for section in sections:
            failure = None
            for number in range(len(self._instances)):
                records, failed = yield from self._transform(number, section)
                failure = failure or failed
                section = section._replace(records=records)
                yield
                if records[:4] == _NO_RECORDS:
                    break
            size_bytes += len(section.records)
            if size_bytes > OUTPUT_BYTES_MAX:
                raise SmartModuleInvalid(
                    f"the modules give back more than {OUTPUT_BYTES_MAX} bytes: read less at once"
                )
            if bytes(section.records[:4]) != _NO_RECORDS:
                done.append(section)
            if failure is not None:
                return Transformed(done, failure)
        return Transformed(done)

    def _transform(self, number: int, section: Section) -> Parts[tuple[bytes, Failure | None]]:
        try:
            return self._instances[number].transform(section)
        except Broken:
            yield
            return (yield from self._transform_in_groups(number, section))

    def _transform_in_groups(
        self, number: int, section: Section
    ) -> Parts[tuple[bytes, Failure | None]]:
        """Something in there breaks the module: up to which record does it work?

        Groups of records are tried first: one by one, many small records would take minutes.
        """
        self._instances[number] = self._fresh(number)
        output = _Joined()
        broken = 0
        for group in groups(section):
            try:
                failure = output.add(*self._instances[number].transform(group))
            except Broken as error:
                broken += 1
                if broken > BROKEN_GROUPS_MAX:
                    raise SmartModuleInvalid(
                        f"the module fails at several records together and at none alone: {error}"
                    ) from error
                yield
                self._instances[number] = self._fresh(number)
                failure = yield from self._transform_singly(number, group, output)
            yield
            if failure is not None:
                return output.taken(), failure
        return output.taken(), None

    def _transform_singly(
        self, number: int, section: Section, output: _Joined
    ) -> Parts[Failure | None]:
        for alone in singles(section):
            try:
                failure = output.add(*self._instances[number].transform(alone.section))
            except Broken as error:
                kind = self._instances[number].kind
                yield
                self._instances[number] = self._fresh(number)
                failure = Failure(alone.offset, str(error), kind, alone.key, alone.value)
            yield
            if failure is not None:
                return failure
        return None


class _Joined:
    """Records that a module gave back in several calls, behind their number."""

    def __init__(self) -> None:
        self._count = 0
        self._out = bytearray(4)

    def add(self, records: bytes, failure: Failure | None) -> Failure | None:
        self._count += int.from_bytes(records[:4], "big")
        self._out += memoryview(records)[4:]
        if len(self._out) > OUTPUT_BYTES_MAX:
            raise SmartModuleInvalid(
                f"the module gives back more than {OUTPUT_BYTES_MAX} bytes: read less at once"
            )
        return failure

    def taken(self) -> bytes:
        self._out[:4] = self._count.to_bytes(4, "big")
        return bytes(self._out)
