"""The source itself, tested: sizes, places where I/O may happen, tables that must be complete.

Every rule is a function from text to complaints, so every rule is also shown to fail.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pentalog.config import Config
from pentalog.kernels import check_batches
from pentalog.metrics import Metrics, Traffic
from pentalog.model import batch
from pentalog.model.errors import BrokerError
from pentalog.model.types import Record
from pentalog.protocols import PROTOCOLS
from pentalog.protocols.http import exposition

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "pentalog"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
LINE_MAX = 100
FILE_BYTES_MAX = 1 << 20

SHARED_NAMES = ("frames.py", "messages.py", "records.py", "errors.py", "session.py", "README.md")
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
DISK_PLACES = ("log/files.py", "server/", "cli/", "config.py", "embedded.py", "tables/")
LOOP_PLACES = ("server/", "clients/", "embedded.py")
CLOCK_PLACES = ("server/", "cli/", "clients/", "tables/")

DISK_PLACES += ("console/",)
LOOP_PLACES += ("console/",)
CLOCK_PLACES += ("console/",)

DISK_MODULES = {"os", "shutil", "tempfile", "fcntl", "glob"}
DISK_METHODS = {
    "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink", "rmdir",
    "iterdir", "rglob", "symlink_to",
}  # fmt: skip
LOOP_MODULES = {"asyncio", "uvloop"}
CLOCK_CALLS = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter",
    "time.sleep", "datetime.now", "datetime.utcnow", "datetime.today",
    "datetime.datetime.now", "datetime.datetime.utcnow", "date.today", "datetime.date.today",
}  # fmt: skip


# Rules over one module


def too_long(text: str) -> Iterator[str]:
    lines = text.splitlines()
    if len(lines) > MODULE_LINES_MAX:
        yield f"{len(lines)} lines; at most {MODULE_LINES_MAX}"
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_MAX:
            yield f"line {number} has {len(line)} characters; at most {LINE_MAX}"


def long_functions(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{node.name} has {length} lines; at most {FUNCTION_LINES_MAX}"


def without_opening(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    if tree.body and not ast.get_docstring(tree):
        yield "no docstring that says what the module is for"


def disk_uses(text: str) -> Iterator[str]:
    """Calls of the operating system; looking at the environment is not one."""
    tree = ast.parse(text)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in DISK_MODULES and node.attr not in {"environ", "getpid"}:
                yield f"line {node.lineno}: {node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module in DISK_MODULES:
            yield f"line {node.lineno}: from {node.module}"
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id == "open":
                yield f"line {node.lineno}: open()"
            if isinstance(called, ast.Attribute) and called.attr in DISK_METHODS:
                # A function of one of our own modules, not a method of a path.
                if isinstance(called.value, ast.Name) and called.value.id in imported:
                    continue
                yield f"line {node.lineno}: .{called.attr}()"


def loop_uses(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        names: Iterable[str] = ()
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name.split(".")[0] in LOOP_MODULES:
                yield f"line {node.lineno}: imports {name}"


def clock_uses(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CLOCK_CALLS:
            yield f"line {node.lineno}: {ast.unparse(node.func)}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield f"line {node.lineno}: from time"


def catch_alls(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        if any(kind is None or ast.unparse(kind) == "Exception" for kind in kinds):
            yield f"line {node.lineno}: except Exception"


def unfinished(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(r"#.*\b(TODO|FIXME|XXX|HACK)\b", line):
            yield f"line {number}: {line.strip()}"


# Rules over folders and documents


def missing_names(present: Iterable[str]) -> Iterator[str]:
    there = set(present)
    for name in SHARED_NAMES:
        if name not in there:
            yield f"{name} is missing"


def unlisted_modules(stems: Iterable[str], readme: str) -> Iterator[str]:
    """Request modules `k00_produce` whose key and name are in no row of the README's table."""
    rows = [re.split(r"\s*\|\s*", line) for line in readme.splitlines() if line.startswith("|")]
    for stem in stems:
        prefix, _, name = stem.partition("_")
        key = str(int(prefix.lstrip("k")))
        words = name.replace("_", "").lower()
        if not any(key in row and any(words == _bare(cell) for cell in row) for row in rows):
            yield f"{stem} is in no row of the table of requests"


