"""What a seed means: the settings of a world, and the steps of each life of its broker.

Every step has a seed of its own, so leaving out one step changes the others as little as
possible.  That is what makes a failing plan shrinkable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, NamedTuple


class Step(NamedTuple):
    number: int
    """Counts through the whole plan; shrunk plans keep the numbers."""
    kind: str
    seed: int


class Life(NamedTuple):
    number: int
    steps: list[Step]
    ending: str
    """kill, evict, cut, stop, or stop+cut."""
    recovery: list[Step]
    """Crashes while the next life opens its files; `kind` is kill or cut."""
    seed: int


@dataclass(frozen=True)
class Settings:
    flush_interval_ms: int
    segment_bytes: int
    index_interval_bytes: int
    journal_bytes: int
    journal_batch_bytes_max: int
    journal_pays_after: int
    slow: float
    pauses: float
    cold: float
    hostile: float
    """Share of values that imitate the broker's own files."""
    small: bool
    """Values are small: more of them fit into the journal and into a segment."""
    compact: float
    """Share of topics that are compacted."""
    patience: float
    """Share of steps after which the world waits until nothing is under way."""
    aging: float
    """Share of topics whose records are deleted by their age."""
    short_reads: bool
    """The broker reads little at once: its reads end in the middle of segments."""
    lanes: bool
    """Batches of any size are opened on lanes, and some topics recompress them."""
    pipelines: bool
    """Some clients send several requests in one write."""


@dataclass(frozen=True)
class Plan:
    seed: int
    settings: Settings
    lives: list[Life]

    @property
    def steps(self) -> list[Step]:
        return [step for life in self.lives for step in (*life.steps, *life.recovery)]

    def keep(self, numbers: Collection[int]) -> Plan:
        """The same plan with some of its steps only; lives without steps stay as restarts."""
        kept = set(numbers)
        lives = [
            life._replace(
                steps=[step for step in life.steps if step.number in kept],
                recovery=[step for step in life.recovery if step.number in kept],
            )
            for life in self.lives
        ]
        return Plan(self.seed, self.settings, lives)

    def without_life(self, number: int) -> Plan:
        """`number` counts the lives of this plan."""
        return self.keep_lives(
            [life.number for index, life in enumerate(self.lives) if index != number]
        )

    def keep_lives(self, numbers: Collection[int]) -> Plan:
        lives = [life for life in self.lives if life.number in numbers]
        return Plan(self.seed, self.settings, lives)

    @property
    def arguments(self) -> str:
        """Of the command that repeats it."""
        numbers = format_numbers([step.number for step in self.steps])
        lives = format_numbers([life.number for life in self.lives])
        return f"--seed {self.seed} --lives {lives} --keep {numbers}"


