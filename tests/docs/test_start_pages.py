"""The examples of the start pages, run as their readers would, against one running broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pentalog

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(page.name for page in DOCS.glob("start*.md"))
BLOCK = re.compile(r"^```(python|output)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PORTS = {
    "127.0.0.1:9092": "kafka",
    "127.0.0.1:9003": "fluvio-sc",
    "127.0.0.1:9000": "cursus",
    "127.0.0.1:9192": "rustlog",
    "127.0.0.1:5555": "blipmq",
}
SOCKET = re.compile(r'\("127\.0\.0\.1", (\d+)\)')


@pytest.fixture(scope="module")
def broker() -> Iterator[pentalog.Broker]:
    with pentalog.Broker() as started:
        yield started


def examples(page: str) -> list[tuple[str, str | None]]:
    """Each example of a page, with what the page says that it prints."""
    found: list[tuple[str, str | None]] = []
    for kind, text in BLOCK.findall((DOCS / page).read_text()):
        if kind == "python":
            found.append((text, None))
        else:
            found[-1] = (found[-1][0], text)
    return found


def placed(text: str, broker: pentalog.Broker) -> str:
    """An example that asks this broker, which has other ports than those of the page."""
    for address, door in PORTS.items():
        text = text.replace(address, broker.address(door))

    def elsewhere(match: re.Match[str]) -> str:
        host, _, port = broker.address(PORTS[f"127.0.0.1:{match[1]}"]).rpartition(":")
        return f'("{host}", {port})'

    return SOCKET.sub(elsewhere, text)


@pytest.mark.clients
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_print_what_the_page_says(
    page: str, broker: pentalog.Broker, tmp_path: Path
) -> None:
    found = examples(page)
    assert found, f"{page} has no example"
    source = str(Path(pentalog.__file__).parents[1])
    for text, output in found:
        # Processes of their own: one of the clients holds the interpreter while it waits.
        done = subprocess.run(
            [sys.executable, "-c", placed(text, broker)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": source},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"
        if output is None:
            assert done.stdout, text
        else:
            assert done.stdout == output, text
