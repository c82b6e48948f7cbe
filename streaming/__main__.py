"""The command line of the applications on Spark: `python -m streaming timestamps --cluster demo …`.

Exit codes: 0 after a stop, 1 if it cannot go on now, 2 for a wrong command line, 78 if no restart
can help, above all because another application does the same work.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.core.timestamps.shards import WHOLE, BucketShard, shard_of
from coordinator.kafka.arguments import add_cluster, kafka_of
from coordinator.runtime.arguments import within
from coordinator.runtime.signals import ignore_stops, on_stop
from streaming.spark.submission import is_submitted

if TYPE_CHECKING:
    from streaming.timestamps.application import Options

EX_UNUSABLE, EX_CONFIG = 1, 78

MASTER = re.compile(r"local(\[.+\]|-cluster\[.+\])?|spark://.+:\d+|yarn|k8s://.+")


def main(argv: Sequence[str] | None = None) -> int:
    """Run an application until SIGTERM or SIGINT, and return its exit code."""
    arguments = parser().parse_args(argv)
    stopping, wake = threading.Event(), threading.Event()

    def stop() -> None:
        # Who signals a whole group of processes ends the JVM as well: libraries tell at length.
        logging.disable(logging.CRITICAL)
        stopping.set()
        wake.set()

    on_stop(stop)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    if arguments.command == "archive":
        code = run_archive(arguments, stopping, wake)
        ignore_stops()
        return code
    if arguments.command == "classes":
        from streaming.timestamps.classes import keep_classes

        keep_classes(kafka_of(arguments), arguments.cluster, arguments.data_dir.resolve())
        return 0
    from streaming.timestamps.application import Options

    code = run(
        Options(
            cluster=arguments.cluster,
            bootstrap_servers=kafka_of(arguments),
            data_dir=arguments.data_dir.resolve(),
            spark_master=arguments.spark_master,
            trigger_ms=arguments.trigger_ms,
            tick_ms=arguments.tick_ms,
            offsets_max=arguments.offsets_max,
            executors_from=arguments.executors_from,
            partitions_min=arguments.partitions_min,
            heap_mb=arguments.heap_mb,
            shard=arguments.shard,
            ready_file=arguments.ready_file,
            metrics_port=arguments.metrics_port,
            spark_conf=dict(arguments.spark_conf),
            crash_at=arguments.crash_at,
            until_read=arguments.until_read,
        ),
        stopping,
        wake,
    )
    ignore_stops()
    return code


def run(options: Options, stopping: threading.Event, wake: threading.Event) -> int:
    """Run until `stopping` is set; an expected fault is one line on stderr."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from coordinator.runtime.errors import EmbeddedError
    from coordinator.runtime.threads import ThreadEndedError
    from streaming.spark.queries import LostError
    from streaming.timestamps.application import AnotherError, Application
    from streaming.timestamps.state_store import RefusedError, UnreadableError

    try:
        Application(options, stopping, wake).run()
    except (AnotherError, UnreadableError) as error:
        return _fail(str(error), EX_CONFIG)
    except (RefusedError, ThreadEndedError) as error:
        return _fail(str(error), EX_UNUSABLE)
    except LostError as error:
        return 0 if stopping.is_set() else _fail(str(error), EX_UNUSABLE)
    except EmbeddedError as error:
        return _fail(f"{error.message} [{error.code}]", EX_UNUSABLE)
    except (PySparkException, Py4JError, OSError) as error:
        return 0 if stopping.is_set() else _fail(_of_spark(error), EX_UNUSABLE)
    return 0


