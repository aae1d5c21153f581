"""SmartModules of all gateways: kept in the state topic, changed by its owner, run by each."""

from __future__ import annotations

from typing import Final

from pentalog.broker.smart_modules import LocalSmartModules
from pentalog.broker.transformation import BROKER, SmartModule
from pentalog.cluster.desk import Desk
from pentalog.cluster.state_topic import BATCH_BYTES_MAX, ClusterState
from pentalog.config import Config
from pentalog.model.errors import SmartModuleInvalid
from pentalog.model.later import Later
from pentalog.runtime import Runtime

WASM_BYTES_MAX: Final = BATCH_BYTES_MAX // 2
"""A row of the state topic is text, and longer than what it stands for."""
_TABLE: Final = "smart_modules"


class ClusterSmartModules(LocalSmartModules):
    """Implements `transformation.SmartModules`."""

    def __init__(self, state: ClusterState, runtime: Runtime, config: Config) -> None:
        super().__init__(Desk(state), runtime, config)
        state.watch([_TABLE], self._read)

    def _read(self) -> None:
        """Others have changed them, or this gateway reads them anew."""
        before = self._modules
        self.open()
        for name, module in self._modules.items():
            if before.get(name) == module:
                self._modules[name] = before[name]
        if self._modules != before:
            self._changed()

    def create(
        self, module: SmartModule, *, owner: str = BROKER, dry_run: bool = False
    ) -> Later[None]:
        if len(module.wasm) > WASM_BYTES_MAX:
            raise SmartModuleInvalid(
                f"a module of {len(module.wasm)} bytes; a cluster keeps up to {WASM_BYTES_MAX}"
            )
        if not dry_run:
            self._state.check()
        return super().create(module, owner=owner, dry_run=dry_run)
