"""What goes wrong with any verb is one line that says what to do, and an exit code."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pentalog
from pentalog.cli.verbs import app

Run = Callable[..., Any]
Words = Callable[[tuple[str, ...], str], list[str]]

# Every command that asks a broker, with the option that names it, or FILE if a pipeline file does.
ASKING: dict[tuple[str, ...], str] = {
    ("topic", "create", "t"): "--server",
    ("topic", "list"): "--server",
    ("topic", "describe", "t"): "--server",
    ("topic", "alter", "t", "--partitions", "2"): "--server",
    ("topic", "delete", "t"): "--server",
    ("produce", "t"): "--server",
    ("consume", "t"): "--server",
    ("group", "list"): "--server",
    ("group", "describe", "g"): "--server",
    ("group", "seek", "g", "--topic", "t", "--to", "latest"): "--server",
    ("group", "delete", "g"): "--server",
    ("rustlog", "produce", "t"): "--server",
    ("rustlog", "fetch", "t"): "--server",
    ("rustlog", "topics"): "--server",
    ("rustlog", "metrics"): "--server",
    ("blipmq", "publish", "t"): "--server",
    ("blipmq", "listen", "t"): "--server",
    ("bench", "kafka"): "--server",
    ("bench", "rustlog"): "--server",
    ("bench", "blipmq"): "--server",
    ("bench", "cursus"): "--server",
    ("bench", "fluvio"): "--server",
    ("move", "--topic", "t", "--to", "kafka://TARGET"): "--server",
    ("sql", "select * from topic.t"): "--server",
    ("inspect",): "--http",
    ("inspect", "1"): "--http",
    ("user", "add", "u"): "--server",
    ("user", "list"): "--server",
    ("user", "passwd", "u"): "--server",
    ("user", "delete", "u"): "--server",
    ("user", "key", "u"): "--server",
    ("acl", "add", "--principal", "User:u", "--operation", "read", "--topic", "t"): "--server",
    ("acl", "list"): "--server",
    ("acl", "remove", "--all"): "--server",
    ("token", "create"): "--server",
    ("token", "list"): "--server",
    ("token", "renew", "x"): "--server",
    ("token", "expire", "x"): "--server",
    ("quota", "set", "--user", "u", "--write", "1"): "--server",
    ("quota", "list"): "--server",
    ("quota", "remove", "--user", "u"): "--server",
    ("table", "run", "FILE"): "FILE",
    ("table", "run", "FILE", "--once"): "FILE",
    ("table", "backfill", "FILE", "t", "--from", "earliest"): "FILE",
    ("verify", "FILE"): "FILE",
}
NOT_ASKING: dict[tuple[str, ...], str] = {
    ("start",): "is the broker",
    ("config",): "reads settings",
    ("doctor",): "looks at this machine; a broker that does not answer is one of its findings",
    ("dump",): "reads files",
    ("backup",): "reads files",
    ("restore",): "writes files",
    ("torture",): "starts its own broker",
    ("profile", "add"): "keeps addresses",
    ("profile", "list"): "keeps addresses",
    ("profile", "remove"): "keeps addresses",
    ("table", "init"): "writes a file",
    ("table", "list"): "reads a file",
    ("table", "status"): "tells what lies beside the tables; says so if the lag is not to be had",
    ("table", "pause"): "leaves a note beside the tables",
    ("table", "resume"): "leaves a note beside the tables",
    ("table", "compact"): "works on tables",
    ("table", "vacuum"): "works on tables",
    ("table", "rebuild"): "works on tables",
    ("table", "replay-dlq"): "works on tables",
    ("table", "drop"): "works on tables",
}
NEVER_FORBIDDEN: dict[tuple[str, ...], str] = {
    ("topic", "list"): "shows what one may see",
    ("group", "list"): "shows what one may see",
    ("rustlog", "topics"): "shows what one may see",
    ("move", "--topic", "t", "--to", "kafka://TARGET"): "knows of those topics only one may see",
}
FILES: list[tuple[tuple[str, ...], int, str]] = [
    (("dump", "/no/such/place"), 1, "name a segment"),
    (("backup", "/tmp", "--data", "/no/such/place"), 1, "name a broker's --data"),
    (("move", "--to", "127.0.0.1:9092"), 2, "is not kafka://HOST:PORT"),
    (("restore", "/no/such/place", "--data", "/no/such/data"), 1, "is no backup"),
    (("torture", "/no/such/place"), 1, "name another DIR"),
    (("torture", "--rounds", "0"), 2, "1 or more"),
    (("doctor", "--log", "x"), 2, "--bundle FILE"),
    (("doctor", "--listen", "pigeon=1.2.3.4:5"), 2, "kafka"),
    (("config", "--node-id", "x"), 2, "whole number"),
    (("inspect", "-1"), 2, "--help"),
    (("inspect", "1", "--count", "0"), 2, "1 or more"),
    (("dump", "x", "--count", "-1"), 2, "0 or more"),
    (("bench", "kafka", "--size", "-1"), 2, "0 or more"),
]


def one_line(done: Any) -> str:
    text: str = done.said
    assert text.startswith("pentalog: "), text
    assert text.count("\n") == 1, text
    assert done.stdout == b""
    return text


@pytest.fixture
def addressed(doors: pentalog.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Words:
    """The words of a command that shall ask there; patience is short."""
    monkeypatch.setattr("pentalog.tables.sources._PATIENCE_S", 0.3)
    monkeypatch.setattr("pentalog.cli.move._TIMEOUT_MS", 300)
    return lambda arguments, where: words_of(arguments, where, tmp_path, doors.address("kafka"))


def words_of(arguments: tuple[str, ...], where: str, folder: Path, target: str) -> list[str]:
    if ASKING[arguments] != "FILE":
        controller = ("--controller", where) if arguments[:2] == ("bench", "fluvio") else ()
        words = [word.replace("TARGET", target) for word in arguments]
        return [*words, ASKING[arguments], where, *controller]
    file = folder / "pipeline.toml"
    file.write_text(f"[pipeline.t]\nfrom = '{where}'\ntopics = ['t']\ninto = '{folder}/lake'\n")
    return [str(file) if word == "FILE" else word for word in arguments]


@pytest.mark.parametrize("arguments", ASKING, ids=" ".join)
def test_nobody_answers(run: Run, addressed: Words, arguments: tuple[str, ...]) -> None:
    words = addressed(arguments, "127.0.0.1:1")
    said = one_line(run(*words, stdin=b"x\n", code=1))
    assert "127.0.0.1:1" in said
    assert "pentalog start" in said


@pytest.mark.parametrize("arguments", ASKING, ids=" ".join)
def test_an_address_nobody_can_mean(run: Run, addressed: Words, arguments: tuple[str, ...]) -> None:
    # What a file says is no word of the command line.
    code = 1 if ASKING[arguments] == "FILE" else 2
    words = addressed(arguments, "nowhere")
    assert "nowhere" in one_line(run(*words, stdin=b"x\n", code=code))


@pytest.fixture(scope="module")
def guarded() -> Iterator[pentalog.Broker]:
    """A broker at which nobody but its administrator may do anything."""
    with pentalog.Broker(
        super_users="User:admin", blipmq_api_keys="key", delegation_token_secret="secret"
    ) as broker:
        yield broker


FORBIDDEN = [one for one in ASKING if one not in NEVER_FORBIDDEN]


@pytest.mark.parametrize("arguments", FORBIDDEN, ids=" ".join)
def test_who_may_not_is_told_who_may(
    run: Run, guarded: pentalog.Broker, addressed: Words, arguments: tuple[str, ...]
) -> None:
    doors = {"fluvio": "fluvio-spu", "cursus": "cursus", "rustlog": "rustlog", "blipmq": "blipmq"}
    named = [door for word, door in doors.items() if word in arguments[:2]]
    door = "http" if ASKING[arguments] == "--http" else named[0] if named else "kafka"
    words = addressed(arguments, guarded.address(door))
    if door == "fluvio-spu":
        words[-1] = guarded.address("fluvio-sc")
    said = one_line(run(*words, stdin=b"x\n", code=1))
    assert re.search("pentalog (acl add|user key|profile add)", said), said


def test_a_broker_without_tokens_says_how_to_have_some(run: Run) -> None:
    assert "PENTALOG_DELEGATION_TOKEN_SECRET" in one_line(run("token", "list", code=1))


@pytest.fixture(scope="module")
def stranger() -> Iterator[str]:
    """A server of something else: it hangs up on everybody."""
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                peer.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(30)


@pytest.mark.parametrize(
    "arguments", [one for one in ASKING if one[0] not in ("blipmq", "rustlog")], ids=" ".join
)
def test_another_program_answers(
    run: Run, stranger: str, addressed: Words, arguments: tuple[str, ...]
) -> None:
    words = addressed(arguments, stranger)
    assert stranger in one_line(run(*words, stdin=b"x\n", code=1))


@pytest.mark.parametrize(("arguments", "code", "words"), FILES)
def test_what_is_refused_without_a_broker(
    run: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    assert words in one_line(run(*arguments, code=code))


def commands(app_command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    context = app_command.make_context("pentalog", [], resilient_parsing=True)
    for name in app_command.list_commands(context):
        command = app_command.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def all_commands() -> dict[tuple[str, ...], Any]:
    from typer.main import get_command

    return dict(commands(get_command(app)))


COMMANDS = all_commands()


def test_every_command_is_known_to_ask_or_not_to() -> None:
    """A new one fails here until it says what it does when it is refused."""
    asking = {path for path in COMMANDS for words in ASKING if words[: len(path)] == path}
    assert asking.isdisjoint(NOT_ASKING)
    assert asking | NOT_ASKING.keys() == COMMANDS.keys()


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(**_: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr("pentalog.tables.session.session", session)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_wrong_flag_is_one_line(run: Run, path: tuple[str, ...]) -> None:
    said = one_line(run(*path, "--no-such-flag", code=2))
    assert "--no-such-flag" in said
    assert f"pentalog {' '.join(path)} --help" in said


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_has_an_example_and_says_the_codes(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "400", "TERM": "dumb"})
    assert shown.exit_code == 0
    assert re.search(r"Example: .*pentalog ", shown.stdout), shown.stdout


@pytest.mark.parametrize(("words", "meant"), [(("consum",), "consume"), (("topic", "lst"), "list")])
def test_a_mistyped_verb_is_guessed(run: Run, words: tuple[str, ...], meant: str) -> None:
    assert f"Did you mean '{meant}'?" in one_line(run(*words, code=2))


def test_every_command_can_speak_json() -> None:
    for path, command in COMMANDS.items():
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert "--json" in flags, path


def test_every_verb_is_in_the_document() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    for path in COMMANDS:
        assert f"pentalog {' '.join(path)}" in text, path


def test_a_shell_is_offered_topics_and_groups(
    run: Run, settings: dict[str, str], topic: str
) -> None:
    run("topic", "create", topic)
    run("group", "seek", f"{topic}-group", "--topic", topic, "--to", "latest")

    def offered(line: str) -> str:
        variables = {
            **settings,
            "_PENTALOG_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
        }
        return CliRunner().invoke(app, [], env=variables, prog_name="pentalog").stdout

    assert topic in offered(f"pentalog consume {topic[:6]}").split()
    assert f"{topic}-group" in offered(f"pentalog group describe {topic[:6]}").split()
    assert "describe" in offered("pentalog topic des").split()
    settings["PENTALOG_SERVER"] = "127.0.0.1:1"
    assert offered(f"pentalog consume {topic[:6]}").strip() == ""
