"""One broker, one console and one browser for all pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.console import chromium
from tests.console.world import Browser, ConsoleProcess, client

import pentalog

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def broker() -> Iterator[pentalog.Broker]:
    with pentalog.Broker(flush_interval_ms=0, marks_interval_ms=100) as started:
        yield started


@pytest.fixture(scope="session")
def pipeline_file(broker: pentalog.Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One pipeline that has not run yet, `orders`, of a topic of that name."""
    folder = tmp_path_factory.mktemp("pipelines")
    with client(broker) as cluster:
        cluster.create_topic("orders", 1)
    file = folder / "pipeline.toml"
    file.write_text(
        f"""[pipeline.orders]
from = "{broker.address("kafka")}"
topics = ["orders"]
into = "{folder / "lake"}"
decode = {{ format = "json", schema = "id BIGINT" }}
"""
    )
    return file


@pytest.fixture(scope="session")
def console(broker: pentalog.Broker, pipeline_file: Path) -> Iterator[ConsoleProcess]:
    pytest.importorskip("nicegui", reason="the console is not installed")
    process = ConsoleProcess(broker, "--pipelines", str(pipeline_file))
    yield process
    complaints = process.stop()
    assert complaints == "", f"the console complained:\n{complaints}"


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Screenshots stay where they can be looked at afterwards."""
    folder = ROOT / "build" / "console"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def one_browser(console: ConsoleProcess, pictures: Path) -> Iterator[Browser]:
    try:
        found = chromium.find()
    except chromium.NoChromium as why:
        pytest.skip(str(why))
    browser = Browser(found, console.url, pictures)
    yield browser
    browser.close()


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    """The browser; the test fails if it complains of a page or asks anybody else."""
    one_browser.complaints.clear()
    one_browser.foreign.clear()
    yield one_browser
    one_browser.look_at_logs()
    assert one_browser.complaints == []
    assert one_browser.foreign == set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Selenium leaves the pipe to its driver to the garbage collector."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))
