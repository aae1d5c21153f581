"""What a refusal may cost the other clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rustlog_world import RustLogConnection, RustLogWorld, create

from pentalog.broker.security import Access, Kind
from pentalog.protocols.rustlog import rights


@pytest.mark.local_engine("replaces a part of the local engine")
def test_a_refusal_asks_about_few_of_many_topics(
    world: RustLogWorld, peer: RustLogConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.ask(create("demo", 3))
    (topic,) = world.disk.topics.all()
    many = tuple(replace(topic, name=f"t{number}") for number in range(5_000))
    asked: list[str] = []

    def sees(_: Access, kind: Kind, name: str) -> bool:
        asked.append(name)
        return name == "demo"

    monkeypatch.setattr(world.disk.topics, "all", lambda: many)
    monkeypatch.setattr(Access, "sees", sees)
    monkeypatch.setattr(rights, "check", lambda *_: None)
    peer.session._line.context.access.guarded = True
    said = peer.say(type="Fetch", topic="nope", partition=0, offset=0, max_bytes=100)
    assert (said["code"], said["details"]) == (404, {"available_topics": []})
    assert 0 < len(asked) <= 2_000
    asked.clear()
    said = peer.say(type="Fetch", topic="demo", partition=9, offset=0, max_bytes=100)
    assert (said["code"], said["details"]) == (405, {"partition_count": 3})
    assert asked == ["demo"]
