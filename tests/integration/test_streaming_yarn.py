"""The application on YARN, as its users start it: by `spark-submit`, with a packed environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.embedded.broker import Broker
from streaming.spark.jars import spark_classpath
from tests.integration.streaming import NOW_MS, QUICK, Topics, checked
from tests.integration.submitted import Submitted
from tests.integration.yarn_cluster import SPARK_JARS, YarnCluster

pytestmark = [pytest.mark.integration, pytest.mark.matrix, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PACKAGED = ("coordinator", "schemas", "streaming", "projector_sim", "indexer_sim")
IN_ARCHIVE = "./env/bin/python"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with a Python that has this package, and all that it needs, but Spark's own."""
    folder = tmp_path_factory.mktemp("packed")
    source, environment, archive = folder / "source", folder / "env", folder / "env.tar.gz"
    shutil.copytree(
        ROOT,
        source,
        ignore=lambda of, names: (
            {one for one in names if Path(of) == ROOT and one not in (*PACKAGED, *FILES)}
            | {"__pycache__"}
        ),
    )
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [environment / "bin" / "pip", "install", "-q", f"{source}[streaming]", "venv-pack"]
    subprocess.run(pip, check=True)
    pack = [environment / "bin" / "venv-pack", "-q", "-p", environment, "-o", archive]
    subprocess.run([*pack, "--exclude", "*/site-packages/pyspark/*"], check=True)
    shutil.rmtree(environment)
    return archive


FILES = ("pyproject.toml", "README.md", "LICENSE")


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_it_runs_on_yarn_with_a_packed_environment(
    broker: Broker, tmp_path: Path, packed: Path, mode: str
) -> None:
    """Executors, and in cluster mode the driver too, have nothing but what was sent to them."""
    topics = Topics(broker.bootstrap_servers)
    topics.bucket(**QUICK).begin().sync(10)
    topics.tick(NOW_MS)
    staging = tmp_path / "staging"
    with YarnCluster(tmp_path / "yarn") as yarn:
        given = ["--master", "yarn", "--deploy-mode", mode, "--archives", f"{packed}#env"]
        given += ["--jars", spark_classpath().replace(os.pathsep, ",")]
        given += ["--num-executors", "1", "--executor-memory", "512m", "--driver-memory", "456m"]
        settings = {
            "spark.yarn.jars": f"local:{SPARK_JARS}/*",
            "spark.yarn.stagingDir": staging,
            "spark.yarn.am.memory": "256m",
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": IN_ARCHIVE,
        }
        for name, value in settings.items():
            given += ["--conf", f"{name}={value}"]
        environment = {"HADOOP_CONF_DIR": str(yarn.conf)}
        if mode == "client":
            environment["PYSPARK_PYTHON"] = IN_ARCHIVE
            environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
        application = Submitted(topics, tmp_path, mode, given, **environment)
        application.begin("--tick-ms", "0", "--executors-from", "0")
        try:
            topics.reaches(10)
            if mode == "client":
                application.stop_jvm()
        finally:
            application.kill()
    checked(topics.history())
