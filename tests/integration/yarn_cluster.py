"""A YARN cluster of this machine: Hadoop's own resource manager and one node manager, in one JVM.

Hadoop has them for tests (`MiniYARNCluster`). Containers are processes, as they are elsewhere. The
process of this module holds the JVM, and ends with it: `python -m tests.integration.yarn_cluster`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from coordinator.runtime.jars import JarSet, classpath, parse_pins
from coordinator.runtime.java import find_java
from tests.integration.cluster import Child, wait_until
from tests.integration.spark_cluster import SPARK_HOME, java_home

SPARK_JARS = SPARK_HOME / "jars"
START_S = 120.0
BY_SPARK = ("hadoop-client-*", "slf4j-api-*", "log4j-*", "commons-*", "jaxb-*", "py4j-*")
"""What is taken from the jars of Spark: so both sides are of one version of Hadoop."""

PINNED = """
org.apache.hadoop:hadoop-client-minicluster:3.4.2 40068257
    ae2406c544825b7734b8aad4f87eff60d9ec422284f0b16c2856032083b63c77
org.bouncycastle:bcprov-jdk18on:1.78.1 8324412
    add5915e6acfc6ab5836e1fd8a5e21c6488536a8c1f21f386eeb3bf280b702d7
org.bouncycastle:bcpkix-jdk18on:1.78.1 1125173
    4b48ea084e5232b9d79ebca1887b9de037b124931807cd60710748c2aee08cc9
org.bouncycastle:bcutil-jdk18on:1.78.1 705135
    d9fa56f97b0f761ce3bc8d9d74c5d7137a987bf5bd3abfe1003f9bafa45a1d2f
commons-logging:commons-logging:1.2 61829
    daddea1ea0be0f56978ab3006b8ac92834afeefbd9b7e4e6316fca57df0fa636
javax.xml.bind:jaxb-api:2.3.1 128076
    88b955a0df57880a26a74708bc34f74dcaf8ebf4e78843a28b50eae945732b06
junit:junit:4.13.2 384581
    8e495b634469d64fb8acfa3495a065cbacc8a0fff55ce1e31007be4c16dc57d3
"""

SETTINGS = {
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.resource.cpu-vcores": "4",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
}


class YarnCluster(Child):
    """The process; `conf` is the folder that `HADOOP_CONF_DIR` has to name."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        super().__init__("yarn", folder, folder)
        self.conf = folder / "conf"

    def argv(self) -> list[str]:
        return [sys.executable, "-m", "tests.integration.yarn_cluster", str(self.folder)]

    def __enter__(self) -> YarnCluster:
        self.start()

        def there() -> bool:
            assert self.runs, self.said[-2000:]
            return "a node is there" in self.said

        wait_until(there, "YARN has a node", START_S)
        return self

    def __exit__(self, *_: object) -> None:
        left = psutil.Process(self.pid).children(recursive=True) if self.runs else []
        self.stop()
        for process in left:
            if process.is_running():
                process.kill()
        psutil.wait_procs(left, timeout=START_S)


def main(folder: Path) -> None:
    """Run the cluster until SIGTERM."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    (folder / "conf").mkdir()
    os.environ["JAVA_HOME"] = java_home()
    own = classpath(JarSet("Hadoop's YARN", "yarn-3.4.2", parse_pins(PINNED)))
    taken = [str(path) for name in BY_SPARK for path in sorted(SPARK_JARS.glob(name))]
    port = launch_gateway(
        jarpath=next(str(path) for path in SPARK_JARS.glob("py4j-*")),
        classpath=os.pathsep.join([own, *taken]),
        # Its dependency injection defines classes by reflection.
        javaopts=["-Xmx384m", "--add-opens", "java.base/java.lang=ALL-UNNAMED"],
        java_path=str(find_java().path),
        redirect_stdout=sys.stdout,
        redirect_stderr=sys.stdout,
        die_on_exit=True,
        cwd=str(folder),
    )
    java: Any = JavaGateway(gateway_parameters=GatewayParameters(port=port)).jvm
    settings = java.org.apache.hadoop.yarn.conf.YarnConfiguration()
    for name, value in SETTINGS.items():
        settings.set(name, value)
    cluster = java.org.apache.hadoop.yarn.server.MiniYARNCluster("yarn", 1, 1, 1)
    cluster.init(settings)
    cluster.start()
    file = java.java.io.FileOutputStream(str(folder / "conf" / "yarn-site.xml"))
    cluster.getConfig().writeXml(file)
    file.close()
    assert cluster.waitForNodeManagersToConnect(int(START_S * 1000))
    print("a node is there", flush=True)
    ending.wait()
    # To stop it in order takes minutes: it waits for containers, which are killed right after.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
