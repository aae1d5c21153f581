"""What commands print, word for word, for people and for programs.

Each session runs on a broker of its own and is compared with a file in `snapshots`.
`PENTALOG_RENEW_SNAPSHOTS=1 pytest tests/cli/test_cli_snapshots.py` writes the files anew: look at
what changed before you keep it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_cli_failures import COMMANDS

import pentalog
from pentalog.cli import output, torment, torture

Run = Callable[..., Any]
SNAPSHOTS = Path(__file__).with_name("snapshots")
RENEW = "PENTALOG_RENEW_SNAPSHOTS"
ORDERS = b"a:tea\nb:milk\na:sugar\n"
EVENTS = (
    b'{"key": "k1", "value": {"user": {"id": 7}, "items": [{"name": "tea"}]}, "timestamp": '
    b'1700000000000, "headers": {"from": "web"}}\n'
    b'{"key": "k2", "value": "plain text", "timestamp": 1700000060000}\n'
    b'{"key": null, "value_base64": "/wD+", "timestamp": 1700000120000}\n'
)
TABLE = "(on a terminal) "

SESSIONS: dict[str, list[str | tuple[str, bytes]]] = {
    "topics": [
        "topic create orders --partitions 2 --set retention.ms=3600000",
        "topic create returns --json",
        "topic list",
        "topic list --json",
        TABLE + "topic list",
        "topic describe orders",
        "topic describe orders --json",
        "topic alter orders --partitions 3 --unset retention.ms --set cleanup.policy=compact",
        "topic alter orders --set cleanup.policy=delete --json",
        "topic alter orders",
        "topic create orders",
        "topic create a/b",
        "topic delete returns --json",
        "topic delete orders",
        "topic delete orders",
    ],
    "records": [
        "topic create events --set retention.ms=-1",
        ("produce events --json", EVENTS),
        "consume events",
        "consume events --json",
        "consume events --base64 --json --count 1",
        "consume events --format '%p %o %k=%v %h %T\\n'",
        "consume events --format raw --count 2",
        "consume events --format hex",
        "consume events --grep 'plain|web'",
        "consume events --where user.id=7 --json",
        "consume events --where 'items[0].name=\"tea\"' --format '%o\\n'",
        "consume events --key k2",
        "consume events --header from=web --format '%o\\n'",
        "consume events --since 2023-11-14T22:14:00+00:00 --until 1700000100000",
        "consume events --from 1 --to 2",
        "consume absent",
        "consume events --partition 7",
        "consume events --since yesterday",
        "consume events --format %x",
        ("produce events --json", b'{"valu": 1}\n'),
        ("produce events --key-separator :", b"no separator\n"),
        ("produce events --partition 9", b"x\n"),
        "produce events nowhere.txt",
    ],
    "groups": [
        "topic create orders --partitions 2",
        ("produce orders --partition 0", b"1\n2\n3\n4\n5\n"),
        "group list",
        "group describe billing",
        "group seek billing --topic orders --to latest",
        "group list",
        "group list --json",
        "group seek billing --topic orders --partition 0 --shift -2",
        "group describe billing",
        "group describe billing --json",
        TABLE + "group describe billing",
        "group seek billing --to-time 1h --dry-run",
        "group seek billing --to 1 --partition 0 --json",
        "group seek billing --to 77 --partition 0",
        "group seek billing --partition 9 --to latest",
        "group seek billing --to-time soon",
        "group seek nobody --shift 1",
        "group seek billing",
        "group delete billing",
        "group delete billing",
        "group seek billing --topic orders --to latest --json",
        "group delete billing --json",
    ],
    "profiles": [
        "profile list",
        "profile add prod --server kafka.example.org:9092 --user ops --tls",
        "profile add here --server 127.0.0.1:1 --http 127.0.0.1:2 --json",
        "profile list",
        "profile list --json",
        "--profile here topic list",
        "--profile here inspect",
        "--profile absent topic list",
        "profile add bad --server nowhere",
        "profile add bad --server h:1 --mechanism MAGIC",
        "profile remove prod",
        "profile remove prod --json",
    ],
    "files": [
        "topic create events --set retention.ms=-1",
        ("produce events --json", EVENTS),
        "dump DATA/events-0",
        "dump DATA/events-0 --records --hex",
        "dump DATA --records --json",
        "dump DATA/absent",
        "backup BACKUP/one --data DATA",
        "backup BACKUP/two --data DATA --base BACKUP/one --json",
        "backup BACKUP/one --check",
        "backup BACKUP/one --data DATA",
        "backup BACKUP/three --data BACKUP",
        "restore BACKUP/one --data BACKUP/data",
        "restore BACKUP/one --data BACKUP/data",
        "restore BACKUP/one --data BACKUP/other --json",
        "restore BACKUP --data BACKUP/another",
    ],
    "doors": [
        "topic create orders",
        ("rustlog produce orders --json", b"one\ntwo\n"),
        ("rustlog produce orders", b"three\n"),
        "rustlog fetch orders",
        "rustlog fetch orders --offset 2 --json",
        "rustlog topics",
        "rustlog topics --json",
        ("blipmq publish news", b"hello\n"),
        ("blipmq publish news --json", b"hello\n"),
        ("blipmq publish news --key wrong", b"hello\n"),
    ],
    "pipelines": [
        "table init BACKUP/p.toml --topic orders",
        "table init BACKUP/p.toml",
        "table init BACKUP/no/p.toml",
        "table init BACKUP/q.toml --server nowhere",
        "table init BACKUP/down.toml --topic orders --server 127.0.0.1:1 --json",
        "table list BACKUP/p.toml",
        "table list BACKUP/p.toml --json",
        "table list BACKUP/absent.toml",
        "table status BACKUP/p.toml",
        "table status BACKUP/p.toml --json",
        "table pause BACKUP/p.toml",
        "table list BACKUP/p.toml",
        "table resume BACKUP/p.toml --json",
        "table pause BACKUP/p.toml --json",
        "table resume BACKUP/p.toml",
        "table compact BACKUP/p.toml",
        "table compact BACKUP/p.toml --json",
        "table vacuum BACKUP/p.toml",
        "table vacuum BACKUP/p.toml --dry-run --json",
        "table drop BACKUP/p.toml orders --yes",
        "table drop BACKUP/p.toml orders --yes --json",
        "table status BACKUP/down.toml",
        "table run BACKUP/down.toml --once",
        "table run BACKUP/p.toml returns",
        "table backfill BACKUP/down.toml orders --from earliest",
        "table vacuum BACKUP/p.toml --older-than soon",
        "table drop BACKUP/p.toml orders",
        "verify BACKUP/down.toml",
        "verify BACKUP/absent.toml --json",
        "sql 'select * from topic.orders' --server 127.0.0.1:1",
        "sql 'select 1' --config BACKUP/absent.toml",
        "sql 'select 1' --data BACKUP/absent",
        "sql 'select 1' --output BACKUP/no/rows.csv",
        "sql 'select 1' --format xml",
    ],
    "rights": [
        "user add alice --password secret",
        "user add bob --password secret --json",
        "user add alice --password again",
        "user list",
        "user list --json",
        TABLE + "user list",
        "user passwd alice --password another",
        "user passwd alice --password another --json",
        "user passwd carol --password x",
        "user delete bob",
        "user delete alice --json",
        "user delete alice",
        "acl add --principal User:alice --operation read,write --topic orders",
        "acl add --principal User:bob --operation all --topic o- --prefixed --deny --json",
        "acl list",
        "acl list --principal User:alice --json",
        TABLE + "acl list",
        "acl add --principal alice --operation read --topic t",
        "acl add --principal User:alice --operation sing --topic t",
        "acl add --topic t",
        "acl remove",
        "acl remove --principal User:alice",
        "acl remove --all --json",
        "acl remove --all",
        "quota set --user alice --write 1000000 --read 5e6",
        "quota set --client c --work 50 --json",
        "quota set --user alice",
        "quota set --write 1",
        "quota list",
        "quota list --json",
        "quota remove --user alice",
        "quota remove --client c --json",
        "quota remove --user alice",
        "token create --for soon",
        "token list",
        "token list --json",
    ],
    "settings": [
        "config --node-id 7 --listen kafka=127.0.0.1:0",
        "config --node-id 7 --listen kafka=127.0.0.1:0 --json",
        TABLE + "config --node-id x",
        "config --config nowhere.toml",
    ],
    "doctor": [
        "doctor --data BACKUP/new --listen kafka=127.0.0.1:0",
        "doctor --data BACKUP/new --listen kafka=127.0.0.1:0 --json",
        "doctor --data BACKUP/new --listen kafka=127.0.0.1:0 --bundle BACKUP/b.zip --log absent",
    ],
    "connections": [
        "inspect",
        "inspect --door kafka",
        "inspect 99",
        "inspect 0 --count 0",
    ],
    "connections-json": ["inspect --json"],
    "bench": [
        "bench kafka --records 2000 --batch 500 --json",
        "bench kafka --records 2000 --batch 500 --produce",
        TABLE + "bench kafka --records 2000 --batch 500 --consume",
        "bench pigeon",
        "bench kafka --records 0",
        "bench kafka --server 127.0.0.1:1",
    ],
}
NUMBERED = {"bench", "connections", "connections-json", "doctor"}
"""Sessions whose figures differ from run to run."""


WITH: dict[str, dict[str, str]] = {"rights": {"super_users": "User:ANONYMOUS"}}
"""Settings of the broker of a session."""
ELSEWHERE: dict[tuple[str, ...], str] = {
    ("start",): "test_cli_start.py",
    ("torture",): "test_the_report_of_torture",
    ("user", "key"): "tests/security/test_cli_offline.py: it is made by chance",
    ("rustlog", "metrics"): "test_cli_doors.py: its figures are of the moment",
    ("blipmq", "listen"): "test_cli_doors.py: it goes on until it is told to stop",
    (
        "token",
        "create",
    ): "tests/security/test_cli_online.py: it needs a login, and is made by chance",
    ("token", "renew"): "tests/security/test_cli_online.py",
    ("token", "expire"): "tests/security/test_cli_online.py",
    ("move",): "tests/cluster and its own tests: it needs a second cluster",
    ("table", "run"): "tests/tables: it needs Spark",
    ("table", "backfill"): "tests/tables: it needs Spark",
    ("table", "rebuild"): "tests/tables: it needs Spark",
    ("table", "replay-dlq"): "tests/tables: it needs Spark",
    ("sql",): "tests/tables/test_sql.py: it needs Spark",
    ("verify",): "tests/tables: it needs Spark",
}
"""Commands that are not pinned here in both ways, and where they are tried."""


def test_every_command_is_pinned_for_people_and_for_programs() -> None:
    lines = [
        one[0] if isinstance(one, tuple) else one for steps in SESSIONS.values() for one in steps
    ]
    words = [tuple(shlex.split(line.removeprefix(TABLE))) for line in lines]
    for path in COMMANDS.keys() - ELSEWHERE.keys():
        ways = {"--json" in one for one in words if one[: len(path)] == path}
        assert ways == {True, False}, path


@pytest.fixture
def fresh(
    request: pytest.FixtureRequest, tmp_path: Path, settings: dict[str, str]
) -> Iterator[pentalog.Broker]:
    """A broker that nobody else has used."""
    given = WITH.get(request.node.callspec.params["name"], {})
    with pentalog.Broker(tmp_path / "data", **given) as broker:
        settings |= {
            "PENTALOG_SERVER": broker.address("kafka"),
            "PENTALOG_RUSTLOG": broker.address("rustlog"),
            "PENTALOG_BLIPMQ": broker.address("blipmq"),
            "PENTALOG_HTTP": broker.address("http"),
        }
        yield broker


@pytest.mark.parametrize("name", SESSIONS)
def test_sessions_read_as_they_did(
    fresh: pentalog.Broker,
    settings: dict[str, str],
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    places = {"DATA": str(fresh.data), "BACKUP": str(tmp_path / "backups"), "HERE": str(here)}
    (tmp_path / "backups").mkdir()
    parts: list[str] = []
    for step in SESSIONS[name]:
        line, stdin = step if isinstance(step, tuple) else (step, b"")
        monkeypatch.setattr(output, "on_terminal", lambda line=line: line.startswith(TABLE))
        arguments = shlex.split(line.removeprefix(TABLE))
        filled = [re.sub("DATA|BACKUP", lambda word: places[word[0]], one) for one in arguments]
        done = run(*filled, stdin=stdin, code=None)
        parts.append(f"$ pentalog {line}\n{_shown(done)}")
    text = _without_chance("\n".join(parts), places, settings, numbers=name in NUMBERED)
    kept = SNAPSHOTS / f"{name}.txt"
    if os.environ.get(RENEW):
        kept.write_text(text)
    assert text == kept.read_text(), f"if this is meant: {RENEW}=1 pytest {__file__}"


def _shown(done: Any) -> str:
    out = done.stdout.decode("utf-8", "backslashreplace").replace("\0", "\\0")
    out += "" if not out or out.endswith("\n") else "\\\n"
    out += "".join(f"! {line}\n" for line in done.said.splitlines())
    return out + (f"exit {done.returncode}\n" if done.returncode else "")


def _without_chance(
    text: str, places: dict[str, str], settings: dict[str, str], *, numbers: bool
) -> str:
    """The same for every run: no ports, no times, no names made up."""
    for word, place in sorted(places.items(), key=lambda item: -len(item[1])):
        text = text.replace(place, word)
    for name, value in settings.items():
        if re.fullmatch(r"PENTALOG_(SERVER|HTTP|RUSTLOG|BLIPMQ)", name):
            text = text.replace(value, "HOST:PORT")
    text = text.replace(settings["XDG_CONFIG_HOME"], "CONFIG")
    text = re.sub(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "UUID", text)
    text = re.sub(r'"settings": \{"cleanup[^}]*\}', '"settings": {...}', text)
    text = re.sub(r"^\S+\t.*\tdefault\n", "", text, flags=re.MULTILINE)
    text = re.sub(r'"\w+": \{"value": (?:[^{}]|\{\})*?, "source": "default"\}(?:, )?', "", text)
    # Which machine it is that the doctor looks at.
    text = re.sub(r"\t(?:ok|warn)\t.*", "\tSTATE", text)
    text = re.sub(r'"state": "(?:ok|warn)", "text": ".*?", "advice": ".*?"\}', '"state"}', text)
    # The state grows with the tables in it, and other files with what is counted there.
    text = re.sub(r'"bytes": \d{5,}', '"bytes": BYTES', text)
    text = re.sub(r"\d{5,} bytes", "BYTES bytes", text)
    return "\n".join(map(_without_figures, text.split("\n"))) if numbers else text


def _without_figures(line: str) -> str:
    if line.startswith(("$", "!", "exit")):
        return line
    line = re.sub(r"(?<![\w-])\d[\d,.]*\d|\b\d\b", "N", line)
    line = re.sub(r"[─━]+", "-", line)
    line = re.sub(r" +([┃│])", r" \1", line)
    return re.sub(r"(per_record\": |\t|│ )(?:null|-)(?=[},\s]|$)", r"\1N", line)


def test_the_report_of_torture(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"rounds": 9, "kills": 9, "tears": 3, "torn_bytes": 4096, "flips": 3}
    sound = torment.Report(**told, acknowledged=900, flips_detected=2, damaged=40, flips_harmless=1)
    torture._show(sound, 7, 12.34, Path("scratch"))
    bad = torment.Report(acknowledged=900, lost=2, wrong=1, problems=["torture-0 offset 5 twice"])
    torture._show(bad, 7, 12.34, Path("scratch"))
    kept = SNAPSHOTS / "torture.txt"
    text = capsys.readouterr().out
    if os.environ.get(RENEW):
        kept.write_text(text)
    assert text == kept.read_text()


def test_figures_that_differ_do_not_count() -> None:
    places = {"DATA": "/tmp/x/data"}
    settings = {"PENTALOG_SERVER": "h:1", "PENTALOG_HTTP": "h:2", "XDG_CONFIG_HOME": "/home/c"}
    one = _without_chance("/tmp/x/data h:1 12.5 ms", places, settings, numbers=True)
    assert one == "DATA HOST:PORT N ms"
    assert _without_chance("took 12.5 ms", places, settings, numbers=False) == "took 12.5 ms"
