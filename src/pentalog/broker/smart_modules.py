"""SmartModules: kept in the state file, compiled once, run in chains on threads of their own."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pentalog.broker.module_engine import (
    OUTPUT_BYTES_MAX,
    TICK_MS,
    Broken,
    Engine,
    Instance,
    Limits,
    singles,
)
from pentalog.broker.needs import Rows
from pentalog.broker.transformation import (
    Chain,
    Failure,
    Link,
    Section,
    SmartModule,
    Transformed,
)
from pentalog.config import Config
from pentalog.model.errors import (
    BrokerError,
    Overloaded,
    SmartModuleInvalid,
    SmartModuleNotFound,
)
from pentalog.model.later import Later
from pentalog.runtime import Runtime

MODULES_MAX: Final = 1_000
MODULES_BYTES_MAX: Final = 256 << 20
"""Of all stored modules together: they are kept in memory."""
INSTANCES_MAX: Final = 100
"""Programs that may run at a time; each may have its share of memory."""
LANES: Final = 2
"""Threads that run modules, so that a slow one delays few others."""
LOOKBACK_RECORDS_MAX: Final = 100_000
VERSION_MIN: Final = 23
"""Modules are spoken to at this version of Fluvio's protocol or a later one."""
VERSION_MAX: Final = 25
NAME_CHARACTERS_MAX: Final = 200

_COMPILED_MAX: Final = 32


