"""The application on Spark as `spark-submit` starts it."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

import streaming
from tests.integration.spark_cluster import java_home
from tests.integration.streaming import READY_S, Timestamps, Topics

SCRIPT = Path(streaming.__file__).with_name("submitted.py")


class Submitted(Timestamps):
    """The process of `spark-submit`: a JVM, whose child is the driver's Python."""

    def __init__(
        self, topics: Topics, folder: Path, name: str, submit: list[str], **environment: str
    ) -> None:
        super().__init__(topics, folder, name)
        self.submit = submit
        self.environment = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": java_home(),
            **environment,
        }

    def argv(self) -> list[str]:
        script = str(Path(sys.executable).with_name("spark-submit"))
        _, _, _, *options = super().argv()
        assigned = [f"{name}={value}" for name, value in self.environment.items()]
        return ["env", *assigned, script, *self.submit, str(SCRIPT), *options]

    def stop_jvm(self) -> None:
        """Stop the JVM; the driver's Python has to end with it."""
        jvm = psutil.Process(self.pid)
        started = [jvm, *jvm.children(recursive=True)]
        jvm.terminate()
        _, left = psutil.wait_procs(started, READY_S)
        assert left == [], "the driver's Python ends with its JVM"
