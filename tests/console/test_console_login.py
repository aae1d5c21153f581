"""A broker that demands logins: the console asks for one, and shows what its user may see."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.console import chromium
from tests.console.world import Browser
from tests.server.broker_process import BrokerProcess, pentalog

from pentalog.clients.kafka import ClientOptions, Cluster, KafkaFailed
from pentalog.clients.kafka.rights import check_readable
from pentalog.console import rights
from pentalog.console.identity import Session
from pentalog.console.place import Place
from pentalog.console.rights import Rule
from pentalog.model import batch
from pentalog.model.types import Partition, Record

pytestmark = pytest.mark.clients

MECHANISM = "SCRAM-SHA-256"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with guarded(tmp_path_factory.mktemp("guarded") / "data", "50") as found:
        yield found


@contextmanager
def guarded(data: Path, marks_interval_ms: str) -> Iterator[Place]:
    """A broker with a topic that Alice may do anything with, and Bob nothing."""
    for name in ("alice", "bob"):
        made = pentalog("user", "add", name, "--password", "secret", "--data", str(data))
        if "No such command" in made.stderr:
            pytest.skip("this broker keeps no users")
        assert made.returncode == 0, made.stderr
    arguments = (
        *("--listen", "kafka+sasl=127.0.0.1:0", "--super-users", "User:alice"),
        *("--authorization", "true", "--marks-interval-ms", marks_interval_ms),
    )
    with BrokerProcess(data, *arguments) as broker:
        line = next(one for one in broker.lines if one.startswith("kafka+sasl"))
        servers = line.rpartition(" ")[2]
        options = ClientOptions(sasl_mechanism=MECHANISM, username="alice", password="secret")
        with Cluster(servers, options) as cluster:
            cluster.create_topic("secrets", 1)
            # A record of long ago would be deleted by retention if the test takes half a minute.
            built = batch.build([Record(b"for Alice")], timestamp_ms=int(time.time() * 1000))
            cluster.produce(Partition("secrets", 0), bytes(built))
        yield Place(servers, data, login=True)


def test_nothing_is_shown_before_the_login(place: Place, pictures: Path) -> None:
    try:
        found = chromium.find()
    except chromium.NoChromium as why:
        pytest.skip(str(why))
    command = [
        *(sys.executable, "-m", "pentalog.console", "--listen", "127.0.0.1:0", "--with-parent"),
        *("--servers", place.servers, "--login", "--log-level", "warning"),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    ) as console:
        assert console.stdout is not None
        browser = Browser(found, console.stdout.readline().rpartition(" ")[2].strip(), pictures)
        try:
            browser.open("/topics/secrets")
            assert browser.driver.current_url.endswith("/login")
            browser.type("user", "alice")
            browser.type("password", "wrong")
            browser.click("log-in")
            browser.until(lambda: "SASL" in browser.run("return document.body.innerText"), "a no")
            browser.type("password", "secret")
            browser.click("log-in")
            browser.until(lambda: not browser.driver.current_url.endswith("/login"), "the pages")
            browser.open("/topics/secrets")
            browser.wait_text("messages", "for Alice")
        finally:
            browser.close()
            assert console.stdin is not None
            console.stdin.close()


@contextmanager
def console_of(place: Place, pictures: Path, *arguments: str) -> Iterator[Browser]:
    """A browser in front of a console of its own."""
    try:
        found = chromium.find()
    except chromium.NoChromium as why:
        pytest.skip(str(why))
    command = [
        *(sys.executable, "-m", "pentalog.console", "--listen", "127.0.0.1:0", "--with-parent"),
        *("--servers", place.servers, "--login", "--log-level", "warning", *arguments),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ) as console:
        assert console.stdout is not None
        assert console.stdin is not None
        browser = Browser(found, console.stdout.readline().rpartition(" ")[2].strip(), pictures)
        try:
            yield browser
        finally:
            browser.close()
            console.stdin.close()


def log_in(browser: Browser, user: str, password: str) -> None:
    browser.open("/login")
    browser.type("user", user)
    browser.type("password", password)
    browser.click("log-in")
    browser.until(lambda: not browser.driver.current_url.endswith("/login"), "the pages")


def test_an_open_page_notices_that_a_right_was_taken_away(place: Place, pictures: Path) -> None:
    options = ClientOptions(sasl_mechanism=MECHANISM, username="alice", password="secret")
    rule = Rule("User:dave", permission=3, operation=3, resource=2, name="secrets", pattern=3)
    with Cluster(place.servers, options) as cluster, console_of(place, pictures) as browser:
        rights.set_password(cluster, "dave", "his")
        (dave,) = [one for one in rights.users(cluster) if one.name == "dave"]
        rights.add_rule(cluster, rule)
        log_in(browser, "dave", "his")
        browser.open("/topics/secrets")
        browser.wait_text("messages", "for Alice")
        browser.until(lambda: toggled(browser, "Live"), "the live view")
        browser.wait_text("state", "Live")
        rights.delete_rule(cluster, rule)
        browser.wait_text("state", "TOPIC_AUTHORIZATION_FAILED")
        assert "for Alice" not in browser.run("return document.body.innerText")
        rights.delete_user(cluster, dave)
        browser.driver.get(f"{browser.url}/groups")
        browser.until(lambda: browser.driver.current_url.endswith("/login"), "the login")


def toggled(browser: Browser, name: str) -> bool:
    way = browser.find("way")
    button = next(one for one in way.find_elements("css selector", "button") if name in one.text)
    button.click()
    return True


def test_an_idle_user_is_logged_out(place: Place, pictures: Path) -> None:
    with console_of(place, pictures, "--session-idle-s", "8") as browser:
        log_in(browser, "alice", "secret")
        browser.open("/topics")
        browser.until(lambda: "secrets" in browser.run("return document.body.innerText"), "topics")
        browser.until(lambda: browser.driver.current_url.endswith("/login"), "the login")


def test_users_and_rules_are_made_and_removed(place: Place) -> None:
    """As the page of users, rules and quotas does it."""
    options = ClientOptions(sasl_mechanism=MECHANISM, username="alice", password="secret")
    rule = Rule("User:carol", permission=3, operation=3, resource=2, name="sec", pattern=4)
    with Cluster(place.servers, options) as cluster:
        rights.set_password(cluster, "carol", "hers")
        (carol,) = [one for one in rights.users(cluster) if one.name == "carol"]
        assert carol.logs_in_by == "SCRAM-SHA-256, SCRAM-SHA-512"
        rights.add_rule(cluster, rule)
        assert rights.rules(cluster) == [rule]
        hers = ClientOptions(sasl_mechanism="SCRAM-SHA-512", username="carol", password="hers")
        with Cluster(place.servers, hers) as other:
            check_readable(other, "secrets")
        rights.delete_rule(cluster, rule)
        assert rights.rules(cluster) == []
        rights.delete_user(cluster, carol)
        assert "carol" not in [one.name for one in rights.users(cluster)]


def test_only_those_who_may_see_all_see_connections(place: Place) -> None:
    async def look(name: str) -> None:
        session = Session(place)
        await session.log_in(name, "secret", MECHANISM)
        try:
            await session.check_operator()
        finally:
            session.log_out()

    asyncio.run(look("alice"))
    with pytest.raises(KafkaFailed, match="CLUSTER_AUTHORIZATION_FAILED"):
        asyncio.run(look("bob"))


def test_files_are_not_read_for_those_who_may_not(place: Place) -> None:
    assert asyncio.run(end_of_secrets(place, "alice")) >= 0
    with pytest.raises(KafkaFailed, match="secrets"):
        asyncio.run(end_of_secrets(place, "bob"))


async def end_of_secrets(place: Place, name: str) -> int:
    session = Session(place)
    assert not session.known
    await session.log_in(name, "secret", MECHANISM)
    try:
        origin = await session.origin("secrets")
        ends = origin.ends([Partition("secrets", 0)])
        origin.close()
        return ends[Partition("secrets", 0)]
    finally:
        session.log_out()


def test_a_topic_that_the_files_do_not_show_yet_is_read(tmp_path: Path) -> None:
    with guarded(tmp_path / "data", "3600000") as place:
        assert asyncio.run(end_of_secrets(place, "alice")) == 1
