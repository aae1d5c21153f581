"""Cursus clients: producers at every `acks`, named idempotent ones, consumers, groups, topics."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation import contents, cursus_wire
from tests.simulation.blipmq_judge import is_committed
from tests.simulation.clients import Operation, Turns
from tests.simulation.cursus_pipeline import Pipelines
from tests.simulation.cursus_streams import EventStreams
from tests.simulation.cursus_transactions import TransactionalClients
from tests.simulation.cursus_wire import Answer
from tests.simulation.judge import ANYWHERE, Being, Item, Sent, TopicLife
from tests.simulation.kafka_audit import is_open
from tests.simulation.kafka_wire import Read
from tests.simulation.register import Register
from tests.simulation.violation import Violation
from tests.simulation.wire import Connection, Lost
from tests.support.cursus_world import Message, batch

if TYPE_CHECKING:
    from tests.simulation.world import Task, World

_CLIENTS: Final = {
    "cursus_produce": "producer*",
    "cursus_idempotent": "idempotent*",
    "cursus_pipeline": "pipeliner*",
    "cursus_consume": "consumer*",
    "cursus_push": "listener",
    "cursus_commit": "committer*",
    "cursus_offsets": "observer",
    "cursus_create": "admin",
    "cursus_delete": "admin",
    "cursus_recreate": "admin",
    "cursus_append": "appender*",
    "cursus_stream": "reader*",
    "cursus_snapshot": "saver",
    "cursus_transact": "transactional*",
}
"""Which client does what; one with a star is one of two.  Each does one thing at a time."""
_CUT_SOON: Final = 0.02
"""Share of answers after which the power is cut: one that left too early is wrong only then."""
_NAMES: Final = ("cargo", "ledger", "ledger2")
_SOURCED: Final = "ledger"
"""Topics whose names begin so are created for event streams."""
_MOVED: Final = ("topic_not_found", "partition_not_found", "command_failed")
"""What is answered for a topic that another client has deleted."""
_FORGOTTEN: Final = ("idempotency",)
_FENCED: Final = ("GEN_MISMATCH", "member_not_found", "group_not_found", "NOT_OWNER")
"""What a member is answered that was silent for too long, or whose topic has grown."""
STORAGE: Final = ("broker_error", "STREAM_CONTROL type=CLOSE")
"""What may be answered while the disk fails; it does not say that nothing was written."""


class Named:
    """A producer with a name: it sends a batch until it knows what became of it."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.epoch = 1
        self.sequences: dict[tuple[int, int], int] = {}
        self.pending: tuple[Sent, bytes] | None = None

    def start_over(self) -> None:
        self.epoch += 1
        self.sequences.clear()
        self.pending = None


