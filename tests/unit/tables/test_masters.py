"""Where Spark is to run: refused at once, in a line, if it cannot."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pentalog.cli.refusals import reason
from pentalog.tables import masters


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[2,3]"])
def test_this_machine_always_does(master: str) -> None:
    assert masters.is_local(master)
    assert masters.trouble(master) == ""


def test_a_cluster_must_answer(listening: str, silent: str) -> None:
    assert masters.trouble(f"spark://{listening}") == ""
    assert masters.trouble(f"spark://{silent},{listening}") == ""
    assert masters.trouble(f"k8s://https://{listening}") == ""
    assert masters.trouble(f"k8s://{listening}/prefix") == ""
    assert "no Spark master answers" in masters.trouble(f"spark://{silent}")
    assert silent in masters.trouble(f"k8s://https://{silent}")
    assert "no Kubernetes API server answers" in masters.trouble(f"k8s://https://{silent}")


def test_yarn_needs_to_know_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert "HADOOP_CONF_DIR or YARN_CONF_DIR" in masters.trouble("yarn")
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop")
    assert masters.trouble("yarn") == ""


@pytest.mark.parametrize(
    "master", ["", "loacl", "local[x]", "mesos://h:1", "spark://h", "spark://"]
)
def test_other_names_are_refused(master: str) -> None:
    assert "accepted are local[*]" in masters.trouble(master)


def test_what_java_refuses_is_one_line() -> None:
    text = (
        "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
        ": org.apache.spark.SparkException: External scheduler cannot be instantiated\n"
        "\tat org.apache.spark.SparkContext$.create(SparkContext.scala:3295)\n"
        "Caused by: org.apache.spark.SparkException: Must specify the executor container image\n"
        "\tat org.apache.spark.deploy.k8s.features.BasicStep.fail(BasicStep.scala:43)\n"
        "\t... 15 more\n"
    )
    assert reason(text) == (
        "External scheduler cannot be instantiated: Must specify the executor container image"
    )
