"""What must be known, made or left to another gateway before frames of BlipMQ can be served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Any, TypeAlias

from pentalog.broker.deliveries import OPEN_BYTES
from pentalog.broker.port import TopicSpec
from pentalog.kernels import NumberRun, PublishRun
from pentalog.model.errors import BrokerError, TopicExists, TopicNotFound
from pentalog.model.later import Later
from pentalog.model.types import Appended
from pentalog.protocols.blipmq import messages, rights
from pentalog.protocols.blipmq.frames import Frame, FrameType
from pentalog.protocols.blipmq.messages import Nack
from pentalog.protocols.blipmq.records import TOPIC_SETTINGS
from pentalog.session import Context, Replies

Item: TypeAlias = PublishRun | NumberRun | Frame


class Next(Enum):
    """What is to be done with a run or a frame."""

    SERVE = auto()
    AGAIN = auto()
    """It comes again, when something is known that is not known yet."""
    FORWARD = auto()
    """Another gateway keeps the subscriptions."""


class _Stage(Enum):
    TOPIC = auto()
    MADE = auto()
    MARKS = auto()


class Asking:
    """What one connection has asked for; its frames wait meanwhile."""

    def __init__(self, context: Context, replies: Replies) -> None:
        self._broker = context.broker
        self._access = context.access
        self._create = context.config.auto_create_topics
        self._replies = replies
        self._asked: Sequence[Later[None]] = ()
        self._stage: _Stage | None = None

    def next(self, item: Item) -> Next:
        """Raises what stands against knowing what it needs."""
        stage, self._stage = self._stage, None
        asked, self._asked = self._asked, ()
        for later in asked:
            try:
                later.check()
            except TopicExists:
                stage = None  # another gateway was faster: look again
        if isinstance(item, PublishRun):
            return self._topic(_name(item.topic), stage)
        if isinstance(item, Frame):
            return self._subscribe(item, stage) if item.kind is FrameType.SUBSCRIBE else Next.SERVE
        if not self._broker.subscriptions.here:
            return Next.FORWARD
        if item.kind == FrameType.POLL and stage is not _Stage.MARKS:
            return self._poll(item)
        return Next.SERVE

    def _topic(self, name: str | None, stage: _Stage | None) -> Next:
        """See to it that a topic is known, and made if it may be."""
        if name is None or stage is _Stage.MADE:
            return Next.SERVE
        if stage is None:
            known = self._broker.knowledge.topic(name)
            if not known.ready:
                return self._ask(_Stage.TOPIC, [known])
        try:
            self._broker.topics.get(name)
            return Next.SERVE
        except TopicNotFound:
            if not self._create:
                return Next.SERVE
        try:
            rights.check(self._access, FrameType.PUBLISH, name)
            rights.check_creation(self._access, name)
            spec = TopicSpec(name=name, settings=TOPIC_SETTINGS)
            making = self._broker.topics.prepare(spec)
        except BrokerError:
            return Next.SERVE  # and is refused for that
        return self._ask(_Stage.MADE, [making])

    def _subscribe(self, frame: Frame, stage: _Stage | None) -> Next:
        try:
            asked = messages.read_subscribe(frame.payload)
            rights.check(self._access, frame.kind, asked.topic)
        except (Nack, BrokerError):
            return Next.SERVE  # and is refused for that
        if not self._broker.subscriptions.here:
            return Next.FORWARD
        if stage is _Stage.MARKS:
            return Next.SERVE
        if self._topic(asked.topic, stage) is Next.AGAIN:
            return Next.AGAIN
        return self._ask(_Stage.MARKS, [self._broker.knowledge.partitions(asked.topic)])

    def _poll(self, run: NumberRun) -> Next:
        subscription = self._broker.subscriptions.get(run.subscription)
        if subscription is None or not rights.owns(self._access, subscription):
            return Next.SERVE
        knowledge = self._broker.knowledge
        return self._ask(
            _Stage.MARKS,
            [
                knowledge.records(at, offset, bytes_max=OPEN_BYTES)
                for at, offset in subscription.unread().items()
            ],
        )

    def must_wait(self, writes: Iterable[Later[Appended]]) -> bool:
        """Are these still on their way?  Then whoever comes behind them is to come again."""
        waiting = [later for later in writes if not later.ready]
        self._hold(waiting)
        return bool(waiting)

    def _ask(self, stage: _Stage, asked: Sequence[Later[None]]) -> Next:
        waiting = [later for later in asked if not later.ready]
        if not waiting:
            return Next.SERVE
        self._stage, self._asked = stage, asked
        self._hold(waiting)
        return Next.AGAIN

    def _hold(self, waiting: Sequence[Later[Any]]) -> None:
        """Nothing is served until all of them are there."""
        left = len(waiting)
        if not left:
            return
        release = self._replies.hold()

        def arrived(_: Later[Any]) -> None:
            nonlocal left
            left -= 1
            if not left:
                release()

        for later in waiting:
            later.then(arrived)


def _name(topic: bytes) -> str | None:
    try:
        return str(topic, "utf-8")
    except UnicodeDecodeError:
        return None
