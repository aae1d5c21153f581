"""RustLog clients: producers, consumers and committers in both dialects, and an administrator.

RustLog has one acknowledgement level (durable) and no idempotence: a client that sends a batch
again sends another batch.  Its records are values without keys or headers, so a value is its own
identity; `crossing.py` finds the writer of a value that another protocol wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.simulation import contents, crossing, rustlog_pipeline
from tests.simulation.crossing import Shown, low
from tests.simulation.judge import Being, Item, Sent, TopicLife
from tests.simulation.protocol import ProtocolClients
from tests.simulation.register import Register
from tests.simulation.violation import Violation

from pentalog.clients.rustlog.calls import DIALECTS, Call, Calls, RustLogError

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")

_STORAGE_CODES: Final = frozenset({503, 507, 500, 4, 5})
"""What either dialect may answer while the disk fails."""
_GONE_CODES: Final = (404, 405, 10, 13, 14)
"""What either dialect answers for a topic that is not there."""
_EXISTS_CODES: Final = (400, 11)
_INVALID_CODES: Final = (400, 500)
"""What a record without a key is answered by a compacted topic."""
_OUT_OF_RANGE: Final = 416
_CLIENTS: Final = {
    "rustlog produce": "producer*",
    "rustlog pipeline": "pipeliner*",
    "rustlog fetch": "consumer*",
    "rustlog commit": "consumer*",
    "rustlog wide commit": "consumer*",
    "rustlog end": "observer",
    "rustlog create": "admin",
    "rustlog recreate": "admin",
}
"""Which client does what; one with a star is one of two.  Each does one thing at a time."""
_I64: Final = 1 << 63
_NAME_MAX: Final = 255


class Commit:
    """One commit of one client, until it is answered."""

    def __init__(self, topic: TopicLife, index: int, value: int) -> None:
        self.topic = topic
        self.index = index
        self.value = value
        self.certain = False
        """It is answered, and its topic was there all the time."""


class RustLogClients(ProtocolClients):
    protocol = "rustlog"
    roles = _CLIENTS

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._commits: dict[str, list[Commit]] = {}
        """By client, in order: the binary dialect commits for deleted topics as well."""
        self._wide: dict[Register, tuple[str, TopicLife, int]] = {}

    async def _ask(self, client: str, call: Call[T]) -> T:
        connection = self.connection(client)
        answer = connection.next_frame()
        connection.send_bytes(call.frame)
        return call.read(memoryview(await answer))

    def _refused(self, what: str, error: RustLogError, *allowed: int) -> None:
        """Check an error: without a fault only those of the situation itself are right."""
        self.world.tell(f"{what}: error {error.code}, {error.message[:80]}")
        if error.code in allowed or (self.world.had_fault and error.code in _STORAGE_CODES):
            return
        raise Violation("error", f"{what} was refused: {error}")

    # Producing

    def produce(self, client: str, random: Random) -> Any:
        life = self.topic(random, plain=True)
        if life is None:
            return None
        index = random.randrange(life.partitions)
        sents = [self.send(life, index, random) for _ in range(random.choice((1, 1, 1, 2, 5)))]
        numbers = ", ".join(str(sent.number) for sent in sents)
        return (
            f"produce {numbers} to {life.label}-{index}",
            self._produce_all(client, life, index, sents, random),
        )

    def send(self, life: TopicLife, index: int, random: Random) -> Sent:
        items = []
        next_offset = life.required_end(index)
        for number in range(random.choice((1, 1, 1, 2, 3, 8))):
            self.last_value += 1
            value = contents.value(
                random,
                b"<r%d>" % self.last_value,
                self.world.disk,
                self.world.settings,
                next_offset + number,
            )
            items.append(Item(value, None, value))
        return self.world.judge.send(life, index, items, acks=-1, now_ms=self.world.clock.now_ms())

    async def _produce_all(
        self, client: str, life: TopicLife, index: int, sents: list[Sent], random: Random
    ) -> None:
        """Pipeline several requests in one write, perhaps with a Fetch that must see them."""
        self.lose_some_answers(self.connection(client), random)
        connection = self.connection(client)
        same = random.choice((*DIALECTS, ""))
        produces = [
            self._dialect(random, same).produce(life.name, index, _values(sent)) for sent in sents
        ]
        start = max(life.required_end(index), low(life, index))
        fetch = self._dialect(random, same).fetch(life.name, index, start, 1 << 20, "")
        reads = random.random() < 0.3
        floor = life.model(index).floor
        frames = [call.frame for call in produces] + [fetch.frame] * reads
        answers = [connection.next_frame() for _ in frames]
        connection.send_bytes(b"".join(frames))
        for sent, call, answer in zip(sents, produces, answers, strict=False):
            self.answered(sent, call, await answer)
        self.crash_sometimes(random)
        if reads:
            try:
                found = fetch.read(memoryview(await answers[-1]))
            except RustLogError as error:
                self._refused_fetch(life, index, start, error)
                return
            self._check_read(life, index, start, floor, found)
            ends = [s.next_offset for s in sents if s.required and s.offset is not None]
            short = max(ends, default=0) > found.next_offset and not found.records
            if short and self.is_current(life):
                crossing.check_progress(
                    self.world, life, index, start, found.next_offset, max(ends)
                )

    def _dialect(self, random: Random, name: str = "") -> Calls:
        return DIALECTS[name or random.choice(sorted(DIALECTS))]

    def answered(self, sent: Sent, call: Call[Any], frame: bytes) -> None:
        try:
            produced = call.read(memoryview(frame))
        except RustLogError as error:
            whole = self.is_current(sent.topic) and not sent.loose
            allowed = () if whole else _GONE_CODES
            compacted = any(life.compact for life in self.world.judge.created[sent.topic.name])
            if compacted and (sent.topic.unsure or not whole):
                # It met another topic of its name that is compacted, and needs keys: one that was
                # created meanwhile, or that a cut without syncs has brought back.
                allowed += _INVALID_CODES
            self._refused(f"batch {sent.number}", error, *allowed)
            return
        if produced.record_count != len(sent.items):
            raise Violation("wrong answer", f"{produced.record_count} records of {sent}")
        self.world.tell(f"batch {sent.number} acknowledged at {produced.base_offset}")
        self.world.judge.acknowledge(sent, produced.base_offset)

    def pipeline(self, client: str, random: Random) -> Any:
        return rustlog_pipeline.start(self, client, random)

    # Consuming

    def fetch(self, client: str, random: Random) -> Any:
        life = self.topic(random)
        if life is None:
            return None
        index = random.randrange(life.partitions)
        name = random.choice(sorted(DIALECTS))
        grouped = name == "binary" and random.random() < 0.3
        return (
            f"fetch from {life.label}-{index}, {name}{', by group' * grouped}",
            self._read(client, life, index, DIALECTS[name], grouped, random),
        )

    async def _read(
        self,
        client: str,
        life: TopicLife,
        index: int,
        calls: Calls,
        grouped: bool,
        random: Random,
    ) -> None:
        model = life.model(index)
        first = low(life, index)
        known = [s.offset for s in model.sents if s.required and s.offset is not None]
        known = [offset for offset in known if offset >= first]
        start = random.choice((first, max(first, life.required_end(index)), *known))
        group = _group(client) if grouped else ""
        bytes_max = random.choice((1, 1000, 1 << 20))
        try:
            if grouped:
                committed = await self._committed(client, life, index, calls)
                start = start if committed is None else committed
            promised, floor = life.required_end(index), model.floor
            found = await self._ask(client, calls.fetch(life.name, index, start, bytes_max, group))
        except RustLogError as error:
            self._refused_fetch(life, index, start, error)
            return
        self._check_read(life, index, start, floor, found)
        if not found.records and start < promised and self.is_current(life):
            crossing.check_progress(self.world, life, index, start, found.next_offset, promised)

    def _refused_fetch(self, life: TopicLife, index: int, start: int, error: RustLogError) -> None:
        allowed = () if self.is_current(life) else _GONE_CODES
        if self.world.judge.may_start_behind(life, index, start):
            allowed += (_OUT_OF_RANGE,)
        self._refused(f"fetch at {start} of {life.label}-{index}", error, *allowed)

    def _check_read(self, life: TopicLife, index: int, start: int, floor: int, found: Any) -> None:
        """Give the judge what a Fetch returned: committed records only."""
        if not self.is_current(life):
            return
        if found.next_offset < start:
            raise Violation("out of order", f"a fetch at {start} goes on at {found.next_offset}")
        exact = all(record.timestamp_us is not None for record in found.records)
        shown = [Shown(record.value, record.offset if exact else None) for record in found.records]
        crossing.observe_committed(
            self.world.judge, life, index, shown, start=start, end=found.next_offset, floor=floor
        )

    # Committing

    def _register(self, client: str, life: TopicLife, index: int) -> Register:
        group = _group(client)
        judge = self.world.judge
        key = (group, life.name, life.number, index)
        new = key not in judge.registers
        register = judge.register(key, f"offset of {group} in {life.label}-{index}")
        for commit in self._commits.get(client, ()) if new else ():
            if (commit.topic.name, commit.index) == (life.name, index) and not commit.certain:
                # It was under way while the topic was deleted, and is kept for the next one.
                register.attempt(commit.value)
        return register

    def commit(self, client: str, random: Random) -> Any:
        commits = self._commits.setdefault(client, [])
        last = commits[-1] if commits else None
        if last and not last.certain and self.is_current(last.topic) and random.random() < 0.7:
            commit = last  # its answer was lost: say it again
        else:
            life = self.topic(random)
            if life is None:
                return None
            self.last_commit += 1
            commit = Commit(life, random.randrange(life.partitions), self.last_commit)
            commits.append(commit)
        name = f"commit {commit.value} in {commit.topic.label}-{commit.index}"
        return name, self._commit_offset(client, commit, random)

    async def _commit_offset(self, client: str, commit: Commit, random: Random) -> None:
        life, index = commit.topic, commit.index
        register = self._register(client, life, index)
        number = register.attempt(commit.value)
        self.lose_some_answers(self.connection(client), random)
        call = self._dialect(random).commit(_group(client), life.name, index, commit.value)
        if await self._confirmed(client, life, call):
            register.confirm(number)
            commit.certain = self.is_current(life)
            self.crash_sometimes(random)
            self.world.tell(f"{register.name} is {commit.value}")

    async def _confirmed(self, client: str, life: TopicLife, call: Call[bool]) -> bool:
        try:
            accepted = await self._ask(client, call)
        except RustLogError as error:
            self._refused("commit", error)
            return False
        if not accepted and self.is_current(life):
            raise Violation("error", f"a commit for {life.label} was not accepted")
        return accepted

    async def _committed(
        self, client: str, life: TopicLife, index: int, calls: Calls
    ) -> int | None:
        """The client's own commit: nothing else changes it, so it must be one that it knows."""
        register = self._register(client, life, index)
        since = register.certain
        value = await self._ask(client, calls.committed(_group(client), life.name, index))
        if self.is_current(life):
            register.observe(-1 if value is None else value, since)
        return value

    def wide_commit(self, client: str, random: Random) -> Any:
        life = self.topic(random)
        if life is None:
            return None
        index = random.randrange(life.partitions)
        return f"commit 64 bits in {life.label}-{index}", self._commit_wide(
            client, life, index, random
        )

    async def _commit_wide(self, client: str, life: TopicLife, index: int, random: Random) -> None:
        """Commit more than other protocols can show: only RustLog reads it back."""
        group = f"wide {_group(client)} {life.number}"
        self.last_commit += 1
        value = random.choice((_I64, (1 << 64) - 1_000_000)) + self.last_commit
        name = f"offset of {group} in {life.label}-{index}"
        register = self.world.judge.register(name, name)
        self._wide[register] = (group, life, index)
        number = register.attempt(value)
        call = self._dialect(random).commit(group, life.name, index, value)
        if await self._confirmed(client, life, call):
            register.confirm(number)
            self.world.tell(f"{register.name} is {value}")

    # Ends

    def _ends_of(self, life: TopicLife) -> list[int]:
        return [life.required_end(index) for index in range(life.partitions)]

    def _ends_call(self, life: TopicLife, random: Random) -> tuple[Call[Any], list[int]]:
        """A question for ends, and the partitions it is about."""
        calls = self._dialect(random)
        index = random.randrange(life.partitions)
        kind = random.choice(("topic", "partition", "produce"))
        if kind == "topic":
            return calls.describe_topic(life.name), list(range(life.partitions))
        if kind == "partition":
            return calls.describe_partition(life.name, index), [index]
        return calls.produce(life.name, index, ()), [index]

    def end(self, client: str, random: Random) -> Any:
        life = self.topic(random)
        if life is None:
            return None
        call, indexes = self._ends_call(life, random)
        return f"ends of {life.label}", self._ask_ends(client, life, call, indexes, random)

    async def _ask_ends(
        self,
        client: str,
        life: TopicLife,
        call: Call[Any],
        indexes: Sequence[int],
        random: Random,
    ) -> None:
        if random.random() < 0.5:
            await self.write_through_kafka(life, random.choice(indexes), random, acks=1)
        promised = self._ends_of(life)
        try:
            found = await self._ask(client, call)
        except RustLogError as error:
            allowed = () if self.is_current(life) else _GONE_CODES
            self._refused(f"ends of {life.label}", error, *allowed)
            return
        if not self.is_current(life):
            return
        for index, end in zip(indexes, _ends_in(found), strict=False):
            self.ends.show(life, index, end, promised[index])
        self.crash_sometimes(random)

    # Topics

    def create(self, client: str, random: Random) -> Any:
        free = self.free_names(size_max=_NAME_MAX)
        if not free:
            return None
        name = random.choice(free)
        return f"create {name[:20]}", self._create_topic(client, name, random)

    async def _create_topic(self, client: str, name: str, random: Random) -> None:
        judge = self.world.judge
        if name not in self.free_names(size_max=_NAME_MAX):
            return  # another client was faster
        partitions = random.choice((1, 1, 2, 3))
        judge.loosen(name)
        life = judge.create_topic(name, partitions)
        self.lose_some_answers(self.connection(client), random)
        try:
            await self._ask(client, self._dialect(random).create_topic(name, partitions))
        except RustLogError as error:
            doubt = len(judge.topics[name]) > 1 and self.world.had_fault
            self._refused(f"create {name[:20]}", error, *(_EXISTS_CODES * doubt))
            return
        life.being = Being.ALIVE
        self.world.tell(f"{life.label} has {partitions} partitions")

    def recreate(self, client: str, random: Random) -> Any:
        life = self.topic(random)
        if life is None:
            return None
        return f"delete and create {life.label}", self._recreate_topic(client, life, random)

    async def _recreate_topic(self, client: str, life: TopicLife, random: Random) -> None:
        """RustLog cannot delete: Kafka's administrator does."""
        if await self.world.kafka.admin.delete_topic(life):
            await self._create_topic(client, life.name, random)

    # After a restart, and before one

    def audit(self, *, restart: bool) -> None:
        self.world.call("rustlog: audit", self._audit(self.world.random))

    async def _audit(self, random: Random) -> None:
        for life in self.world.judge.alive():
            calls = self._dialect(random)
            for bounds in await self._ask("audit", calls.describe_topic(life.name)):
                self.ends.check(life, bounds.partition, bounds.high_watermark)
            await self._audit_partition(life, random.randrange(life.partitions), calls)
        for register, (group, life, index) in self._wide.items():
            if self.is_current(life):
                calls = self._dialect(random)
                try:
                    value = await self._ask("audit", calls.committed(group, life.name, index))
                except RustLogError as error:
                    self._refused(register.name, error)
                    continue
                register.observe(-1 if value is None else value, register.certain)

    async def _audit_partition(self, life: TopicLife, index: int, calls: Calls) -> None:
        """Read one partition from its start to its end."""
        floor = life.model(index).floor
        start = await self._ask("audit", DIALECTS["json"].describe_partition(life.name, index))
        offset = start.log_start_offset or 0
        while True:
            try:
                found = await self._ask("audit", calls.fetch(life.name, index, offset, 1 << 20, ""))
            except RustLogError as error:
                self._refused_fetch(life, index, offset, error)
                return
            self._check_read(life, index, offset, floor, found)
            if found.next_offset <= offset:
                return
            offset = found.next_offset


def _values(sent: Sent) -> list[bytes]:
    return [item.value or b"" for item in sent.items]


def _group(client: str) -> str:
    return f"group of rustlog {client}"


def _ends_in(found: Any) -> list[int]:
    """The ends in an answer of any of the requests that ask for them."""
    if isinstance(found, list):
        return [bounds.high_watermark for bounds in found]
    return [found.base_offset if hasattr(found, "base_offset") else found.high_watermark]
