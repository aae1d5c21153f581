"""What is expected of batches that one connection sends without waiting for answers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.judge import Sent, TopicLife


def chain(sents: Sequence[Sent]) -> None:
    """Expect batches of one connection in its order, in every partition."""
    for topic in dict.fromkeys(sent.topic for sent in sents):
        topic.chains.append([sent for sent in sents if sent.topic is topic])


def check_chains(topic: TopicLife, index: int) -> None:
    """Compare the order with where a complete reading found the batches."""
    for sents in topic.chains:
        placed = [s for s in sents if s.index == index and s.offset is not None and not s.loose]
        for before, after in itertools.pairwise(placed):
            if before.next_offset > (after.offset or 0):
                raise Violation("overtaken", f"{after} was sent after {before}")


def refuse(sent: Sent) -> None:
    """The broker said that it has not written a batch: it must not turn up."""
    if not sent.loose:
        sent.absent = True


def keep(sent: Sent) -> None:
    """Expect a batch sent without acks: the broker accepted it before a clean stop."""
    if not (sent.loose or sent.absent or sent.acked):
        sent.acked, sent.acks = True, -1


def imply(earlier: Sent, later: Sent) -> None:
    """Expect a batch sent without acks: a later one of its connection is acknowledged.

    Both are in one partition, so the earlier one is as safe as the later one.
    """
    if not (earlier.loose or earlier.absent or earlier.acked):
        earlier.acked, earlier.acks = True, later.acks