class LocalSmartModules:
    """Implements `transformation.SmartModules`."""

    def __init__(self, state: Rows, runtime: Runtime, config: Config) -> None:
        self.version = 1
        self._state = state
        self._runtime = runtime
        self.engine = Engine(
            Limits(
                config.smart_module_fuel,
                config.smart_module_memory_bytes_max,
                config.smart_module_timeout_ms,
            )
        )
        self._modules: dict[str, SmartModule] = {}
        self._compiled: OrderedDict[bytes, Any] = OrderedDict()
        self._watches: dict[object, Callable[[], None]] = {}
        self._instances = 0
        self._next_lane = 0
        self._at_work = 0
        self._ticking = False

    def open(self) -> None:
        for name, wasm, package in self._state.rows("SELECT * FROM smart_modules ORDER BY name"):
            self._modules[name] = SmartModule(name, wasm, package)

    def create(self, module: SmartModule, *, dry_run: bool = False) -> Later[None]:
        if not module.name or len(module.name) > NAME_CHARACTERS_MAX:
            raise SmartModuleInvalid(
                f"a SmartModule needs a name of 1 to {NAME_CHARACTERS_MAX} characters"
            )
        created: Later[None] = Later()

        def compiled(_: Any, error: BaseException | None) -> None:
            try:
                _raise(error)
                if not dry_run:
                    self._store(module)
            except BrokerError as refusal:
                created.refuse(refusal)
            else:
                self._state.settle().then(partial(_pass_on, created))

        self.offload(self._lane(), partial(self.compiled, module.wasm), compiled)
        return created

    def _store(self, module: SmartModule) -> None:
        others = [kept for kept in self._modules.values() if kept.name != module.name]
        size_bytes = sum(len(kept.wasm) for kept in others) + len(module.wasm)
        if len(others) >= MODULES_MAX or size_bytes > MODULES_BYTES_MAX:
            raise Overloaded(
                f"{len(others)} SmartModules are stored; accepted are {MODULES_MAX} of "
                f"{MODULES_BYTES_MAX} bytes together: delete some"
            )
        self._state.check()
        self._state.write("INSERT OR REPLACE INTO smart_modules VALUES (?, ?, ?)", *module)
        self._modules[module.name] = module
        self._changed()

    def delete(self, name: str) -> None:
        self.get(name)
        self._state.check()
        self._state.write("DELETE FROM smart_modules WHERE name = ?", name)
        del self._modules[name]
        self._changed()

    def get(self, name: str) -> SmartModule:
        """By its name, or by what a package is called: `group/name@version`."""
        bare = name.rpartition("/")[2].partition("@")[0]
        found = self._modules.get(name) or self._modules.get(bare)
        if found is None:
            raise SmartModuleNotFound(name)
        return found

    def all(self) -> Sequence[SmartModule]:
        return [self._modules[name] for name in sorted(self._modules)]

    def settle(self) -> Later[None]:
        return self._state.settle()

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._watches[key] = run
        return lambda: self._watches.pop(key, None) and None

    def chain(self, links: Sequence[Link], *, version: int) -> Later[Chain]:
        programs = [
            self.get(link.module).wasm if isinstance(link.module, str) else link.module
            for link in links
        ]
        if self._instances + len(links) > INSTANCES_MAX:
            raise Overloaded(
                f"{self._instances} SmartModules run already, {INSTANCES_MAX} may: try again when "
                "some have ended"
            )
        self._instances += len(links)
        chain = LocalChain(self, self._lane(), links, min(max(version, VERSION_MIN), VERSION_MAX))
        started: Later[Chain] = Later()

        def done(_: Any, error: BaseException | None) -> None:
            try:
                _raise(error)
            except BrokerError as refusal:
                chain.close()
                started.refuse(refusal)
            else:
                started.fill(chain)

        self.offload(chain.lane, partial(chain.start, programs), done)
        return started

    def compiled(self, wasm: bytes) -> Any:
        """On a lane.  The same bytes are compiled once while they are in use."""
        digest = hashlib.sha256(wasm).digest()
        module = self._compiled.pop(digest, None)
        if module is None:
            module = self.engine.compile(wasm)
        self._compiled[digest] = module
        while len(self._compiled) > _COMPILED_MAX:
            self._compiled.popitem(last=False)
        return module

    def offload(
        self,
        lane: str,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        """Run on a lane, with the engine's clock going meanwhile."""
        self._at_work += 1

        def finished(value: Any, error: BaseException | None) -> None:
            self._at_work -= 1
            done(value, error)

        self._runtime.offload(lane, work, finished)
        if not self._ticking:
            self._ticking = True
            self._runtime.after(TICK_MS, self._tick)

    def ended(self, instances: int) -> None:
        """A chain has ended."""
        self._instances -= instances

    def _tick(self) -> None:
        self.engine.tick()
        self._ticking = self._at_work > 0
        if self._ticking:
            self._runtime.after(TICK_MS, self._tick)

    def _lane(self) -> str:
        self._next_lane = (self._next_lane + 1) % LANES
        return f"smartmodule-{self._next_lane}"

    def _changed(self) -> None:
        self.version += 1
        for run in list(self._watches.values()):
            run()


class LocalChain:
    """Implements `transformation.Chain`."""

    def __init__(
        self, modules: LocalSmartModules, lane: str, links: Sequence[Link], version: int
    ) -> None:
        self.lane = lane
        self._modules = modules
        self._links = links
        self._version = version
        self._programs: list[Any] = []
        self._instances: list[Instance] = []
        self._closed = False

    def start(self, programs: Sequence[bytes]) -> None:
        """On the lane."""
        self._programs = [self._modules.compiled(wasm) for wasm in programs]
        self._instances = [self._fresh(number) for number in range(len(programs))]

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

        def work() -> None:
            for instance in self._instances:
                if instance.looks_back:
                    for section in sections:
                        instance.look_back(section)

        self._modules.offload(self.lane, work, partial(_deliver, later))
        return later

    def run(self, sections: Sequence[Section]) -> Later[Transformed]:
        later: Later[Transformed] = Later()
        work = partial(self._run, sections)
        self._modules.offload(self.lane, work, partial(_deliver, later))
        return later

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._modules.ended(len(self._links))

    def _run(self, sections: Sequence[Section]) -> Transformed:
        """On the lane."""
        done: list[Section] = []
        size_bytes = 0
        for section in sections:
            failure = None
            for number in range(len(self._instances)):
                records, failed = self._transform(number, section)
                failure = failure or failed
                section = section._replace(records=records)
                if records[:4] == _NONE:
                    break
            size_bytes += len(section.records)
            if size_bytes > OUTPUT_BYTES_MAX:
                raise SmartModuleInvalid(
                    f"the modules give back more than {OUTPUT_BYTES_MAX} bytes: read less at once"
                )
            if bytes(section.records[:4]) != _NONE:
                done.append(section)
            if failure is not None:
                return Transformed(done, failure)
        return Transformed(done)

    def _transform(self, number: int, section: Section) -> tuple[bytes, Failure | None]:
        try:
            return self._instances[number].transform(section)
        except Broken:
            return self._transform_singly(number, section)

    def _transform_singly(self, number: int, section: Section) -> tuple[bytes, Failure | None]:
        """Something in there breaks the module: up to which record does it work?"""
        self._instances[number] = self._fresh(number)
        count = 0
        out = bytearray(4)
        failure = None
        for alone in singles(section):
            try:
                records, failure = self._instances[number].transform(alone.section)
            except Broken as error:
                kind = self._instances[number].kind
                self._instances[number] = self._fresh(number)
                failure = Failure(alone.offset, str(error), kind, alone.key, alone.value)
                records = _NONE
            count += int.from_bytes(records[:4], "big")
            out += records[4:]
            if failure is not None:
                break
        out[:4] = count.to_bytes(4, "big")
        return bytes(out), failure


_NONE: Final = b"\0\0\0\0"


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error


def _pass_on(later: Later[None], settled: Later[None]) -> None:
    try:
        later.fill(settled.value)
    except BrokerError as refusal:
        later.refuse(refusal)


def _deliver(later: Later[Any], value: Any, error: BaseException | None) -> None:
    try:
        _raise(error)
    except BrokerError as refusal:
        later.refuse(refusal)
    except Exception as mistake:
        later.refuse(SmartModuleInvalid(f"the module cannot be run: {mistake}"))
        raise
    else:
        later.fill(value)
