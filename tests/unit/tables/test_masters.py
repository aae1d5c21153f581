"""Where Spark is to run: refused at once, in a line, if it cannot."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pentalog.cli.refusals import reason
from pentalog.tables import masters
from pentalog.testing.ports import reserve_port

IMAGE = "spark.kubernetes.container.image"


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent() -> str:
    return f"127.0.0.1:{reserve_port()}"


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[2,3]"])
def test_this_machine_always_does(master: str) -> None:
    assert masters.is_local(master)
    assert masters.trouble(master) == ""


def test_a_cluster_must_answer(listening: str, silent: str) -> None:
    assert masters.trouble(f"spark://{listening}") == ""
    assert masters.trouble(f"spark://{silent},{listening}") == ""
    image = {IMAGE: "lake:1"}
    assert masters.trouble(f"k8s://https://{listening}", image) == ""
    assert masters.trouble(f"k8s://{listening}/prefix", image) == ""
    assert "no Spark master answers" in masters.trouble(f"spark://{silent}")
    assert silent in masters.trouble(f"k8s://https://{silent}")
    assert "no Kubernetes API server answers" in masters.trouble(f"k8s://https://{silent}")


def test_kubernetes_is_told_what_executors_run(
    listening: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    master = f"k8s://https://{listening}"
    told = masters.trouble(master, {"spark.kubernetes.namespace": "lake"})
    assert "spark.kubernetes.container.image" in told
    assert "SPARK_CONF_DIR" in told
    assert masters.trouble(master, {"spark.kubernetes.executor.container.image": "lake:1"}) == ""
    (tmp_path / "conf").mkdir()
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert masters.trouble(master) == told
    for line in (f"{IMAGE} lake:1", f"{IMAGE}=lake:1", f"  {IMAGE}\t:  lake:1 "):
        defaults.write_text(f"# of our cluster\nspark.executor.memory 2g\n{line}\n")
        assert masters.trouble(master) == ""
    defaults.write_text(f"# {IMAGE} lake:1\n")
    assert masters.trouble(master) == told
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "none"))
    assert masters.trouble(master) == told


@pytest.fixture
def yarn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What is wrong with a YARN whose files say this."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))

    def trouble(**properties: str) -> str:
        lines = (
            f"<property><name>yarn.resourcemanager.{name.replace('_', '.')}</name>"
            f"<value>{value}</value></property>"
            for name, value in properties.items()
        )
        text = f"<configuration>{''.join(lines)}</configuration>"
        (tmp_path / "yarn-site.xml").write_text(text)
        return masters.trouble("yarn")

    return trouble


def test_yarn_needs_to_know_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert "HADOOP_CONF_DIR or YARN_CONF_DIR" in masters.trouble("yarn")
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    assert f"YARN_CONF_DIR={tmp_path} has no yarn-site.xml" in masters.trouble("yarn")
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    assert f"{tmp_path}/yarn-site.xml cannot be read" in masters.trouble("yarn")


def test_a_resource_manager_must_answer(
    yarn: Callable[..., str], listening: str, silent: str
) -> None:
    assert yarn(address=listening) == ""
    told = yarn(address=silent)
    assert "no ResourceManager of" in told
    assert f"{silent}: Connection refused" in told
    several = {"ha_rm-ids": "one, two", "address_one": silent}
    assert yarn(**several, address_two=listening) == ""
    assert yarn(**several, address_two=silent).count("Connection refused") == 2


def test_what_only_hadoop_can_tell_is_left_to_it(yarn: Callable[..., str]) -> None:
    assert yarn() == ""
    assert yarn(address="${our.place}:8032") == ""


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


@pytest.mark.parametrize(
    "text",
    [
        "An error occurred while calling o1.start.\n"
        ': java.io.IOException: Cannot run program "/opt/lake/bin/python": error=2, No such file\n',
        "Job aborted\nTraceback (most recent call last):\n"
        "ModuleNotFoundError: No module named 'pentalog'\n",
    ],
)
def test_a_node_without_its_python_is_told_what_to_install(text: str) -> None:
    told = reason(text)
    assert "PYSPARK_PYTHON" in told
    assert "pentalog[spark]" in told
