"""SmartModules: kept in the state file, compiled once, run in chains on threads of their own."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pentalog.broker.module_chain import LocalChain, given_bytes
from pentalog.broker.module_checks import WASM_BYTES_MAX
from pentalog.broker.module_engine import TICK_MS, Build, Engine, Limits
from pentalog.broker.module_lanes import Done, Lanes, Shares, Work
from pentalog.broker.needs import Rows
from pentalog.broker.principal_limits import PrincipalLimits
from pentalog.broker.transformation import BROKER, Chain, Link, SmartModule
from pentalog.config import Config
from pentalog.model.errors import (
    BrokerError,
    SmartModuleInvalid,
    SmartModuleNotFound,
)
from pentalog.model.later import Later
from pentalog.runtime import Runtime

MODULES_MAX: Final = 1_000
MODULES_BYTES_MAX: Final = 256 << 20
"""Of all stored modules together: they are kept in memory."""
PACKAGE_BYTES_MAX: Final = 64 << 10
ACCUMULATORS_BYTES_MAX: Final = 16 << 20
"""Accumulators and parameters of one chain."""
LANES: Final = 2
"""Threads that run modules, so that a slow one delays few others."""
VERSION_MIN: Final = 23
"""Modules are spoken to at this version of Fluvio's protocol or a later one."""
VERSION_MAX: Final = 25
NAME_CHARACTERS_MAX: Final = 200

_COMPILED_MAX: Final = 32
_COMPILED_BYTES_MAX: Final = 64 << 20
"""Compiled modules that are kept, by the size they had before."""


