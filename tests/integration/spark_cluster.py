"""A cluster of Spark's own kind on this machine: a master and workers, each a process.

The executors are processes as well: children of the workers, which start them for an application.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pyspark

from coordinator.runtime.java import find_java
from tests.integration.cluster import Child, wait_until
from tests.support.ports import reserve_port

HOST = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent
JOIN_S = 60.0


def java_home() -> str:
    """Return what `JAVA_HOME` has to name for scripts to take the Java that is used here."""
    return str(find_java().path.parent.parent)


class SparkProcess(Child):
    """A master or a worker: `spark-class` becomes its JVM."""

    def __init__(self, name: str, folder: Path, *command: str) -> None:
        super().__init__(name, folder / name, folder)
        self.command = command

    def argv(self) -> list[str]:
        self.folder.mkdir(exist_ok=True)
        settings = {
            "JAVA_HOME": java_home(),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_LOCAL_DIRS": str(self.folder),
        }
        assigned = [f"{name}={value}" for name, value in settings.items()]
        script = str(SPARK_HOME / "bin" / "spark-class")
        return ["env", *assigned, script, *self.command, "--host", HOST, "--webui-port", "0"]

    def executors(self) -> list[psutil.Process]:
        """Return the processes that a worker has started."""
        return psutil.Process(self.pid).children() if self.runs else []


class SparkCluster:
    """A master and its workers, of one core each. Ends with the block."""

    def __init__(self, folder: Path, workers: int) -> None:
        folder.mkdir()
        self.port = reserve_port()
        deploy = "org.apache.spark.deploy"
        self.master = SparkProcess(
            "master", folder, f"{deploy}.master.Master", "--port", str(self.port)
        )
        self.workers = [
            SparkProcess(
                *(f"worker-{number}", folder, f"{deploy}.worker.Worker", self.url),
                *("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}")),
            )
            for number in range(workers)
        ]

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def options(self) -> list[str]:
        """Return the options of an application that is to run here."""
        settings = (
            f"spark.driver.host={HOST}",
            f"spark.driver.bindAddress={HOST}",
            "spark.executor.memory=512m",
            "spark.executor.cores=1",
        )
        found = ["--spark-master", self.url]
        for setting in settings:
            found += ["--spark-conf", setting]
        return found

    def __enter__(self) -> SparkCluster:
        for process in (self.master, *self.workers):
            process.start()
        said = self.master
        wait_until(
            lambda: said.said.count("Registering worker") == len(self.workers),
            "all workers are there",
            JOIN_S,
        )
        return self

    def __exit__(self, *_: object) -> None:
        left = [one for worker in self.workers for one in worker.executors()]
        for process in (*self.workers, self.master):
            process.kill()
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, timeout=JOIN_S)