def _bare(cell: str) -> str:
    return re.sub(r"[^a-z]", "", cell.lower())


def unmapped_refusals(codes: Mapping[type[BrokerError], object]) -> Iterator[str]:
    for kind in refusals():
        if kind not in codes:
            yield f"{kind.__name__} has no code"


def refusals() -> set[type[BrokerError]]:
    found: set[type[BrokerError]] = set()
    waiting: list[type[BrokerError]] = [BrokerError]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            # Classes made by other tests are nobody's refusals.
            if kind.__module__ == "pentalog.model.errors" and kind not in found:
                found.add(kind)
                waiting.append(kind)
    return found


def broken_links(text: str, at: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = at if not path else (at.parent / path).resolve()
        if not file.exists():
            yield f"{target} leads nowhere"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            yield f"{target} names no heading"


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", _prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def _prose(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def table_rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading, code marks removed."""
    _, found, behind = text.partition(f"\n{heading}\n")
    assert found, f"no heading {heading!r}"
    table = re.search(r"(?:^\|.*\n)+", behind, re.MULTILINE)
    assert table, f"no table behind {heading!r}"
    lines = table[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def wrong_settings(rows: Iterable[list[str]], config: type[Any]) -> Iterator[str]:
    expected = {field.name: default_text(field) for field in dataclasses.fields(config)}
    shown = {row[0]: row[1] for row in rows}
    for name in expected.keys() - shown.keys():
        yield f"{name} is not in the table"
    for name in shown.keys() - expected.keys():
        yield f"{name} is in the table but is no setting"
    for name in expected.keys() & shown.keys():
        if shown[name] != expected[name]:
            yield f"{name}: the table says {shown[name]!r}, the code {expected[name]!r}"


def default_text(field: dataclasses.Field[Any]) -> str:
    """A default as the documents write it."""
    value = field.default
    if value is dataclasses.MISSING:
        assert field.default_factory is not dataclasses.MISSING
        value = field.default_factory()
    if isinstance(value, bool):
        return str(value).lower()
    if value in ((), {}, ""):
        return "none"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def untidy_changelog(text: str) -> Iterator[str]:
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if not sections or sections[0] != "Unreleased":
        yield "the first section is not `## Unreleased`"


def too_big(sizes: Mapping[str, int]) -> Iterator[str]:
    for name, size in sizes.items():
        if size > FILE_BYTES_MAX:
            yield f"{name} has {size} bytes; at most {FILE_BYTES_MAX}"


# The repository


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("not a git checkout: the list of files is not known")
    names = [name for name in listed.stdout.split("\0") if name]
    return [path for name in names if (path := ROOT / name).is_file()]


def modules(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def complaints(
    rule: Callable[[str], Iterator[str]], paths: Iterable[Path], allowed: tuple[str, ...] = ()
) -> list[str]:
    found = []
    for path in paths:
        name = path.relative_to(SOURCE if path.is_relative_to(SOURCE) else ROOT).as_posix()
        if any(
            name == place or (place.endswith("/") and name.startswith(place)) for place in allowed
        ):
            continue
        found += [f"{name}: {complaint}" for complaint in rule(path.read_text())]
    return found


EVERYWHERE = ("src", "tests", "benchmarks", "examples")


def test_modules_fit_a_sitting() -> None:
    kernels = [path for suffix in ("*.pyx", "*.pyi") for path in SOURCE.rglob(suffix)]
    assert complaints(too_long, [*modules(*EVERYWHERE), *kernels]) == []


def test_functions_fit_a_screen() -> None:
    assert complaints(long_functions, modules(*EVERYWHERE)) == []


def test_modules_say_what_they_are_for() -> None:
    assert complaints(without_opening, modules(*EVERYWHERE)) == []


def test_modules_are_named_after_what_they_hold() -> None:
    vague = [path for path in modules(*EVERYWHERE) if path.stem in VAGUE_NAMES]
    assert vague == []


def test_nothing_is_left_unfinished() -> None:
    assert complaints(unfinished, modules("src", "benchmarks", "examples")) == []


def test_the_disk_is_touched_in_few_places() -> None:
    assert complaints(disk_uses, modules("src"), DISK_PLACES) == []


def test_the_event_loop_stays_in_the_server() -> None:
    assert complaints(loop_uses, modules("src"), LOOP_PLACES) == []


def test_the_clock_is_read_in_few_places() -> None:
    assert complaints(clock_uses, modules("src"), CLOCK_PLACES) == []


def protocol_folders() -> list[Path]:
    """Of those that carry records."""
    return sorted(SOURCE / "protocols" / protocol.name for protocol in PROTOCOLS)


def test_protocol_folders_hold_the_same_names() -> None:
    folders = protocol_folders()
    assert folders
    for folder in folders:
        assert list(missing_names(path.name for path in folder.iterdir())) == [], folder.name


def test_every_request_is_in_its_readme() -> None:
    for folder in protocol_folders():
        stems = sorted(path.stem for path in (folder / "api").glob("k*.py"))
        assert list(unlisted_modules(stems, (folder / "README.md").read_text())) == []


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: str(protocol.name))
def test_every_refusal_has_a_code(protocol: Any) -> None:
    assert list(unmapped_refusals(protocol.error_codes)) == []


def test_links_resolve() -> None:
    for path in tracked():
        if path.suffix == ".md":
            found = list(broken_links(path.read_text(), path))
            assert found == [], path.relative_to(ROOT)


def test_settings_are_documented_as_they_are() -> None:
    rows = table_rows((ROOT / "docs/operating.md").read_text(), "## Settings")
    assert list(wrong_settings(rows, Config)) == []


def test_metrics_are_documented() -> None:
    rows = table_rows((ROOT / "docs/metrics.md").read_text(), "## Names")
    shown = [(row[0], row[1], row[2].replace("`", ""), row[3]) for row in rows]
    families = exposition.FAMILIES
    labels = [", ".join(family.labels) or "–" for family in families]
    assert shown == [
        (family.name, family.kind, named, family.meaning)
        for family, named in zip(families, labels, strict=True)
    ]


def test_every_counter_is_shown() -> None:
    traffic = {field.name for field in dataclasses.fields(Traffic)}
    counted = {field.name for field in dataclasses.fields(Metrics)} - traffic
    assert counted == {*exposition.COUNTERS, *exposition.HISTOGRAMS, "retention_held_bytes"}
    assert traffic == set(exposition.PER_DOOR)


def test_every_catch_all_is_listed_with_its_reason() -> None:
    listed = {row[0] for row in table_rows(ARCHITECTURE.read_text(), "### Catch-alls")}
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in modules("src")
        if any(catch_alls(path.read_text()))
    }
    assert listed == found


def test_the_worked_example_is_a_batch() -> None:
    """The bytes in the format's document, read by the code that reads segments."""
    text = (ROOT / "docs/log-format.md").read_text()
    lines = re.findall(r"^[0-9a-f]{8}  ((?:[0-9a-f]{2} +)*[0-9a-f]{2})$", text, re.MULTILINE)
    data = bytes.fromhex(" ".join(lines))
    assert check_batches(data, 0, len(data)).flaw == 0
    first = Record(b"hello", b"k1", (("source", b"docs"),), 1_700_000_000_000)
    second = Record(None, b"k2", (), 1_700_000_000_005)
    assert batch.records_of(data, 0, bytes_max=1 << 20) == [(42, first), (43, second)]


def test_the_changelog_is_open() -> None:
    assert list(untidy_changelog((ROOT / "CHANGELOG.md").read_text())) == []


def test_no_file_is_too_big() -> None:
    sizes = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in tracked()}
    assert list(too_big(sizes)) == []


