"""Dead letters on their way to silver: two tables change, so what is to happen is written down.

The files of both tables come first and are listed in a plan beside the checkpoint.  Whoever finds
one after a crash, be it the next replay, run or backfill, finishes it before doing anything else:
letters that came after it was made would be lost with those it takes out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pentalog.model.types import Partition
from pentalog.tables import checkpoint, commit, steps
from pentalog.tables.layers import Written
from pentalog.tables.pipeline import Pipeline
from pentalog.tables.sinks import File, Sink, SinkRefused, State, Step, open_table
from pentalog.tables.sinks.state import state_as_json

QUERY: Final = "replay-dlq"
_LAYERS: Final = ("silver", "dead_letters")


def number_of(letters: State) -> int:
    """What the next replay is counted as."""
    return letters.batches.get(QUERY, -1) + 1


def plan(pipeline: Pipeline, letters: State, written: Written) -> dict[str, Any]:
    """Write down what is to happen; the plan."""
    made = {
        "number": number_of(letters),
        "letters": state_as_json(letters)["covered"],
        "files": {
            layer: [{**one._asdict(), "partition": dict(one.partition)} for one in files]
            for layer, files in written.files.items()
        },
        "dropped_at": [[at.topic, at.index, count] for at, count in written.dropped.items()],
        "moved": sum(one.rows for one in written.files.get("silver", [])),
        "left": sum(one.rows for one in written.files.get("dead_letters", [])),
        "dropped": sum(written.dropped.values()),
    }
    checkpoint.write_json(_file(pipeline), made)
    return made


def unfinished(pipeline: Pipeline) -> dict[str, Any] | None:
    """The plan of a replay that was cut short."""
    found = checkpoint.read_json(_file(pipeline))
    if found is None:
        return None
    number = number_of(open_table(pipeline.table("dead_letters")).state())
    return found if found["number"] == number else None


def go_on(pipeline: Pipeline) -> None:
    """Finish what was cut short, if anything was."""
    found = unfinished(pipeline)
    if found is not None:
        finish(pipeline, found)


def finish(pipeline: Pipeline, plan: Mapping[str, Any]) -> None:
    sinks = {layer: open_table(pipeline.table(layer)) for layer in _LAYERS}
    _refuse_newer(pipeline, plan, sinks["dead_letters"].state())
    dropped: Counter[Partition] = Counter()
    for topic, index, count in plan["dropped_at"]:
        dropped[Partition(topic, index)] += count
    for layer, sink in sinks.items():
        _finish(pipeline, plan, sink, dropped if layer == "silver" else {})
        steps.reached(f"after-commit:{layer}")
    forget(pipeline)


def forget(pipeline: Pipeline) -> None:
    _file(pipeline).unlink(missing_ok=True)


def refuse_if_unfinished(pipeline: Pipeline) -> None:
    """What the plan lists is in no table yet and would be taken for a crash's leavings."""
    if unfinished(pipeline) is not None:
        raise SinkRefused(
            f"pipeline {pipeline.name}: a replay of dead letters was cut short and needs its files;"
            f" finish it first: pentalog table replay-dlq FILE {pipeline.name}"
        )


def _finish(
    pipeline: Pipeline, plan: Mapping[str, Any], sink: Sink, dropped: Mapping[Partition, int]
) -> None:
    number, letters = int(plan["number"]), sink.at.layer == "dead_letters"
    files = [File(**one) for one in plan["files"].get(sink.at.layer, [])]

    def step(state: State) -> Step | None:
        if state.batches.get(QUERY, -1) >= number:
            return None
        if letters:
            _refuse_newer(pipeline, plan, state)
        total = {at: state.dropped.get(at, 0) + count for at, count in dropped.items()}
        return Step(QUERY, number, {}, {}, total, QUERY)

    def once() -> None:
        sink.announce(QUERY, ())
        # Before the state, which is to be the last that is looked at.
        schema = sink.schema()
        assert schema is not None, "planned from it"
        found = step(sink.state())
        if found is None:
            return
        if letters:
            sink.replace(files, found, schema)
        elif sink.at.key:
            sink.merge(files, found)
        else:
            sink.append(files, found)

    commit.insisting(sink, once)
    # But for those of a merge they are the table's, also if another process has committed them.
    if sink.at.key:
        sink.discard(files)


def _refuse_newer(pipeline: Pipeline, plan: Mapping[str, Any], letters: State) -> None:
    done = letters.batches.get(QUERY, -1) >= int(plan["number"])
    if not done and state_as_json(letters)["covered"] != plan["letters"]:
        raise SinkRefused(
            f"pipeline {pipeline.name}: other records came into its tables while dead letters were"
            f" tried again; run: pentalog table rebuild FILE {pipeline.name}"
        )


def _file(pipeline: Pipeline) -> Path:
    return Path(pipeline.checkpoint) / f"{QUERY}.json"
