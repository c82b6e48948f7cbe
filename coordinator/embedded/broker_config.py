"""What the embedded broker is told: server properties, log4j properties, JVM flags.

Pure text. All paths in it are relative to the broker's data folder, which is its working
directory: no path needs escaping, and the folder can be moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.embedded.ports import LOOPBACK

HEAP_MIB_MAX = 256
COPIES_MAX = 3
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


CONSOLE_LOG4J_TEXT = """\
# To the console, for whatever keeps the logs of a container.
status = ERROR
appender.console.type = Console
appender.console.name = Console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c{1})%n
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = Console
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = INFO
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker is: its node id in its cluster, its two ports, and its host."""

    node: int
    port: int
    controller_port: int
    host: str = LOOPBACK


def copies_of(brokers: int) -> int:
    """Return how many copies so many brokers keep of every topic."""
    return min(COPIES_MAX, brokers)


def min_insync_of(copies: int) -> int:
    """Return how many of so many copies must have a record before it is acknowledged."""
    return max(1, copies - 1)


def server_properties(
    place: Place, voters: Sequence[Place] = (), extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the settings of one broker, which is a controller too; it listens on its host only.

    `voters` are all brokers of its cluster, itself included; none means that it is alone.
    """
    copies = copies_of(max(1, len(voters)))
    min_insync = str(min_insync_of(copies))
    client = f"PLAINTEXT://{place.host}:{place.port}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(place.node),
        "listeners": f"{client},CONTROLLER://{place.host}:{place.controller_port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": DATA,
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "default.replication.factor": str(copies),
        "min.insync.replicas": min_insync,
        # One partition each of the internal topics: they load at once.
        "offsets.topic.replication.factor": str(copies),
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": min_insync,
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": min_insync,
        "share.coordinator.state.topic.num.partitions": "1",
        # A broker that was killed cannot register again before its old session has ended, which
        # is 9 s by default. One that stands still for longer than a session, as on a machine with
        # other work, is fenced, and has no leaders for a while: that takes longer than the stall.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "500",
        # The defaults suit a server of its own: the cleaner alone takes 128 MiB of heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
        **(_quorum(voters) if voters else _alone(place)),
        **(extra or {}),
    }


def _alone(place: Place) -> dict[str, str]:
    """Return a dynamic quorum, whose single voter finds itself at whatever port it is given.

    By default it would write a record that says nothing twice a second: that is for voters that
    follow another one.
    """
    return {
        "controller.quorum.bootstrap.servers": f"{place.host}:{place.controller_port}",
        "metadata.max.idle.interval.ms": "5000",
    }


def _quorum(voters: Sequence[Place]) -> dict[str, str]:
    """Return a static quorum: its addresses are in the configuration alone, so ports may change.

    The timeouts are for a quick failover on one machine: a controller that died is replaced first,
    and its successor gives every broker one session before it moves leaders. A broker that is told
    to stop does not ask the controller first: all are stopped together, and the last ones would
    find no quorum.
    """
    return {
        "controller.quorum.voters": ",".join(
            f"{voter.node}@{voter.host}:{voter.controller_port}" for voter in voters
        ),
        "controller.quorum.fetch.timeout.ms": "1000",
        "controller.quorum.election.timeout.ms": "500",
        "controller.quorum.election.backoff.max.ms": "300",
        "broker.session.timeout.ms": "1500",
        "broker.heartbeat.interval.ms": "300",
        "controlled.shutdown.enable": "false",
        "replica.lag.time.max.ms": "5000",
        "replica.fetch.backoff.ms": "200",
        # Leaders that move back cost writers a moment, and gain nothing on one machine.
        "auto.leader.rebalance.enable": "false",
    }


META = "meta.properties"
"""In the folder DATA, once that is formatted."""


def format_arguments(cluster_id: str, *, alone: bool) -> list[str]:
    """Return the tool, and its arguments, that formats the data of a broker: of one that is alone,
    or of one of a static quorum."""
    tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
    quorum = ["--standalone"] if alone else []
    return [*tool, *quorum, "--cluster-id", cluster_id, "--config", SERVER_PROPERTIES]


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