class LocalSmartModules:
    """Implements `transformation.SmartModules`."""

    def __init__(
        self, state: Rows, runtime: Runtime, config: Config, build: Build | None = None
    ) -> None:
        """`build` compiles modules outside of this process, see `Engine`."""
        self.version = 1
        self._state = state
        self._runtime = runtime
        self.engine = Engine(
            Limits(
                config.smart_module_fuel,
                config.smart_module_memory_bytes_max,
                config.smart_module_timeout_ms,
            ),
            build,
        )
        share_percent = config.principal_share_percent
        self.shares = Shares(config.smart_module_memory_bytes_max, share_percent)
        self._stored = PrincipalLimits(
            "stored SmartModules", MODULES_MAX, share_percent=share_percent
        )
        self._stored_bytes = PrincipalLimits(
            "bytes of stored SmartModules", MODULES_BYTES_MAX, share_percent=share_percent
        )
        self._owners: dict[str, str] = {}
        """Clients that modules are charged to; not of those that an earlier life left."""
        self._lanes = Lanes(runtime, [f"smartmodule-{number}" for number in range(LANES)])
        self._compiler = Lanes(runtime, ["smartmodule-compiler"])
        """One lane: it makes the engine, and alone has the compiled modules that are kept."""
        self._modules: dict[str, SmartModule] = {}
        self._compiled: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        self._watches: dict[object, Callable[[], None]] = {}
        self._at_work = 0
        self._ticking = False

    def open(self) -> None:
        for module in self._modules.values():
            self._count(module, -1)
        rows = self._state.rows("SELECT * FROM smart_modules ORDER BY name")
        self._modules = {row[0]: SmartModule(*row) for row in rows}
        self._owners = {name: who for name, who in self._owners.items() if name in self._modules}
        for module in self._modules.values():
            self._count(module, 1)

    def create(
        self, module: SmartModule, *, owner: str = BROKER, dry_run: bool = False
    ) -> Later[None]:
        _check_upload(module)
        self.shares.take(owner, 1, len(module.wasm))
        created: Later[None] = Later()

        def compiled(_: Any, error: BaseException | None) -> None:
            self.shares.compiled(owner, len(module.wasm))
            self.shares.give_back(owner, 1)
            try:
                _raise(error)
                if not dry_run:
                    self._store(module, owner)
            except BrokerError as refusal:
                created.refuse(refusal)
            else:
                self._state.settle().then(partial(_pass_on, created))

        self.compile(owner, module.wasm, compiled)
        return created

    def _store(self, module: SmartModule, owner: str) -> None:
        replaced = self._modules.get(module.name)
        if replaced is not None:
            self._count(replaced, -1)
        try:
            self._stored.check(owner)
            self._stored_bytes.check(owner, _size(module))
            self._state.check()
        except BrokerError:
            if replaced is not None:
                self._count(replaced, 1)
            raise
        self._state.write("INSERT OR REPLACE INTO smart_modules VALUES (?, ?, ?)", *module)
        self._modules[module.name] = module
        self._owners[module.name] = owner
        self._count(module, 1)
        self._changed()

    def _count(self, module: SmartModule, times: int) -> None:
        owner = self._owners.get(module.name, BROKER)
        self._stored.add(owner, times)
        self._stored_bytes.add(owner, times * _size(module))

    def delete(self, name: str) -> None:
        name = self.get(name).name
        self._state.check()
        self._state.write("DELETE FROM smart_modules WHERE name = ?", name)
        self._count(self._modules.pop(name), -1)
        self._owners.pop(name, None)
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

    def chain(self, links: Sequence[Link], *, version: int, owner: str = BROKER) -> Later[Chain]:
        programs = [
            self.get(link.module).wasm if isinstance(link.module, str) else link.module
            for link in links
        ]
        _check_links(links)
        self.shares.check_memory(owner)
        self.shares.take(owner, len(links), sum(map(len, programs)))
        chain = LocalChain(self, owner, links, min(max(version, VERSION_MIN), VERSION_MAX))
        started = chain.start(programs)
        started.then(lambda later: _close_refused(chain, later))
        return started

    def compile(self, owner: str, wasm: bytes, done: Done) -> None:
        """Compile a module on the lane for that, then call `done` with it."""
        self._submit(self._compiler, owner, partial(self._compile, wasm), done)

    def _compile(self, wasm: bytes) -> Any:
        """On the lane.  The same bytes are compiled once while they are in use."""
        digest = hashlib.sha256(wasm).digest()
        module, _ = self._compiled.pop(digest, (None, 0))
        if module is None:
            module = self.engine.compile(wasm)
        self._compiled[digest] = module, len(wasm)
        size_bytes = sum(size for _, size in self._compiled.values())
        while len(self._compiled) > _COMPILED_MAX or (
            size_bytes > _COMPILED_BYTES_MAX and len(self._compiled) > 1
        ):
            size_bytes -= self._compiled.popitem(last=False)[1][1]
        return module

    def offload(self, owner: str, work: Work, done: Done) -> None:
        """Run on a lane when it is the owner's turn, with the engine's clock going meanwhile."""
        self._submit(self._lanes, owner, work, done)

    def _submit(self, lanes: Lanes, owner: str, work: Work, done: Done) -> None:
        self._at_work += 1

        def finished(value: Any, error: BaseException | None) -> None:
            self._at_work -= 1
            done(value, error)

        lanes.submit(owner, work, finished)
        if not self._ticking:
            self._ticking = True
            self._runtime.after(TICK_MS, self._tick)

    def _tick(self) -> None:
        self.engine.tick()
        self._ticking = self._at_work > 0
        if self._ticking:
            self._runtime.after(TICK_MS, self._tick)

    def _changed(self) -> None:
        self.version += 1
        for run in list(self._watches.values()):
            run()


def _size(module: SmartModule) -> int:
    return len(module.wasm) + len(module.package)


def _check_upload(module: SmartModule) -> None:
    if not module.name or len(module.name) > NAME_CHARACTERS_MAX:
        raise SmartModuleInvalid(
            f"a SmartModule needs a name of 1 to {NAME_CHARACTERS_MAX} characters"
        )
    if len(module.wasm) > WASM_BYTES_MAX or len(module.package) > PACKAGE_BYTES_MAX:
        raise SmartModuleInvalid(
            f"a module of {len(module.wasm)} bytes with {len(module.package)} bytes about its "
            f"package; accepted are {WASM_BYTES_MAX} and {PACKAGE_BYTES_MAX}"
        )


def _check_links(links: Sequence[Link]) -> None:
    size_bytes = given_bytes(links)
    if size_bytes > ACCUMULATORS_BYTES_MAX:
        raise SmartModuleInvalid(
            f"{size_bytes} bytes of accumulators and parameters; accepted are "
            f"{ACCUMULATORS_BYTES_MAX} in one chain"
        )


def _close_refused(chain: LocalChain, later: Later[Chain]) -> None:
    try:
        later.check()
    except BrokerError:
        chain.close()


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error


def _pass_on(later: Later[None], settled: Later[None]) -> None:
    try:
        later.fill(settled.value)
    except BrokerError as refusal:
        later.refuse(refusal)