# Every rule can fail

BAD = [
    (too_long, "x = 1\n" * 601),
    (too_long, "x = '" + "y" * 100 + "'\n"),
    (long_functions, "def f():\n" + "    x = 1\n" * 70),
    (without_opening, "import os\n"),
    (disk_uses, "import os\nos.unlink('x')\n"),
    (disk_uses, "from os import unlink\n"),
    (disk_uses, "with open('x') as file:\n    pass\n"),
    (disk_uses, "from pathlib import Path\nPath('x').read_text()\n"),
    (loop_uses, "import asyncio\n"),
    (loop_uses, "from asyncio.events import get_event_loop\n"),
    (clock_uses, "import time\ntime.time()\n"),
    (clock_uses, "import datetime\ndatetime.datetime.now()\n"),
    (clock_uses, "from time import time\n"),
    (unfinished, "x = 1  # TODO later\n"),
    (catch_alls, "try:\n    f()\nexcept (ValueError, Exception):\n    pass\n"),
    (catch_alls, "try:\n    f()\nexcept:\n    pass\n"),
    (untidy_changelog, "# Changes\n\n## 1.0\n"),
]
GOOD = [
    (too_long, "x = 1\n" * 600),
    (long_functions, "def f():\n" + "    x = 1\n" * 69),
    (without_opening, '"""For a reason."""\n'),
    (without_opening, ""),
    (disk_uses, "import os\nx = os.environ.get('x')\n"),
    (disk_uses, "from pentalog.log import checkpoints\ncheckpoints.read_text(1)\n"),
    (loop_uses, "import threading\n"),
    (clock_uses, "def f(runtime):\n    return runtime.now_ms()\n"),
    (unfinished, "x = 'TODO'\n"),
    (catch_alls, "try:\n    f()\nexcept ValueError:\n    pass\n"),
    (untidy_changelog, "# Changes\n\n## Unreleased\n"),
]


