"""The pinned jars that Spark needs for Kafka: coordinate, size in bytes, sha256 of each.

pyspark brings all others. The list is printed by `python -m streaming.spark.jars`; it is not
resolved transitively, because the POM files name newer versions than there are: the token provider
serves delegation tokens only. `hadoop-bare-naked-local-fs` writes local files without forking a
`chmod` for each.
"""

from __future__ import annotations

import os
from pathlib import Path

from coordinator.runtime.jars import JarSet, classpath, parse_pins, pins_of

VERSION = "4.1.3"

PINNED = """
org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3 491701
    cb31ffd9c8f5527dba061db8af671d295562092e4f3f5ff42fc249fab8a8fde6
org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0 64975
    f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767
org.apache.kafka:kafka-clients:3.9.1 9215194
    7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9
org.apache.commons:commons-pool2:2.12.1 152289
    5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef
com.globalmentor:hadoop-bare-naked-local-fs:0.1.0 9106
    e0cc30fb0531eb0b59468dc0abf5b257533d2365b5e9f45e795edd707aa78c62
"""


DELTA_VERSION = "4.3.0"

DELTA = """
io.delta:delta-spark_4.1_2.13:4.3.0 9023881
    35ae4164ee41bbfc8bdb52dcd3715ff4e1821a18c085e7a71a462e8e80e23ee5
io.delta:delta-storage:4.3.0 110849
    d765a7144289c292e256963f810c1a4b096a8c09bdb3b0370096393b6a02b3c5
"""
"""Delta Lake, for the archive alone: loading it costs a session time and memory.

Earlier versions do not fit Spark 4.1.3: they fail where a table has a checkpoint, which is after
ten commits.
"""


def spark_classpath(*, with_delta: bool = False, cache: Path | None = None) -> str:
    """Return the classpath of Spark's connectors, downloading what the cache lacks.

    Raises EmbeddedError as `classpath` does.
    """
    sets = [
        JarSet(f"the connectors of Apache Spark {VERSION}", f"spark-{VERSION}", parse_pins(PINNED))
    ]
    if with_delta:
        sets.append(
            JarSet(f"Delta Lake {DELTA_VERSION}", f"delta-{DELTA_VERSION}", parse_pins(DELTA))
        )
    return os.pathsep.join(classpath(one, cache=cache) for one in sets)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        print(
            pins_of((jar.coordinate for jar in parse_pins(PINNED + DELTA)), Path(scratch)), end=""
        )