def format_numbers(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: 1-4,9.  A dash if there are none."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in ranges) or "-"


def parse_numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(",") if text != "-" else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


_WEIGHTS: Final = {
    "produce": 30,
    "idempotent": 14,
    "transaction": 12,
    "fetch": 12,
    "commit": 6,
    "create": 5,
    "delete": 3,
    "recreate": 2,
    "grow": 1,
    "alter": 2,
    "trim": 4,
    "sleep": 6,
    "full": 3,
    "error": 2,
    "relief": 6,
    "jump": 3,
    "crash": 3,
}
"""How often each kind of step comes; a seed changes some of them."""
_PROTOCOLS: Final[Mapping[str, Mapping[str, int]]] = {
    "derived": {"derived create": 3, "derived follow": 8},
    "fluvio": {
        "fluvio produce": 12,
        "fluvio fetch": 6,
        "fluvio stream": 6,
        "fluvio commit": 4,
        "fluvio forget": 2,
        "fluvio end": 3,
        "fluvio create": 2,
        "fluvio delete": 1,
        "fluvio recreate": 1,
        "fluvio grow": 1,
    },
    "rustlog": {
        "rustlog produce": 12,
        "rustlog fetch": 8,
        "rustlog commit": 4,
        "rustlog wide commit": 1,
        "rustlog end": 4,
        "rustlog create": 3,
        "rustlog recreate": 1,
    },
    "blipmq": {
        "blip_publish": 12,
        "blip_subscribe": 5,
        "blip_poll": 12,
        "blip_create": 2,
    },
    "cursus": {
        "cursus_produce": 8,
        "cursus_idempotent": 4,
        "cursus_consume": 5,
        "cursus_push": 2,
        "cursus_commit": 4,
        "cursus_offsets": 2,
        "cursus_create": 5,
        "cursus_delete": 1,
        "cursus_recreate": 3,
        "cursus_append": 14,
        "cursus_stream": 5,
        "cursus_snapshot": 6,
        "cursus_transact": 14,
    },
}
"""The same for protocols beside Kafka's; a seed uses some of them."""
_EARLY: Final = (
    "cursus_create",
    "cursus_create",
    "blip_subscribe",
    "blip_subscribe",
    "derived create",
)
"""Steps of the first life that most steps of these protocols need."""
_THEMES: Final[Sequence[Mapping[str, int]]] = (
    {},
    {},
    {"produce": 4, "idempotent": 4},
    {"recreate": 8, "create": 3, "full": 4, "relief": 3, "produce": 2},
    {"transaction": 5, "fetch": 2, "commit": 2},
    {"full": 4, "relief": 4, "error": 3},
    {"crash": 4},
    {"sleep": 4, "produce": 2, "jump": 0},
    {"sleep": 2, "produce": 2, "jump": 0, "trim": 0},
)
"""What a seed is about: some combinations are rare without."""
_PIPELINES: Final = ("rustlog pipeline", "fluvio pipeline", "blip_pipeline", "cursus_pipeline")
"""Beside Kafka's; a seed whose clients pipeline uses one of them."""
_SLOW: Final = (0.0, 0.1, 0.5, 0.7)
"""Share of slow work where clients pipeline and batches are opened on lanes."""
_PIPELINED: Final = 6
"""There is one such step for so many others."""
_ENDINGS: Final = ("kill", "kill", "cut", "cut", "cut", "stop", "stop+cut", "evict")
_AGING_ENDINGS: Final = ("kill", "kill", "cut", "stop", "stop", "stop")
"""What recovery wrote of old segments is read after a clean stop."""
_UNSYNCED_ENDINGS: Final = ("kill", "cut", "cut", "cut", "cut", "stop", "stop+cut", "evict")


def plan(seed: int, *, lives: int | None = None, length: int | None = None) -> Plan:
    random = Random(f"plan {seed}")
    settings = _settings(random, seed)
    weights = dict(_WEIGHTS)
    for protocol in random.sample(sorted(_PROTOCOLS), random.choice((0, 1, 2, 2, 3))):
        weights |= _PROTOCOLS[protocol]
    for kind in random.sample(sorted(weights), 5):
        weights[kind] *= random.choice((0, 0, 3, 5))
    theme, endings = random.choice(_THEMES), _ENDINGS
    for kind, factor in theme.items():
        weights[kind] *= factor
    if theme.get("produce", 0) > 2:
        # So that the journal fills up.
        settings = replace(settings, small=True, journal_batch_bytes_max=4 << 10)
    weights["produce"] = max(weights["produce"], 5)
    if theme.get("recreate"):
        # So that a deleted topic leaves more than the file that the next one begins with.
        settings = replace(settings, small=False, segment_bytes=1024)
    if theme.get("trim") == 0:
        # So that segments hold old records, a few index entries, and then a young one.
        settings = replace(settings, aging=0.9, compact=0.0, segment_bytes=16384)
        settings = replace(settings, index_interval_bytes=4096)
        endings = _AGING_ENDINGS
    elif theme.get("sleep"):
        # So that there is something to compact, and time for it.
        settings = replace(settings, small=True, segment_bytes=1024, compact=0.9)
        # Kafka's clients alone create topics that are compacted, and write tombstones.
        weights |= {kind: 0 for kind in weights if kind not in _WEIGHTS}
    if theme.get("crash"):
        # So that torn batches hold whole ones.
        settings = replace(settings, small=False, hostile=0.7, segment_bytes=16384)
    if not settings.flush_interval_ms:
        # So that a cut takes what producers were told, and leaves what they wrote.
        weights["transaction"] *= 3
        endings = _UNSYNCED_ENDINGS
    pipelined = Random(f"pipelined {seed}").choice(_PIPELINES)
    if settings.lanes and settings.pipelines:
        # So that something overtakes what is on a lane.
        settings = replace(settings, slow=Random(f"slow {seed}").choice(_SLOW))
    number = 0
    planned: list[Life] = []
    for _ in range(lives or random.randint(3, 6)):
        steps: list[Step] = []
        # Topics first, in the first life: most steps need one.
        first = ["create", "create", *(kind for kind in _EARLY if kind in weights)]
        kinds = first if not planned else []
        count = length or random.choice((4, 10, 20, 30, 30, 60))
        if theme.get("produce", 0) > 2 and not length:
            count += 30
        kinds += random.choices(list(weights), list(weights.values()), k=count)
        seeded = [(kind, random.getrandbits(32)) for kind in kinds]
        if settings.pipelines:
            # Drawn apart as well.
            apart = Random(f"pipelines {seed} {len(planned)}")
            for _ in range(1 + count // _PIPELINED):
                place = apart.randrange(len(kinds) - count, len(seeded) + 1)
                entry = (apart.choice(("pipeline", pipelined)), apart.getrandbits(32))
                seeded.insert(place, entry)
        for kind, step_seed in seeded:
            steps.append(Step(number, kind, step_seed))
            number += 1
        recovery: list[Step] = []
        while random.random() < 0.25:
            kind = random.choice(("kill", "cut"))
            recovery.append(Step(number, kind, random.getrandbits(32)))
            number += 1
        ending = random.choice(endings)
        planned.append(Life(len(planned), steps, ending, recovery, random.getrandbits(32)))
    return Plan(seed, settings, planned)


def _settings(random: Random, seed: int) -> Settings:
    return Settings(
        flush_interval_ms=random.choice((10, 100, 100, 1000, 0)),
        segment_bytes=random.choice((1024, 2048, 4096, 8192, 16384)),
        index_interval_bytes=random.choice((0, 100, 1000, 4096)),
        journal_bytes=random.choice((20 << 10, 20 << 10, 24 << 10, 64 << 10)),
        journal_batch_bytes_max=random.choice((1 << 10, 4 << 10, 256 << 10)),
        journal_pays_after=random.choice((0, 1, 4, 1000)),
        slow=random.choice((0.0, 0.0, 0.1, 0.5)),
        pauses=random.choice((0.0, 0.0, 0.0, 0.2)),
        cold=random.choice((0.0, 0.0, 0.3)),
        hostile=random.choice((0.0, 0.1, 0.5)),
        small=random.random() < 0.4,
        compact=0.25,
        patience=random.choice((0.1, 0.5, 0.9)),
        aging=0.1,
        short_reads=random.random() < 0.4,
        # Drawn apart: what a seed meant before is what it means now.
        lanes=(lanes := Random(f"lanes {seed}").random() < 0.3),
        pipelines=Random(f"pipelines {seed}").random() < (0.8 if lanes else 0.2),
    )