class CursusClients:
    def __init__(self, world: World) -> None:
        self.world = world
        self.streams = EventStreams(self)
        self.transactions = TransactionalClients(self)
        self.pipelines = Pipelines(self)
        self._connections: dict[str, Connection] = {}
        self._turns = Turns(world)
        self._count = 0
        self._members: dict[tuple[str, int], str] = {}
        """How members of groups name themselves, by group and number of the topic."""
        self._named = [Named(b"named0"), Named(b"named1")]

    @property
    def kinds(self) -> Collection[str]:
        return _CLIENTS

    def start(self, kind: str, random: Random) -> Task | None:
        role, method = _CLIENTS[kind], kind.removeprefix("cursus_")
        owners: dict[str, object] = dict.fromkeys(("appender", "reader", "saver"), self.streams)
        owners["transactional"] = self.transactions
        owners["pipeliner"] = self.pipelines
        method = "start" if method == "pipeline" else method
        owner = owners.get(role.rstrip("*"), self)

        def begin(client: str, random: Random) -> Operation | None:
            operation = getattr(owner, method)(client, random)
            return operation and (f"cursus: {operation[0]}", operation[1])

        return self._turns.start(role, random, begin)

    def audit(self, *, restart: bool) -> None:
        if restart and self.streams.alive():
            self.world.call("audit of event streams", self.streams.audit())

    def disconnect(self) -> None:
        self._connections.clear()
        self._turns.clear()
        self._members.clear()
        self.transactions.disconnect()
        self.pipelines.disconnect()
        if self.world.judge.lossy:
            for named in self._named:
                named.start_over()

    # The wire

    def connection(self, client: str) -> Connection:
        found = self._connections.get(client)
        if found is None or found.ended:
            found = self._connections[client] = self.world.connect("cursus")
        return found

    async def ask(self, client: str, frame: bytes) -> bytes:
        try:
            answer = await self.connection(client).ask(frame)
        except Lost:
            if not self.world.dead:
                raise Violation("hung up", "Cursus closes a connection") from None
            raise
        self.cut_soon()
        return answer

    def cut_soon(self) -> None:
        """Maybe cut the power soon after an answer."""
        if self.world.random.random() < _CUT_SOON:
            self.world.crash_soon()

    async def command(self, client: str, text: str, message: bytes | None = None) -> Answer:
        return cursus_wire.answer(await self.ask(client, cursus_wire.command(text, message)))

    def check_refusal(self, what: str, code: str, *allowed: str) -> None:
        """Without a fault only refusals of the situation itself are right."""
        self.world.tell(f"{what}: {code[:150]}")
        if any(code.startswith(word) for word in allowed):
            return
        if self.world.had_fault and any(code.startswith(word) for word in STORAGE):
            return
        raise Violation("error", f"{what} was refused: {code[:200]}")

    # Producing

    def next_value(self, topic: TopicLife, index: int, random: Random, number: int = 0) -> bytes:
        """A value that is like no other, and does not begin with a blank."""
        self._count += 1
        return b"c" + contents.value(
            random,
            b"<c%d>" % self._count,
            self.world.disk,
            self.world.settings,
            topic.required_end(index) + number,
        )

    def items(self, topic: TopicLife, index: int, random: Random) -> list[Item]:
        items = []
        for number in range(random.choice((1, 1, 2, 3, 8))):
            value = self.next_value(topic, index, random, number)
            key = b"k%d" % random.randint(0, 4) if topic.compact or random.random() < 0.3 else None
            items.append(Item(value, key, value))
        return items

    def topic(self, random: Random) -> TopicLife | None:
        alive = self.world.judge.alive()
        return random.choice(alive) if alive else None

    def send(self, topic: TopicLife, index: int, items: list[Item], acks: int) -> Sent:
        now_ms = self.world.clock.now_ms()
        return self.world.judge.send(topic, index, items, acks=acks, now_ms=now_ms)

    def produce(self, client: str, random: Random) -> Any:
        topic = self.topic(random)
        if topic is None:
            return None
        index = random.randrange(topic.partitions)
        acks = random.choice((-1, -1, 1, 1, 0))
        items = self.items(topic, index, random)
        messages = [Message(item.value or b"", key=item.key or b"") for item in items]
        document = random.random() < 0.3
        frame = batch(
            messages, topic=topic.name, partition=index, acks=str(acks), document=document
        )
        sent = self.send(topic, index, items, acks)
        name = f"produce {sent.number} to {topic.label}-{index}, acks={acks}"
        return name, self._produce(client, sent, frame)

    async def _produce(self, client: str, sent: Sent, frame: bytes) -> str:
        """Returns the refusal, if there was one."""
        error, last_offset = cursus_wire.published(await self.ask(client, frame))
        if not error:
            self.world.tell(f"batch {sent.number} acknowledged up to {last_offset}")
            if sent.acks:
                self.world.judge.acknowledge(sent, last_offset + 1 - len(sent.items))
            return ""
        self.check_batch_refusal(sent, error)
        return error

    def check_batch_refusal(self, sent: Sent, error: str) -> None:
        """Check what a batch was refused with."""
        moved = sent.topic.being is not Being.ALIVE or sent.loose
        # Another topic of the name may demand keys, or the settings of an earlier one be back.
        allowed = (
            (*_MOVED, "invalid_payload") if moved else ("invalid_payload",) * sent.topic.unsure
        )
        if any(error.startswith(word) for word in _FORGOTTEN) and self._is_forgotten(sent):
            return
        self.check_refusal(f"batch {sent.number}", error, *allowed, *(_FORGOTTEN if moved else ()))

    def _is_forgotten(self, sent: Sent) -> bool:
        """May the broker have deleted what it knew of the batch's producer?"""
        trimmed = sent.topic.model(sent.index).floor_maybe > 0
        return sent.topic.retention or trimmed or not self.world.judge.synced

    def idempotent(self, client: str, random: Random) -> Any:
        named = self._named[int(client[-1])]
        if named.pending is not None:
            sent, frame = named.pending
            # Of a producer whose records are all deleted nothing is known: a retry is a new batch.
            deleted = sent.topic.model(sent.index).floor_maybe > (sent.offset or 0)
            known = sent.topic.being is Being.ALIVE and not (sent.loose or deleted)
            if known and random.random() < 0.9:
                return f"retry batch {sent.number}", self._retry(client, named, sent, frame)
            named.start_over()
        topic = self.topic(random)
        if topic is None:
            return None
        index = random.randrange(topic.partitions)
        items = self.items(topic, index, random)
        first = named.sequences.get((topic.number, index), 0) + 1
        messages = [
            Message(
                item.value or b"",
                key=item.key or b"",
                seq=first + number,
                producer=named.name,
                epoch=named.epoch,
            )
            for number, item in enumerate(items)
        ]
        frame = batch(messages, topic=topic.name, partition=index, acks="-1", idempotent=True)
        sent = self.send(topic, index, items, -1)
        named.pending = (sent, frame)
        name = f"produce {sent.number} of {named.name.decode()} epoch {named.epoch}, {first}"
        return name, self._retry(client, named, sent, frame)

    async def _retry(self, client: str, named: Named, sent: Sent, frame: bytes) -> None:
        was_absent, sent.absent = sent.absent, False
        error = await self._produce(client, sent, frame)
        place = (sent.topic.number, sent.index)
        if not error:
            named.pending = None
            named.sequences[place] = named.sequences.get(place, 0) + len(sent.items)
            if sent.loose:
                named.start_over()
            return
        stored = any(error.startswith(word) for word in STORAGE)
        sent.absent = was_absent and not sent.loose and not stored
        moved = sent.topic.being is not Being.ALIVE or sent.loose
        if moved or any(error.startswith(word) for word in _FORGOTTEN):
            named.start_over()

    # Consuming

    def consume(self, client: str, random: Random) -> Any:
        topic = self.topic(random)
        if topic is None:
            return None
        index = random.randrange(topic.partitions)
        committed = random.random() < 0.5
        name = f"consume {topic.label}-{index}, {'' if committed else 'un'}committed"
        return name, self._consume(client, topic, index, committed, random)

    async def _consume(
        self, client: str, topic: TopicLife, index: int, committed: bool, random: Random
    ) -> None:
        judge = self.world.judge
        model = topic.model(index)
        promised, floor_before = topic.required_end(index), model.floor
        opened = is_open(self.world, topic, index)
        floor = max(model.floor, model.floor_maybe if model.floor_maybe < ANYWHERE else 0)
        offset = random.choice(
            (floor, max(floor, promised), random.randint(floor, max(floor, promised)))
        )
        if random.random() < 0.2:
            await self._check_end(client, topic, index, promised)
        isolation = "read_committed" if committed else "read_uncommitted"
        frame = await self.ask(
            client,
            cursus_wire.command(
                f"CONSUME topic={topic.name} partition={index} offset={offset} member=m group=g "
                f"isolation={isolation} batch={random.choice((1, 3, 1000))} "
                f"wait_ms={random.choice((0, 0, 50, 500))}"
            ),
        )
        if topic.being is not Being.ALIVE or judge.current(topic.name) is not topic:
            return
        page = cursus_wire.page(frame)
        if isinstance(page, Answer):
            late = judge.may_start_behind(topic, index, offset)
            allowed = ("OFFSET_OUT_OF_RANGE",) if late else ()
            self.check_refusal(f"CONSUME at {offset}", page.code, *allowed)
            return
        reads = cursus_wire.reads(judge, page)
        end = reads[-1].offset + 1 if reads else offset
        if committed:
            judge.observe_committed(topic, index, reads, start=offset, end=end)
        else:
            self._observe(topic, index, reads, range(offset, end), floor_before)
        failed = self.world.files.faults.sync_failed or topic.compact or topic.unsure
        hidden = committed and opened
        if offset < promised and not reads and not failed and not hidden:
            self._check_all_hidden(topic, index, offset, promised)

    def _check_all_hidden(self, topic: TopicLife, index: int, offset: int, promised: int) -> None:
        """Nothing was read: only aborted records may be there."""
        for sent in topic.model(index).sents:
            if sent.offset is None or not sent.required or not is_committed(sent):
                continue
            if offset <= sent.offset < promised:
                self.world.violate(
                    "not readable",
                    f"offset {offset} of {topic.label}-{index} gives nothing through Cursus; up to "
                    f"{promised} was acknowledged before",
                )

    def push(self, client: str, random: Random) -> Any:
        """Have records pushed for a while."""
        topic = self.topic(random)
        if topic is None:
            return None
        index = random.randrange(topic.partitions)
        return f"have {topic.label}-{index} pushed", self._push(client, topic, index, random)

    async def _push(self, client: str, topic: TopicLife, index: int, random: Random) -> None:
        judge = self.world.judge
        model = topic.model(index)
        floor_before, promised = model.floor, topic.required_end(index)
        floor = max(model.floor, model.floor_maybe if model.floor_maybe < ANYWHERE else 0)
        offset = random.randint(floor, max(floor, promised))
        arrived: list[bytes] = []
        connection = self.world.connect("cursus")
        connection.tap = arrived.append
        connection.send_frame(
            cursus_wire.command(
                f"STREAM topic={topic.name} partition={index} group=pushed offset={offset} "
                "isolation=read_uncommitted"
            )
        )
        await self.world.wait(random.choice((1, 100, 2_000)))
        connection.close()
        if topic.being is not Being.ALIVE or judge.current(topic.name) is not topic:
            return
        found: list[Read] = []
        for frame in filter(None, arrived):
            page = cursus_wire.page(frame)
            if isinstance(page, Answer):
                late = judge.may_start_behind(topic, index, offset)
                allowed = ("OFFSET_OUT_OF_RANGE", "STREAM_CONTROL type=CLOSE reason=offset_out")
                code = page.code or page.text
                self.check_refusal(f"STREAM at {offset}", code, *(allowed if late else ()))
                break
            found += cursus_wire.reads(judge, page)
        end = found[-1].offset + 1 if found else offset
        self._observe(topic, index, found, range(offset, end), floor_before)

    def _observe(
        self, topic: TopicLife, index: int, reads: list[Read], read: range, floor: int
    ) -> None:
        """Check an uncommitted reading: Cursus leaves out what was aborted, and only that."""
        found = self.world.judge.observe(topic, index, reads, start=0, end=0, floor=floor)
        if topic.compact or topic.unsure:
            return
        for sent in topic.model(index).sents:
            if sent.offset is None or not sent.required or not is_committed(sent):
                continue
            for number in range(len(sent.items)):
                if sent.offset + number in read and sent.offset + number not in found:
                    raise Violation("lost", f"record {number} of {sent} is hidden by Cursus")

    async def _check_end(self, client: str, topic: TopicLife, index: int, promised: int) -> None:
        answer = await self.command(client, f"LIST_OFFSETS topic={topic.name} partition={index}")
        if topic.being is not Being.ALIVE or self.world.judge.current(topic.name) is not topic:
            return
        if answer.code:
            self.check_refusal("LIST_OFFSETS", answer.code)
            return
        durable = int(answer.text.rpartition("hwm=")[2])
        if durable < promised and not self.world.files.faults.sync_failed:
            self.world.violate(
                "not readable", f"{topic.label}-{index} ends at {durable}, not at {promised}"
            )

    # Committing

    def register(self, group: str, topic: TopicLife, index: int) -> Register:
        key = (group, topic.name, topic.number, index)
        return self.world.judge.register(key, f"offset of {group} in {topic.label}-{index}")

    def commit(self, client: str, random: Random) -> Any:
        topic = self.topic(random)
        if topic is None:
            return None
        index = random.randrange(topic.partitions)
        end = topic.required_end(index)
        if not end:
            return None
        offset = random.randint(1, end)
        return f"commit {offset} in {topic.label}-{index}", self._commit(
            client, topic, index, offset, random
        )

    async def _commit(
        self, client: str, topic: TopicLife, index: int, offset: int, random: Random
    ) -> None:
        group = f"group-{client}"
        moved_codes = ("offset_regression", "invalid_offset", *_MOVED)
        if random.random() < 0.5:
            text = f"COMMIT {topic.name} {group} {index} {offset}"
        else:
            member = await self.join(client, topic, group)
            if not member:
                return
            text = f"BATCH_COMMIT topic={topic.name} group={group} {member} P{index}:{offset}"
        register = self.register(group, topic, index)
        number = register.attempt(offset)
        answer = await self.command(client, text)
        if answer.code:
            moved = topic.being is not Being.ALIVE
            self.forget_member(group, topic)
            allowed = (*_FENCED, *(moved_codes if moved else moved_codes[:1]))
            self.check_refusal("COMMIT", answer.code, *allowed)
            return
        register.confirm(number)
        self.world.tell(f"{register.name} is {offset}")

    async def join(self, client: str, topic: TopicLife, group: str) -> str:
        """The parameters of a member of a group; empty if it cannot join."""
        found = self._members.get((group, topic.number))
        if found is not None:
            return found
        joined = await self.command(
            client, f"JOIN_GROUP topic={topic.name} group={group} member={client}"
        )
        if joined.code:
            moved = topic.being is not Being.ALIVE
            self.check_refusal("JOIN_GROUP", joined.code, *(_MOVED if moved else ()))
            return ""
        member = joined.text.partition("member=")[2].split()[0]
        found = f"member={member} generation={joined.number('generation')}"
        self._members[group, topic.number] = found
        return found

    def forget_member(self, group: str, topic: TopicLife) -> None:
        """Join again before the next commit."""
        self._members.pop((group, topic.number), None)

    def offsets(self, client: str, random: Random) -> Any:
        """Another client asks for a committed offset."""
        registers = self.world.judge.registers
        keys = [key for key in registers if isinstance(key, tuple) and key[0].startswith("group-")]
        if not keys:
            return None
        group, name, number, index = random.choice(keys)
        life = self.world.judge.current(name)
        if life is None or life.number != number or life.being is not Being.ALIVE:
            return None
        return f"committed offset of {group}", self._fetch_offset(client, group, life, index)

    async def _fetch_offset(self, client: str, group: str, life: TopicLife, index: int) -> None:
        register = self.register(group, life, index)
        since = register.certain
        answer = await self.command(
            client, f"FETCH_OFFSET topic={life.name} partition={index} group={group}"
        )
        if life.being is not Being.ALIVE or self.world.judge.current(life.name) is not life:
            return
        if answer.code:
            self.check_refusal("FETCH_OFFSET", answer.code, "group_not_found")
        if not answer.code:
            register.observe(answer.number("offset") or -1, since)
        elif answer.code.startswith("group_not_found"):
            register.observe(-1, since)

    # Topics

    def create(self, client: str, random: Random) -> Any:
        free = []
        for name in _NAMES:
            life = self.world.judge.current(name)
            if life is None or life.being is Being.DELETED:
                free.append(name)
        if not free:
            return None
        name = random.choice(free)
        return f"create {name}", self._create(client, name, random)

    async def _create(self, client: str, name: str, random: Random) -> None:
        judge = self.world.judge
        current = judge.current(name)
        if current is not None and current.being is not Being.DELETED:
            return  # another client was faster
        judge.loosen(name)
        partitions = random.choice((1, 1, 2))
        sourced = name.startswith(_SOURCED)
        life = judge.create_topic(name, partitions, sourced=sourced)
        text = f"CREATE topic={name} partitions={partitions}"
        answer = await self.command(client, text + " event_sourcing=true" * sourced)
        if answer.code:
            self.check_refusal(f"create {name}", answer.code)
            return
        life.being = Being.ALIVE
        self.streams.confirmed.add(life.number)
        self.world.tell(f"{name} is there")

    def delete(self, client: str, random: Random) -> Any:
        life = self.topic(random)
        if life is None:
            return None
        return f"delete {life.label}", self._delete(client, life)

    async def _delete(self, client: str, life: TopicLife) -> bool:
        if life.being is not Being.ALIVE:
            return False  # another client was faster
        self.world.judge.loosen(life.name)
        life.being, life.doomed = Being.DELETING, True
        answer = await self.command(client, f"DELETE topic={life.name}")
        if answer.code:
            self.check_refusal(f"delete {life.label}", answer.code)
            return False
        self.world.tell(f"{life.label} deleted")
        life.being = Being.DELETED
        return True

    def recreate(self, client: str, random: Random) -> Any:
        own = [life for life in self.world.judge.alive() if life.name in _NAMES]
        if not own:
            return None
        life = random.choice(own)
        return f"delete and create {life.label}", self._recreate(client, life, random)

    async def _recreate(self, client: str, life: TopicLife, random: Random) -> None:
        if await self._delete(client, life):
            await self._create(client, life.name, random)
