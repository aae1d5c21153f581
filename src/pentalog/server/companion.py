"""A process beside the broker that lives as long as it does, and is started anew when it dies.

The broker holds the other end of its standard input: however the broker ends, that is closed, and
the companion goes too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

_log: Final = logging.getLogger(__name__)

PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
_WELL_AFTER_S: Final = 30.0
_LINES_INTERVAL_S: Final = 10.0
_LINES_MAX: Final = 100
"""Of its log, in such an interval."""


class Companion:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        on_up: Callable[[str], None],
        on_down: Callable[[], None],
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`on_up` gets the first line it prints; `on_down` follows when it has ended.

        `environment` is all that it gets: passwords and keys among ours are not for it.
        """
        self._name = name
        self._command = command
        self._on_up = on_up
        self._on_down = on_down
        self._environment = environment
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Returns at once."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Takes no time: a companion has nothing to lose."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _keep(self) -> None:
        pause_s = PAUSE_FIRST_S
        while True:
            loop = asyncio.get_running_loop()
            began = loop.time()
            ended = await self._run()
            if loop.time() - began > _WELL_AFTER_S:
                pause_s = PAUSE_FIRST_S
            _log.warning("the %s %s; started again in %d s", self._name, ended, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _run(self) -> str:
        """One life; how it ended."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
                env=dict(self._environment),
            )
        except OSError as error:
            return f"cannot be started: {error}"
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        telling = asyncio.create_task(self._tell(process.stderr))
        try:
            line = (await process.stdout.readline()).decode("utf-8", "replace").strip()
            if line:
                self._on_up(line)
            while await process.stdout.read(1 << 16):
                pass
            code = await process.wait()
        finally:
            self._on_down()
            telling.cancel()
        return f"ended with {code}"

    async def _tell(self, errors: asyncio.StreamReader) -> None:
        """Copy its log to ours, up to a rate: its visitors can make it complain."""
        loop = asyncio.get_running_loop()
        began_s, lines = loop.time(), 0
        while True:
            try:
                line = await errors.readline()
            except ValueError:
                continue  # longer than anything that is worth telling
            if not line:
                return
            if loop.time() - began_s > _LINES_INTERVAL_S:
                if lines > _LINES_MAX:
                    _log.info("%s: %d more lines", self._name, lines - _LINES_MAX)
                began_s, lines = loop.time(), 0
            lines += 1
            if lines <= _LINES_MAX:
                _log.info("%s: %s", self._name, line.decode("utf-8", "replace").rstrip())
