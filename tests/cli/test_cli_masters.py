"""`--master` of clusters that are not here: one line if none answers, and what Spark is given."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import pentalog
from pentalog.testing.ports import reserve_port

SUBMIT = """\
#!{python}
import json, os, sys
names = ("SPARK_CONF_DIR", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")
told = {{"words": sys.argv[1:], **{{name: os.environ.get(name) for name in names}}}}
open({told!r}, "w").write(json.dumps(told))
sys.exit(1)
"""
YARN = """<configuration><property>
<name>yarn.resourcemanager.address</name><value>{}</value>
</property></configuration>"""


@pytest.fixture
def file(doors: pentalog.Broker, tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.toml"
    path.write_text(
        f'[pipeline.orders]\nfrom = "{doors.address("kafka")}"\ntopics = ["orders"]\n'
        f'into = "{tmp_path}/lake"\ndecode = "raw"\n'
    )
    return path


def said(
    program: list[str], environment: dict[str, str], file: Path, master: str, **more: str
) -> str:
    done = subprocess.run(
        [*program, "table", "run", str(file), "--once", "--master", master],
        env={**environment, **more}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode not in (0, None)
    assert done.stdout == ""
    return done.stderr


def test_a_cluster_that_does_not_answer_is_one_line(
    program: list[str], environment: dict[str, str], file: Path
) -> None:
    nobody = f"127.0.0.1:{reserve_port()}"
    text = said(program, environment, file, f"k8s://https://{nobody}")
    assert len(text.splitlines()) == 1, text
    assert f"no Kubernetes API server answers: {nobody}: Connection refused" in text
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        environment.pop(name, None)
    text = said(program, environment, file, "yarn")
    assert len(text.splitlines()) == 1, text
    assert "HADOOP_CONF_DIR or YARN_CONF_DIR" in text


def test_spark_is_told_the_master_and_finds_its_own_settings(
    program: list[str], environment: dict[str, str], file: Path, tmp_path: Path
) -> None:
    """What the cluster needs stands in `spark-defaults.conf`, which Spark's own start reads."""
    submit = tmp_path / "spark" / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(SUBMIT.format(python=sys.executable, told=str(tmp_path / "told")))
    submit.chmod(0o755)
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP", "PYSPARK_GATEWAY_PORT"):
        environment.pop(name, None)
    homes = {"SPARK_HOME": str(tmp_path / "spark"), "SPARK_CONF_DIR": str(tmp_path / "conf")}
    (tmp_path / "conf").mkdir()
    image = "spark.kubernetes.container.image lake:1\n"
    (tmp_path / "conf" / "spark-defaults.conf").write_text(image)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "conf" / "yarn-site.xml").write_text(YARN.format(place))
        yarn = {"YARN_CONF_DIR": homes["SPARK_CONF_DIR"]}
        for master, more in ((f"k8s://https://{place}", {}), ("yarn", yarn)):
            text = said(program, environment, file, master, **homes, **more)
            assert "Spark did not start; its own words are above" in text
            told = json.loads((tmp_path / "told").read_text())
            assert f"spark.master={master}" in told["words"]
            assert told["SPARK_CONF_DIR"] == homes["SPARK_CONF_DIR"]
            # Executors elsewhere could not reach a driver that listens on the loopback alone.
            assert not any("127.0.0.1" in one for one in told["words"] if master not in one)
            assert told["SPARK_LOCAL_IP"] is None
            assert told["PYSPARK_PYTHON"] == sys.executable
