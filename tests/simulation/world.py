"""One world: a disk, a clock, a broker that lives several lives, and clients that use it.

`World.run` follows a plan and raises `Violation` if the broker breaks a rule.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import secrets
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest import mock

from tests.simulation import expectations, kafka_audit, sizes
from tests.simulation.blipmq import BlipmqClients
from tests.simulation.clients import AuditedClients, Clients
from tests.simulation.cursus import CursusClients
from tests.simulation.database import Connection as DatabaseConnection
from tests.simulation.database import Database
from tests.simulation.derived import DerivedClients
from tests.simulation.disk import Directory, Disk
from tests.simulation.files import Crash, SimulatedFiles
from tests.simulation.fluvio import FluvioClients
from tests.simulation.judge import Judge, Sent
from tests.simulation.kafka import KafkaClients
from tests.simulation.kafka_admin import LONG_NAME
from tests.simulation.pipelining import MESSAGE_BYTES_MAX
from tests.simulation.plan import Life, Plan, Step
from tests.simulation.runtime import OPENING_LANES, BrokerMistake, Clock, VirtualRuntime
from tests.simulation.rustlog import RustLogClients
from tests.simulation.violation import Violation
from tests.simulation.wire import Connection, Lost, Reply

from pentalog.app import ENDPOINTS
from pentalog.broker.local import LocalBroker
from pentalog.broker.security import Access
from pentalog.config import Config
from pentalog.log import flusher, journal
from pentalog.log.directories import StoreError
from pentalog.metrics import Metrics
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.session import Address, Context

_DATA: Final = Path("/data")
_COUNTED: Final = {
    "kill": "kills",
    "evict": "kills",
    "cut": "cuts",
    "clean cut": "cuts",
    "stop": "stops",
}
_CHANGES: Final = frozenset({"create", "mkdir", "rename", "remove", "write", "truncate"})
"""Calls that change a data directory."""
_CLOSED: Final = "the broker has stopped"
"""How the reason ends that partitions of a closed store refuse writes for."""
_PATIENCE_MS: Final = 120_000
"""A request that has no answer after this long has none."""


class Task:
    """A client's operation that is under way."""

    def __init__(
        self, name: str, run: Coroutine[Any, Any, None], over: Callable[[], None] = lambda: None
    ) -> None:
        self.name = name
        self.run = run
        self._call_over = over
        self.waits_for: Reply | None = None
        self.over = False

    @property
    def ready(self) -> bool:
        return self.waits_for is None or self.waits_for.ready

    def resume(self) -> None:
        try:
            self.waits_for = self.run.send(None)
        except (StopIteration, Lost):
            self.over = True
            self._call_over()

    def lose(self) -> None:
        """The broker has gone: no answer will come."""
        self.over = True
        self._call_over()
        if self.waits_for is None:
            self.run.close()
            return
        with contextlib.suppress(StopIteration, Lost):
            self.run.throw(Lost("the broker has gone"))


