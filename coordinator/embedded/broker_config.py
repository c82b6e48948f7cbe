"""What the embedded broker is told: server properties, log4j properties, JVM flags.

Pure text. All paths in it are relative to the broker's data folder, which is its working
directory: no path needs escaping, and the folder can be moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .ports import LOOPBACK

HEAP_MIB_MAX = 256
DATA = "data"
SERVER_PROPERTIES = "server.properties"
LOG4J_PROPERTIES = "log4j2.properties"
BROKER_LOG = "broker.log"

LOG4J_TEXT = f"""\
# Quiet on the console; a few files of bounded size in the data folder.
status = ERROR
appender.file.type = RollingFile
appender.file.name = File
appender.file.fileName = {BROKER_LOG}
appender.file.filePattern = {BROKER_LOG}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %m (%c{{1}})%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = File
logger.config.name = org.apache.kafka.common.config
logger.config.level = WARN
logger.serverConfig.name = kafka.server.KafkaConfig
logger.serverConfig.level = WARN
"""


def server_properties(
    port: int, controller_port: int, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the broker's settings: one process, broker and controller, loopback only."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"{LOOPBACK}:{controller_port}",
        "log.dirs": DATA,
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        # One broker: one copy. One partition each of the internal topics: they load at once.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        # A broker that was killed cannot register again before its old session has ended, which
        # is 9 s by default. Controller and broker share a process: a stall hits both.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "400",
        # The defaults suit a server of its own: the cleaner alone takes 128 MiB of heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
        **(extra or {}),
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """Return `properties` in Java's format; the values are plain ASCII without a backslash."""
    for key, value in properties.items():
        assert value.isascii(), key
        assert not set(value) & {"\\", "\n"}, key
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def jvm_flags(*, heap_mib_max: int = HEAP_MIB_MAX) -> list[str]:
    """Return the flags of a frugal JVM that starts fast; an out-of-memory error ends it."""
    return [
        "-Xms32m",
        f"-Xmx{heap_mib_max}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:ErrorFile=jvm-crash.log",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={LOG4J_PROPERTIES}",
    ]


def class_archive_flags(archive: Path, dump_to: Path) -> list[str]:
    """Return the flags that use a class archive, or write one at exit where there is none.

    With one (some 50 MB, made by the first clean stop) the broker is ready in half the time. The
    JVM ignores an archive that does not fit its version or the jars.
    """
    quiet = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xshare:auto"]
    if archive.exists():
        return [*quiet, f"-XX:SharedArchiveFile={archive}"]
    return [*quiet, f"-XX:ArchiveClassesAtExit={dump_to}"]