@pytest.mark.parametrize(("rule", "text"), BAD)
def test_rules_complain(rule: Callable[[str], Iterator[str]], text: str) -> None:
    assert list(rule(text))


@pytest.mark.parametrize(("rule", "text"), GOOD)
def test_rules_leave_good_code_alone(rule: Callable[[str], Iterator[str]], text: str) -> None:
    assert list(rule(text)) == []


def test_rules_over_folders_and_documents_complain(tmp_path: Path) -> None:
    assert list(missing_names(set(SHARED_NAMES) - {"records.py"})) == ["records.py is missing"]
    readme = "| Key | Request |\n|---|---|\n| 0 | `Produce` |\n"
    assert list(unlisted_modules(["k00_produce"], readme)) == []
    assert list(unlisted_modules(["k01_fetch"], readme))
    assert list(unlisted_modules(["k01_produce"], readme))
    kinds = sorted(refusals(), key=lambda kind: kind.__name__)
    assert list(unmapped_refusals(dict.fromkeys(kinds, 1))) == []
    assert list(unmapped_refusals(dict.fromkeys(kinds[1:], 1))) == [
        f"{kinds[0].__name__} has no code"
    ]
    assert list(too_big({"a": FILE_BYTES_MAX, "b": FILE_BYTES_MAX + 1}))

    page = tmp_path / "page.md"
    page.write_text("# A title, here\n")
    assert list(broken_links("[a](page.md) [b](page.md#a-title-here) [c](https://x.y)", page)) == []
    assert list(broken_links("[a](nowhere.md)", page))
    assert list(broken_links("[a](page.md#nothing)", page))


def test_wrong_settings_are_found() -> None:
    @dataclasses.dataclass
    class Sample:
        size: int = 5
        open: bool = True
        doors: tuple[str, ...] = ()

    text = (
        "\n## Settings\n\n| a | b |\n|---|---|\n| `size` | 5 |\n| open | true |\n| doors | none |\n"
    )
    rows = table_rows(text, "## Settings")
    assert list(wrong_settings(rows, Sample)) == []
    assert list(wrong_settings(rows[1:], Sample)) == ["size is not in the table"]
    assert list(wrong_settings([*rows, ["other", "1"]], Sample))
    assert list(wrong_settings([["size", "6"], *rows[1:]], Sample))