class World:
    def __init__(self, plan: Plan, *, ignore: frozenset[str] = frozenset()) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.ignore = ignore
        """Rules that are not enforced."""
        self.random = Random(plan.seed)
        self.disk = Disk()
        self.database = Database()
        self.clock = Clock()
        self.judge = Judge(synced=self.settings.flush_interval_ms > 0)
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self.dead = True
        self.tasks: list[Task] = []
        self.connections: list[Connection] = []
        self._crash_calls = 0
        self._crash_steps = 0
        self._crash_writes = 0
        self._crash_kind = "kill"
        self._store_closed = False
        self.had_fault = False
        """Something was made to fail in this life."""
        self.stopped_clean = False
        """The last life ended with a clean stop."""
        self.kafka = KafkaClients(self)
        self.blipmq = BlipmqClients(self)
        self.others: tuple[AuditedClients, ...] = (
            RustLogClients(self),
            FluvioClients(self),
            DerivedClients(self),
            self.blipmq,
            CursusClients(self),
        )
        self.clients: tuple[Clients, ...] = (self.kafka, *self.others)
        data = Directory()
        self.disk.root.link("data", data)
        self.disk.root.sync()

    # The story

    def tell(self, text: str) -> None:
        text = text.replace(LONG_NAME, "xxxxxxxx...")
        self.trace.append(f"{self.clock.elapsed_ms:10.1f}  {text}")

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def violate(self, rule: str, text: str) -> None:
        """Report a violation of a rule that can be left out."""
        if rule not in self.ignore:
            raise Violation(rule, text)
        self.counts[f"ignored: {rule}"] += 1

    # Following the plan

    def run(self) -> None:
        ids = Random(f"ids {self.plan.seed}")

        def next_id() -> uuid.UUID:
            return uuid.UUID(int=ids.getrandbits(128))

        with (
            mock.patch.object(uuid, "uuid4", next_id),
            mock.patch.object(secrets, "token_bytes", ids.randbytes),
            mock.patch.object(journal, "SIZE_MIN", 20 << 10),
            mock.patch.object(flusher, "_JOURNAL_PAYS_AFTER", self.settings.journal_pays_after),
            sizes.patched(sizes.chosen(self.settings)),
            _logs_of(self),
        ):
            try:
                for life in self.plan.lives:
                    self.counts["lives"] += 1
                    self.tell(f"life {life.number}")
                    self._live(life)
                self._live(Life(-1, [], "stop", [], 0))
            finally:
                self._abandon()

    def _live(self, life: Life) -> None:
        self.random.seed(life.seed)
        try:
            self._open()
            self._audit(restart=True)
            for step in life.steps:
                self._do(step)
            self._quieten()
            self._audit(restart=False)
            self._end(life.ending)
        except Crash:
            self._crashed(self._crash_kind)
        except BrokerMistake as mistake:
            raise Violation("exception", _last_lines(mistake.__cause__ or mistake)) from mistake
        self._recovery = list(life.recovery)

    _recovery: list[Step]

    def _audit(self, *, restart: bool) -> None:
        kafka_audit.audit(self, restart=restart)
        for clients in self.others:
            clients.audit(restart=restart)

    def _abandon(self) -> None:
        """Leave no thread and no coroutine behind."""
        self.dead = True
        self.runtime.kill()
        for task in self.tasks:
            task.run.close()

    def _do(self, step: Step) -> None:
        random = self.random = self.runtime.random = self.files._random = Random(step.seed)
        self.counts["steps"] += 1
        kind = step.kind
        handler = getattr(self, f"_step_{kind}", None)
        if handler is not None:
            self.tell(f"#{step.number} {kind}")
            handler(random)
        else:
            clients = next(entry for entry in self.clients if kind in entry.kinds)
            task = clients.start(kind, random)
            if task is not None:
                self.tell(f"#{step.number} {task.name}")
                self.tasks.append(task)
        if random.random() < self.settings.patience:
            self.drain()
        else:
            for _ in range(random.choice((0, 1, 3, 10, 30))):
                self.turn()

    def task(self, name: str, run: Coroutine[Any, Any, None], over: Callable[[], None]) -> Task:
        """An operation of a client; `over` is called when it has ended, however that was."""
        return Task(name, run, over)

    # Steps that are not a client's

    def _step_sleep(self, random: Random) -> None:
        self.runtime.run_for(random.choice((1, 15, 150, 1_200, 7_000, 40_000)))

    def _step_jump(self, random: Random) -> None:
        jump = random.choice((-1, 1)) * random.choice((5, 2_000, 60_000, 3_600_000))
        self.clock.jump(jump)
        self.counts["clock jumps"] += 1
        self.tell(f"the wall clock jumps by {jump} ms")

    def _step_full(self, random: Random) -> None:
        self.disk.space_pages = random.choice((0, 0, 1, 2, 3, 5))
        self.disk.renames_fail = random.choice((0.0, 0.1, 0.5, 1.0))
        self.had_fault = True
        self.counts["full disks"] += 1
        self.tell(f"the disk is full but for {self.disk.space_pages} pages")

    def _step_error(self, random: Random) -> None:
        kind = random.choice(("read", "write", "sync", "sync", "sql"))
        share = random.choice((0.05, 0.3, 1.0))
        self.files.faults.errors[kind] = share
        self.had_fault = True
        self.counts["disk errors"] += 1
        self.tell(f"{share:.0%} of calls of kind {kind} fail")

    def _step_relief(self, random: Random) -> None:
        self.relieve()

    def _step_crash(self, random: Random) -> None:
        self._crash_kind = random.choice(("kill", "cut", "cut"))
        count = random.choice((1, 2, 3, 5, 8, 13, 21, 34, 55))
        if random.random() < 0.3:
            # Just behind a write to a segment, before anything syncs it.
            self._crash_writes = count = random.randint(1, 3)
        elif random.random() < 0.6:
            self._crash_calls = count
        else:
            self._crash_steps = count
        self.tell(f"a {self._crash_kind} is due in {count}")

    def crash_soon(self, steps_max: int = 4) -> None:
        """Cut the power in one of the next steps: an answer has just arrived."""
        if not (self._crash_calls or self._crash_steps or self._crash_writes):
            self._crash_kind = "cut"
            self._crash_steps = self.random.randint(1, steps_max)
            self.tell(f"a cut is due in {self._crash_steps}")

    def relieve(self) -> None:
        """End all faults."""
        if self.disk.space_pages is not None or self.files.faults.errors:
            self.tell("the disk works again")
        self.disk.space_pages = None
        self.files.faults.clear()

    # One life

    def _gate(self, operation: str, path: Path) -> None:
        if self.dead:
            raise Crash
        if self._store_closed and operation in _CHANGES:
            raise Violation("written after a stop", f"{operation} of {path}")
        self.counts["file calls"] += 1
        due = False
        if self._crash_calls:
            self._crash_calls -= 1
            due = not self._crash_calls
        if self._crash_writes and operation == "written" and path.suffix == ".log":
            self._crash_writes -= 1
            due = due or not self._crash_writes
        if due:
            self.tell(f"{self._crash_kind} at {operation} of {path}")
            self.dead = True
            raise Crash
        self.runtime.at_file_call()
        if self.dead:
            raise Crash

    def _step_gate(self) -> None:
        if self.dead:
            raise Crash
        if self._crash_steps:
            self._crash_steps -= 1
            if not self._crash_steps:
                self.tell(f"{self._crash_kind} between two steps")
                self.dead = True
                raise Crash

    def _open(self) -> None:
        """Start the broker, through all crashes that the plan has for its recovery."""
        recovery: list[Step] = getattr(self, "_recovery", [])
        while True:
            step = recovery.pop(0) if recovery else None
            self._crash_calls = self._crash_steps = self._crash_writes = 0
            if step is not None:
                random = Random(step.seed)
                self._crash_kind = step.kind
                self._crash_calls = random.randint(1, random.choice((3, 10, 40)))
            try:
                self._open_once()
            except Crash:
                self._crashed(self._crash_kind)
                continue
            except (StoreError, BrokerError, OSError) as error:
                if not self._faulty:
                    raise Violation("start refused", f"{type(error).__name__}: {error}") from error
                self.tell(f"the start is refused: {error}")
                self.relieve()
                self._crashed("kill")
                continue
            except Exception as error:
                raise Violation("start failed", _last_lines(error)) from error
            return

    @property
    def _faulty(self) -> bool:
        return self.disk.space_pages is not None or bool(self.files.faults.errors)

    def _open_once(self) -> None:
        settings = self.settings
        self.dead = False
        self.had_fault = self.disk.space_pages is not None
        self.runtime = VirtualRuntime(
            self.clock, self.random, slow=settings.slow, pauses=settings.pauses
        )
        self.runtime.gate = self._step_gate
        self.slices = self.runtime.slices()
        self.files = SimulatedFiles(self.disk, self.random, self._gate, self.clock.monotonic)
        self.files.faults.cold = settings.cold
        self.config = Config(
            data=_DATA,
            flush_interval_ms=settings.flush_interval_ms,
            journal_bytes=settings.journal_bytes,
            journal_batch_bytes_max=settings.journal_batch_bytes_max,
            housekeeping_interval_ms=2_000,
            retention_interval_ms=5_000,
            auto_create_topics=False,
            marks_interval_ms=5_000,
            topic_defaults={
                "segment.bytes": str(settings.segment_bytes),
                "index.interval.bytes": str(settings.index_interval_bytes),
                "file.delete.delay.ms": "1000",
                "max.message.bytes": str(MESSAGE_BYTES_MAX),
            },
        )
        self.metrics = Metrics()
        self.database.open()
        parts = (self.config, self.files, self.runtime, self.metrics)
        connect, slices = self._connect_database, self.runtime.slices()
        self.local = LocalBroker(*parts, connect=connect, slices=slices)
        for _ in self.local.store.opening():
            pass
        self.broker = self.local.open_broker()
        settled = self.local.settle()
        while not settled.ready:
            self.runtime.run_for(1)
        self.local.housekeeping.start()
        self.runtime.run_for(1)

    def _connect_database(self, path: Path, *, timeout_s: float) -> Any:
        return DatabaseConnection(self.database, self.disk, self.files.faults, self._gate)

    def connect(self, door: str = "kafka", config: Config | None = None) -> Connection:
        context = Context(
            broker=self.broker,
            runtime=self.runtime,
            config=config or self.config,
            metrics=self.metrics,
            peer="127.0.0.1:50000",
            listener=door,
            advertised=lambda _: Address("sim", 9092),
            access=Access(self.broker.rules, host="127.0.0.1"),
            totals=self.metrics,
            slices=self.slices,
        )
        connection = Connection(ENDPOINTS[door], context, self.runtime)
        self.connections.append(connection)
        return connection

    def wait(self, delay_ms: float) -> Reply:
        """Awaited by a client: let time pass."""
        reply = Reply()
        self.runtime.after(delay_ms, lambda: reply.fill(b""))
        return reply

    def turn(self) -> bool:
        """Let one thing happen; False if nothing can before time passes."""
        ready = [task for task in self.tasks if task.ready]
        if ready and self.random.random() < 0.5:
            self._resume(self.random.choice(ready))
            return True
        if self.runtime.step():
            return True
        if ready:
            self._resume(self.random.choice(ready))
            return True
        return False

    def _resume(self, task: Task) -> None:
        self.counts["turns"] += 1
        task.resume()
        if task.over:
            self.tasks.remove(task)

    def drain(self) -> None:
        """Let everything that is under way come to its end."""
        limit_ms = self.clock.elapsed_ms + _PATIENCE_MS
        while self.tasks:
            if self.turn():
                continue
            if not self.runtime.advance(limit_ms) and self.clock.elapsed_ms >= limit_ms:
                names = ", ".join(task.name for task in self.tasks)
                raise Violation("no answer", f"after {_PATIENCE_MS // 1000} s: {names}")

    def call(self, name: str, run: Coroutine[Any, Any, None]) -> None:
        """Run one operation to its end."""
        self.tasks.append(Task(name, run))
        self.drain()

    def _quieten(self) -> None:
        """The end of a life: nothing is under way and nothing is wrong any more."""
        self.relieve()
        self.drain()
        self.runtime.run_for(5_000)
        if self.files.faults.sync_failed:
            # What was only written then is not served before the next start.
            self.judge.sync_failed()

    def _end(self, ending: str) -> None:
        self.tell(f"the life ends by {ending}")
        self._crash_calls = self._crash_steps = self._crash_writes = 0
        if ending.startswith("stop"):
            self._say_farewell()
            clean = self._stop()
            self.dead = True
            if clean and ending.endswith("cut"):
                ending = "clean cut"
            self._crashed(ending.removeprefix("stop+"))
        else:
            self.dead = True
            self._crashed(ending)

    def _say_farewell(self) -> None:
        """Let clients send what they await no answer to, just before a stop."""
        if not self.settings.pipelines:
            return
        farewell = self.kafka.pipelines.farewell(self.random)
        if farewell is not None:
            self.tell(farewell[0])
            self.tasks.append(Task(*farewell))
            for _ in range(self.random.choice((5, 10, 30))):
                self.turn()

    def _finish_answers(self) -> list[Sent]:
        """Wait until every accepted request is answered; returns batches without acks."""
        limit_ms = self.clock.elapsed_ms + self.config.shutdown_timeout_ms
        while not all(connection.idle for connection in self.connections):
            if not self.runtime.step() and not self.runtime.advance(limit_ms):
                return []
        return self.kafka.pipelines.accepted()

    def _stop(self) -> bool:
        """Stop as `App.stop` does; False if the disk did not let it be a clean stop."""
        local = self.local
        local.stop_derived()
        local.stop_waiting()
        haste = self.random.random() if self.settings.pipelines else 0.0
        accepted = self._finish_answers() if haste < 0.7 else []
        for connection in self.connections:
            connection.close()
        local.housekeeping.stop()
        if haste > 0.35:
            # These threads take longer than a stop waits for them.
            self.runtime.stuck = OPENING_LANES
        closed: Later[None] = local.close_broker()
        while not closed.ready:
            if not self.runtime.step():
                self.runtime.advance(self.clock.elapsed_ms + 1_000)
        while not self.runtime.idle:
            if not self.runtime.step():
                self.runtime.advance(self.clock.elapsed_ms + 1_000)
        try:
            _ = closed.value
            local.close_store()
        except (BrokerError, OSError) as error:
            if not self.had_fault:
                raise Violation("stop failed", str(error)) from error
            return False
        self.database.checkpoint()
        failed = [partition.failed for partition in local.store.all()]
        self._store_closed = True
        self.runtime.finish_lanes()  # nothing may be written any more
        self._store_closed = False
        faulty = self.had_fault or self.judge.ever_lossy or self.clock.was_set_back
        for sent in accepted if not faulty else ():
            expectations.keep(sent)
        return not any(reason and not reason.endswith(_CLOSED) for reason in failed)

    def _crashed(self, kind: str) -> None:
        """The process is gone: by a kill, a power cut, or a clean stop."""
        self.dead = True
        self.stopped_clean = kind in ("stop", "clean cut") and not self.had_fault
        self.counts[_COUNTED[kind]] += 1
        self.runtime.kill()
        for connection in self.connections:
            connection.lose()
        self.connections.clear()
        for task in self.tasks:
            task.lose()
        self.tasks.clear()
        self.blipmq.judge_all_arrived()  # before it is known what may be lost
        if self.files.faults.sync_failed:
            self.judge.sync_failed()
        if kind in ("cut", "clean cut"):
            self.disk.cut_power(self.random)
            self.database.cut_power(self.random)
            if kind == "cut":
                self.judge.power_cut()
        else:
            self.database.kill()
        if kind == "evict":
            self.disk.evict()
        for clients in self.clients:
            clients.disconnect()
        self.disk.space_pages = None
        self.judge.wall_ms = self.clock.latest_ms


def _last_lines(error: BaseException) -> str:
    text = io.StringIO()
    traceback.print_exception(error, file=text, limit=-4)
    return text.getvalue().strip()


class _logs_of:  # noqa: N801  # used as a context manager
    """Puts what the broker logs into the story, and takes tracebacks for violations."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._logger = logging.getLogger("pentalog")

    def __enter__(self) -> None:
        self._handler = _StoryHandler(self._world)
        self._before = (self._logger.propagate, self._logger.level)
        self._logger.addHandler(self._handler)
        self._logger.propagate = False
        self._logger.setLevel(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._handler)
        self._logger.propagate = self._before[0]
        self._logger.setLevel(self._before[1])


class _StoryHandler(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.tell(f"log: {record.levelname.lower()}: {record.getMessage()}")
        if record.exc_info and record.exc_info[1] is not None:
            raise Violation("exception", _last_lines(record.exc_info[1]))