def run_archive(
    arguments: argparse.Namespace, stopping: threading.Event, wake: threading.Event
) -> int:
    """Archive until `stopping` is set; an expected fault is one line on stderr."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from coordinator.runtime.errors import EmbeddedError
    from streaming.archive.delta import UnusableError
    from streaming.archive.job import ArchiveOptions, Archiver
    from streaming.archive.place import ARCHIVE, url_of
    from streaming.spark.queries import LostError

    data_dir = arguments.data_dir.resolve()
    options = ArchiveOptions(
        cluster=arguments.cluster,
        bootstrap_servers=kafka_of(arguments),
        data_dir=data_dir,
        archive=url_of(arguments.archive or data_dir / ARCHIVE),
        spark_master=arguments.spark_master,
        trigger_ms=arguments.trigger_ms,
        offsets_max=arguments.offsets_max,
        compact_every=arguments.compact_every,
        heap_mb=arguments.heap_mb,
        spark_conf=dict(arguments.spark_conf),
        ready_file=arguments.ready_file,
        crash_at=arguments.crash_at,
        until_read=arguments.until_read,
    )
    try:
        Archiver(options, stopping, wake).run()
    except UnusableError as error:
        return _fail(str(error), EX_CONFIG, "archive")
    except EmbeddedError as error:
        return _fail(f"{error.message} [{error.code}]", EX_UNUSABLE, "archive")
    except LostError as error:
        return 0 if stopping.is_set() else _fail(str(error), EX_UNUSABLE, "archive")
    except (PySparkException, Py4JError, OSError) as error:
        return 0 if stopping.is_set() else _fail(_of_spark(error), EX_UNUSABLE, "archive")
    return 0


def _of_spark(error: Exception) -> str:
    """Return what to say where Spark cannot be started, or is not there any more."""
    from streaming.spark.queries import first_line

    return f"{first_line(error)} [spark_failed]"


def _fail(message: str, code: int, who: str = "timestamps") -> int:
    with suppress(OSError):
        print(f"{who}: {message}", file=sys.stderr, flush=True)
    return code


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m streaming", description="Applications on Spark."
    )
    commands = found.add_subparsers(dest="command", required=True)
    one = commands.add_parser("timestamps", help="compute stability and restart timestamps")
    add_cluster(one)
    one.add_argument(
        "--data-dir",
        type=Path,
        required=True,
        help="any folder: it only keeps what Spark needs meanwhile",
    )
    one.add_argument(
        "--spark-master",
        type=_master,
        metavar="URL",
        default=default_master("local[2]"),
        help="where tasks run (local[2]; under spark-submit as that says)",
    )
    one.add_argument(
        "--trigger-ms",
        type=within(10, 60_000),
        default=100,
        help="period in which a batch begins while there is something to do (100)",
    )
    one.add_argument(
        "--tick-ms",
        type=within(0, 1_000),
        default=250,
        help="period of the records on tick (250; 0: none)",
    )
    one.add_argument(
        "--offsets-max",
        type=within(1_000, 10_000_000),
        default=40_000,
        help="records a batch at most (40,000)",
    )
    one.add_argument(
        "--executors-from",
        type=within(0, 10_000_000),
        default=5_000,
        metavar="RECORDS",
        help="size from which a batch is reduced in Spark's executors (5,000)",
    )
    one.add_argument(
        "--partitions-min",
        type=within(0, 10_000),
        default=0,
        metavar="N",
        help="divide a batch among so many tasks at least (0: one for each partition of Kafka)",
    )
    one.add_argument(
        "--heap-mb",
        type=within(256, 65_536),
        default=1_000,
        help="heap of the driver's JVM; under spark-submit --driver-memory counts (1,000)",
    )
    one.add_argument(
        "--metrics-port",
        type=within(1, 65_535),
        metavar="PORT",
        help="serve metrics for Prometheus at http://127.0.0.1:PORT/metrics (not)",
    )
    one.add_argument(
        "--shard",
        type=_shard,
        default=WHOLE,
        metavar="I/K",
        help="share the buckets among K applications; this is the I-th (1/1)",
    )
    _add_spark_conf(one)
    one.add_argument("--ready-file", type=Path, help="file that is written after the first batch")
    one.add_argument("--until-read", action="store_true", help="exit after reading what is there")
    one.add_argument("--crash-at", default="", help=argparse.SUPPRESS)
    _add_archive(
        commands.add_parser(
            "archive", help="archive all events and stability timestamps in Delta Lake"
        )
    )
    classes = commands.add_parser(
        "classes", help="read the topics once, and keep Spark's classes for faster starts"
    )
    add_cluster(classes)
    classes.add_argument("--data-dir", type=Path, required=True, help="a folder for this run")
    return found


def _add_archive(one: argparse.ArgumentParser) -> None:
    add_cluster(one)
    one.add_argument("--data-dir", type=Path, required=True, help="data folder of the cluster")
    one.add_argument("--archive", help="folder of the archive, or a URL (in the data folder)")
    one.add_argument(
        "--spark-master",
        type=_master,
        metavar="URL",
        default=default_master("local[1]"),
        help="where tasks run (local[1]; under spark-submit as that says)",
    )
    one.add_argument(
        "--trigger-ms",
        type=within(100, 3_600_000),
        default=10_000,
        help="period at which new records are read (10,000)",
    )
    one.add_argument(
        "--offsets-max",
        type=within(1, 1_000_000),
        default=100_000,
        help="records a batch at most (100,000)",
    )
    one.add_argument(
        "--compact-every",
        type=within(1, 1_000_000),
        default=64,
        metavar="N",
        help="merge small files after N batches of a table (64)",
    )
    one.add_argument(
        "--heap-mb",
        type=within(256, 65_536),
        default=512,
        help="heap of the JVM; under spark-submit --driver-memory counts (512)",
    )
    _add_spark_conf(one)
    one.add_argument("--ready-file", type=Path, help="file that is written when the job reads")
    one.add_argument("--until-read", action="store_true", help="exit after reading what is there")
    one.add_argument("--crash-at", default="", help=argparse.SUPPRESS)


def _add_spark_conf(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--spark-conf",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; repeat for more",
    )


def default_master(master: str) -> str:
    """Return a master of Spark, or nothing where `spark-submit` has one."""
    return "" if is_submitted() else master


def _master(text: str) -> str:
    if text and not MASTER.fullmatch(text):  # Nothing: as `spark-submit` says.
        raise argparse.ArgumentTypeError(
            f"{text!r} is no master of Spark: local[N], spark://HOST:PORT, yarn or k8s://URL"
        )
    return text


def _shard(text: str) -> BucketShard:
    try:
        return shard_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
