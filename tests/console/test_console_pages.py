"""Every page in a real browser: what it shows, what its buttons do."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from tests.console.world import Browser, client, fill, write

import pentalog
from pentalog.clients.blipmq import BlipmqClient
from pentalog.clients.kafka import (
    EARLIEST,
    LATEST,
    ClientOptions,
    Cluster,
    GroupOffset,
    commit,
    committed,
)
from pentalog.console import browsing, rights
from pentalog.console.pages.frame import NAVIGATION, topic_address
from pentalog.model.types import Partition, Record

pytestmark = pytest.mark.clients

MILLION = 1_000_000


@pytest.fixture
def cluster(broker: pentalog.Broker) -> Iterator[Cluster]:
    with client(broker) as made:
        yield made


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    # Some of the records are from 1970, and must not expire while they are looked at.
    cluster.create_topic(name, 1, {"retention.ms": "-1"})
    return name


def rows(cluster: Cluster, topic: str) -> list[Record]:
    at = Partition(topic, 0)
    end = cluster.offsets({at: LATEST})[at]
    found = browsing.read(cluster, at, cluster.offsets({at: EARLIEST})[at], end)
    return [Record(row.value, row.key, row.headers, row.timestamp_ms) for row in found]


def connections(broker: pentalog.Broker) -> list[dict[str, Any]]:
    with urlopen(f"http://{broker.address('http')}/api/v1/connections") as answer:
        return list(json.load(answer)["connections"])


@pytest.mark.parametrize("path", [path for path, _, _ in NAVIGATION])
def test_pages_open_wide_and_narrow_dark_and_light(
    browser: Browser, cluster: Cluster, topic: str, path: str
) -> None:
    write(cluster, topic, Record(b'{"id": 1}', b"k"))
    browser.open(path)
    name = path.strip("/") or "overview"
    browser.picture(f"{name}-wide")
    failures = browser.driver.find_elements(By.CSS_SELECTOR, "[data-test=failure]")
    assert [one.text for one in failures if one.is_displayed()] == []
    current = browser.driver.find_elements(By.CSS_SELECTOR, "nav [aria-current], [aria-current]")
    assert len(current) == 1
    browser.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True},
    )
    browser.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    try:
        browser.open(path)
        width = browser.run("return document.scrollingElement.scrollWidth")
        browser.until(lambda: browser.run("return !!document.querySelector('.body--dark')"), "dark")
        browser.picture(f"{name}-phone")
        assert width <= 390, "the page does not fit a phone"
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_rates_come_live_to_the_overview(browser: Browser, cluster: Cluster, topic: str) -> None:
    browser.open("/")

    def busy() -> bool:
        write(cluster, topic, *(Record(b"value") for _ in range(500)))
        text = browser.text("door-kafka")
        return "/s in" in text and not text.split("\n")[1].startswith("0/s")

    browser.until(busy, "a rate at the Kafka door")
    browser.picture("overview-live")


def test_a_topic_is_made_filled_and_followed_live(browser: Browser, cluster: Cluster) -> None:
    name = f"made-{uuid.uuid4().hex[:8]}"
    browser.open("/topics")
    browser.click("new-topic")
    browser.type("topic-name", name)
    browser.type("topic-partitions", "2")
    browser.click("create")
    browser.type("filter", name)
    browser.wait_text("topics", name)
    browser.open(f"/topics/{name}")
    assert len(cluster.topic(name).partitions) == 2
    browser.click("way", "button:nth-of-type(2)")
    browser.wait_text("state", "Live")
    browser.click("produce")
    browser.type("produce-key", "customer-7")
    browser.type("produce-value", '{"total": 12}')
    browser.type("produce-headers", "trace=abc")
    browser.click("send")
    browser.wait_text("messages", "customer-7", '{"total": 12}')
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    write(cluster, name, Record(b"from another client"), partition=1)
    browser.wait_text("messages", "from another client")
    browser.picture("live")
    browser.click("messages", "tr:last-child button")
    browser.wait_text("record", "trace: abc", '"total": 12')


def test_records_are_found_by_offset_and_by_time(
    browser: Browser, cluster: Cluster, topic: str
) -> None:
    write(cluster, topic, *(Record(b"number %d" % one, None, (), one) for one in range(1000, 1100)))
    browser.open(f"/topics/{topic}")
    browser.wait_text("messages", "number 1099", "number 1050")
    browser.click("way", "button:nth-of-type(3)")
    browser.type("where", "90")
    browser.click("show")
    browser.wait_text("state", "10 records")
    assert "number 1089" not in browser.text("messages")
    browser.click("way", "button:nth-of-type(4)")
    browser.type("where", "1095")
    browser.click("show")
    browser.wait_text("state", "5 records")
    browser.wait_text("messages", "number 1095")


def test_a_million_records_are_searched_to_the_last(
    browser: Browser, cluster: Cluster, topic: str
) -> None:
    fill(cluster, topic, MILLION, b"the-needle")
    browser.open(f"/topics/{topic}")
    browser.click("way", "button:nth-of-type(5)")
    browser.type("search-text", "the-needle")
    browser.click("search")
    browser.wait_text("search-state", "Done", "1 found", "of 1,000,000")
    browser.wait_text("hits", "the-needle", str(MILLION - 1))
    browser.picture("search")


def test_a_search_that_finds_everything_rests_goes_on_and_is_cancelled(
    browser: Browser, cluster: Cluster, topic: str
) -> None:
    fill(cluster, topic, 50_000, b"end")
    browser.open(f"/topics/{topic}")
    browser.click("way", "button:nth-of-type(5)")
    browser.type("search-text", "x")
    browser.click("search")
    browser.wait_text("search-state", "Resting", "10,000 found")
    browser.click("more-hits")
    browser.wait_text("search-state", "Resting", "20,000 found")
    browser.click("cancel-search")
    browser.wait_text("search-state", "Cancelled")


def test_settings_are_changed_and_a_topic_is_deleted(
    browser: Browser, cluster: Cluster, topic: str
) -> None:
    browser.open(f"/topics/{topic}?view=settings")
    browser.click("setting-retention.ms")
    browser.type("setting-value", "12345")
    browser.click("setting-apply")
    browser.wait_text("settings", "12345")
    browser.click("tab-partitions")
    browser.wait_text("segments", f"{topic}-0/00000000000000000000.log")
    browser.picture("partitions")
    browser.click("delete-topic")
    browser.type("delete-name", topic)
    browser.click("delete-really")
    browser.until(lambda: browser.driver.current_url.endswith("/topics"), "the list of topics")
    assert cluster.topics([topic]) == []


@pytest.mark.parametrize("name", ["../a ü", "<b>\x1b[2J\n</b>"], ids=ascii)
def test_topics_of_any_name_have_a_page(
    browser: Browser, broker: pentalog.Broker, name: str
) -> None:
    with BlipmqClient(broker.address("blipmq")) as publisher:
        publisher.publish(name, b"here it is")
    browser.open("/topics")
    browser.wait_text("topics", name.partition("\x1b")[0])
    browser.open(topic_address(name))
    browser.wait_text("messages", "here it is")


def test_a_group_is_shown_and_moved(browser: Browser, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, *(Record(b"v") for _ in range(100)))
    group, at = f'g "{uuid.uuid4().hex[:8]}" <b>', Partition(topic, 0)
    commit(cluster, group, {at: GroupOffset(30)})
    browser.open("/groups")
    browser.wait_text("groups", group)
    browser.open(f"/groups/{quote(group)}")
    browser.wait_text("lag", "70")
    browser.click("seek")
    browser.click("seek-preview")
    browser.wait_text("seek-plan", f"{topic}-0", "-30")
    assert committed(cluster, group)[at].offset == 30, "a preview changes nothing"
    browser.picture("seek")
    browser.click("seek-apply")
    browser.wait_text("lag", "100")
    assert committed(cluster, group)[at].offset == 0


def test_a_dead_letter_is_replayed_once(browser: Browser, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(f"{topic}.dlq", 1, {"retention.ms": "-1"})
    notes = (
        ("trace", b"abc"),
        ("dead.reason", b"attempts"),
        ("dead.attempts", b"5"),
        ("dead.topic", topic.encode()),
        ("dead.partition", b"0"),
        ("dead.offset", b"17"),
        ("dead.subscription", b"3"),
    )
    write(cluster, f"{topic}.dlq", Record(b"payment", b"customer", notes, 1_700_000_000_000))
    browser.open(f"/dead-letters?topic={topic}.dlq")
    browser.wait_text("letters", "attempts", "5", f"{topic}-0 @ 17", "payment")
    browser.picture("dead-letters-before")
    browser.click("replay")
    browser.wait_text("letters", "replayed, now at offset 0")
    (record,) = rows(cluster, topic)
    assert record == Record(b"payment", b"customer", (("trace", b"abc"),), 1_700_000_000_000)
    assert not browser.driver.find_elements(By.CSS_SELECTOR, "[data-test=replay]")


def test_frames_of_a_connection_are_shown(
    browser: Browser, broker: pentalog.Broker, topic: str
) -> None:
    name = f"watched-{uuid.uuid4().hex[:8]}"
    with Cluster(broker.address("kafka"), ClientOptions(client_id=name)) as watched:
        watched.topics()
        browser.open("/connections")
        browser.wait_text("connections", name)
        (number,) = [one["id"] for one in connections(broker) if one["client"] == name][:1]
        browser.open(f"/connections/{number}")

        def told() -> bool:
            watched.topics([topic])
            return "Metadata" in browser.text("frames")

        browser.until(told, "a frame")
        browser.picture("inspector")


def test_subscriptions_are_shown(browser: Browser, broker: pentalog.Broker, topic: str) -> None:
    with BlipmqClient(broker.address("blipmq")) as subscriber:
        subscriber.subscribe(topic)
        browser.open("/dead-letters")
        browser.wait_text("subscriptions", topic)


def test_metrics_are_drawn_and_listed(browser: Browser) -> None:
    browser.open("/metrics")
    browser.wait_text("metrics", "pentalog_")
    assert len(browser.driver.find_elements(By.TAG_NAME, "canvas")) >= 8


def test_quotas_are_set_and_removed(browser: Browser, cluster: Cluster) -> None:
    name = f"client-{uuid.uuid4().hex[:8]}"
    browser.open("/security")
    browser.click("adding-quotas", ".q-item")
    browser.type("quota-name", name)
    browser.click("add-quotas")
    browser.wait_text("quotas", f"client-id {name}", "producer_byte_rate", "1,000,000")
    assert rights.QuotaOf((("client-id", name),), "producer_byte_rate", 1e6) in rights.quotas(
        cluster
    )
    browser.picture("quotas")
    browser.click("quotas", "tbody button")
    browser.click("remove-really")
    browser.until(lambda: name not in browser.text("quotas"), "the quota's end")
    assert rights.quotas(cluster) == []


def test_what_does_not_exist_is_said_in_place(browser: Browser) -> None:
    browser.open("/topics/there-is-no-such-topic")
    browser.wait_text("failure", "there-is-no-such-topic", "does not exist")


def test_pages_are_used_by_keyboard(browser: Browser, cluster: Cluster, topic: str) -> None:
    browser.open("/topics")
    body = browser.driver.find_element(By.TAG_NAME, "body")
    body.send_keys("/")
    browser.until(
        lambda: browser.driver.switch_to.active_element.get_attribute("data-test") == "filter",
        "the filter has the keyboard",
    )
    browser.driver.switch_to.active_element.send_keys(topic)
    browser.until(lambda: browser.text("topics").count("t-") == 1, "one topic is left")
    for _ in range(20):
        active = browser.driver.switch_to.active_element
        if active.text == topic:
            break
        active.send_keys(Keys.TAB)
        time.sleep(0.02)
    assert browser.driver.switch_to.active_element.text == topic
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.until(lambda: browser.driver.current_url.endswith(f"/topics/{topic}"), "its page")


def test_a_page_that_was_closed_meanwhile_is_loaded_again(browser: Browser) -> None:
    """As after a laptop has slept: the console has closed the page of a browser that was gone."""
    browser.open("/topics")
    browser.find("new-topic")
    browser.run(
        "window.loadedBefore = true;"
        "window.socket.io.opts.query.client_id = '00000000-0000-0000-0000-000000000000';"
        "window.socket.disconnect().connect();"
    )
    browser.until(lambda: browser.run("return !window.loadedBefore"), "a new page")
    browser.find("new-topic")
    browser.look_at_logs()
    (reason,) = browser.complaints
    assert "reloading because implicit handshake failed" in reason
    browser.complaints.clear()
